"""Draws the pictures of docs/simulation.md into docs/pictures.

python -m benchmarks.world.simulation_pictures
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import itertools

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from benchmarks.world.moments import Sizes, realism
from showerstack.runtime.context import bar
from showerstack.showers.array import KASCADE
from showerstack.showers.lateral import axis_distance, rho_electron, rho_muon
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.blocks import BlockJob
from showerstack.showers.simulation.cascade import Showers, develop, mean_muon_age
from showerstack.showers.simulation.datasets import accepted
from showerstack.showers.simulation.detector import read_out
from showerstack.showers.simulation.primaries import Primaries
from showerstack.showers.simulation.reconstruction import Reconstructed, reconstruct

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SETTINGS = load_settings()
COLOURS = {"proton": "#D55E00", "helium": "#E69F00", "carbon": "#009E73", "silicon": "#0072B2", "iron": "#332288"}
"""Okabe and Ito's palette, distinguishable without colour vision; heavier is darker."""
PHOTON_COLOUR = "#CC79A7"
MASSES = {"proton": 1, "helium": 4, "carbon": 12, "silicon": 28, "iron": 56, "photon": 0}
LG_ENERGY = 15.5
plt.rcParams.update({"font.size": 10, "figure.dpi": 110, "savefig.bbox": "tight", "axes.spines.top": False})


def thrown(mass: int, n: int, *, zenith_deg: float = 15.0, core: tuple[float, float] = (22.0, -15.0)) -> Primaries:
    """Return ``n`` equal primaries of 10^15.5 eV."""
    return Primaries(
        mass=np.full(n, mass),
        label=np.zeros(n, dtype=np.int8),
        model=np.zeros(n, dtype=np.int8),
        lg_energy=np.full(n, LG_ENERGY),
        zenith_deg=np.full(n, zenith_deg),
        azimuth_deg=np.full(n, 40.0),
        core_x_m=np.full(n, core[0]),
        core_y_m=np.full(n, core[1]),
    )


def typical(mass: int, n: int = 301, seed: int = 1) -> tuple[Showers, np.ndarray, Reconstructed]:
    """Return the shower with the median muon number of ``n``, its grid (16, 16, 2) and its reconstruction."""
    rng = np.random.default_rng(seed)
    showers = develop(thrown(mass, n), SETTINGS, rng)
    row = np.argsort(showers.lg_nmu)[n // 2 : n // 2 + 1]
    keys = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    readings = read_out(showers, row, SETTINGS, keys, rng.standard_normal((n, 6, 2)))
    event = reconstruct(showers, row, readings, SETTINGS, rng.standard_normal((6, 1)), np.ones((4, 1)))
    only = Showers(thrown(mass, 1), *(v[row] for v in (showers.xmax, showers.lg_ne, showers.lg_nmu)),
                   showers.age[row], showers.muon_age[row])  # fmt: skip
    return only, readings.grids()[0], event


def event_displays() -> None:
    """Three showers of the same energy in both channels."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 7.4), layout="constrained")
    for column, name in enumerate(("proton", "iron", "photon")):
        showers, grid, event = typical(MASSES[name])
        for row, (channel, stations) in enumerate((("e/gamma", KASCADE.has_station), ("muon", KASCADE.has_muon))):
            draw = axes[row, column]
            cells = grid[..., row]
            hit = stations & (cells > 0)
            draw.scatter(KASCADE.x_m[stations & ~hit], KASCADE.y_m[stations & ~hit], s=14, marker="s", facecolor="none",
                         edgecolor="0.8", linewidth=0.6)  # fmt: skip
            limits = LogNorm(1.0, 3e4) if row == 0 else LogNorm(1.0, 1e3)
            shown = draw.scatter(KASCADE.x_m[hit], KASCADE.y_m[hit], c=cells[hit], s=46, marker="s", norm=limits,
                                 cmap="viridis")  # fmt: skip
            core = showers.primaries
            draw.plot(core.core_x_m, core.core_y_m, "+", color="red", markersize=13, mew=2, label="true core")
            draw.plot(event.core_x_m, event.core_y_m, "x", color="black", markersize=9, mew=1.6, label="fitted core")
            draw.set(aspect="equal", xlim=(-105, 105), ylim=(-105, 105), xlabel="x (m)")
            draw.set_ylabel("y (m)" if column == 0 else "")
            number = f"lg $N_e$ = {event.lg_ne[0]:.2f}" if row == 0 else f"lg $N_\\mu$ = {event.lg_nmu[0]:.2f}"
            draw.set_title(f"{name}, {channel}: {number}", fontsize=10)
            if column == 2:
                figure.colorbar(shown, ax=axes[row, :], label="deposit (MeV)", shrink=0.85)
    axes[0, 0].legend(loc="lower left", fontsize=8)
    figure.savefig(PICTURES / "event_displays.png")
    plt.close(figure)


def plane() -> None:
    """Electron against muon number by primary."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained", sharex=True, sharey=True)
    job = BlockJob(COMPOSITION, "test", 3, "qgs", "test", SETTINGS)
    points = [(e.event.lg_ne, e.event.lg_nmu, e.labels) for e in accepted(job, 20_000)]
    ne, nmu, label = (np.concatenate(part) for part in zip(*points, strict=True))
    for k, (name, colour) in enumerate(COLOURS.items()):
        density(axes[0], ne[label == k], nmu[label == k], colour, name)
    axes[0].set_title("composition sets, under the test's cuts", fontsize=10)
    job = BlockJob(GAMMA, "test", 3, "mix", "test", SETTINGS.changed(spectrum__protons_per_photon=1.0))
    points = [(e.event.lg_ne, e.event.lg_nmu, e.showers.primaries.mass[e.rows]) for e in accepted(job, 12_000)]
    ne, nmu, mass = (np.concatenate(part) for part in zip(*points, strict=True))
    density(axes[1], ne[mass == 1], nmu[mass == 1], COLOURS["proton"], "proton")
    axes[1].scatter(ne[mass == 0], nmu[mass == 0], s=2, color=PHOTON_COLOUR, alpha=0.35, linewidth=0)
    axes[1].plot([], [], "o", color=PHOTON_COLOUR, label="photon")
    axes[1].set_title("gamma sets, under the test's cuts", fontsize=10)
    for draw in axes:
        draw.set(xlabel="reconstructed lg $N_e$", xlim=(4.75, 6.6), ylim=(2.5, 5.5))
        draw.legend(fontsize=8, loc="upper left")
    axes[0].set_ylabel(r"reconstructed lg $N_\mu$")
    figure.savefig(PICTURES / "plane.png")
    plt.close(figure)


def density(draw: Axes, x: np.ndarray, y: np.ndarray, colour: str, name: str) -> None:
    """Draw the contours that hold 40 and 80 % of the points."""
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=(45, 75), range=((4.75, 7.0), (2.3, 6.3)))
    kernel = np.exp(-0.5 * (np.arange(-4, 5) / 1.4) ** 2)
    for axis in (0, 1):
        counts = np.apply_along_axis(np.convolve, axis, counts, kernel, mode="same")
    order = np.sort(counts.ravel())[::-1]
    share = np.cumsum(order) / order.sum()
    levels = [order[np.searchsorted(share, s)] for s in (0.8, 0.4)]
    centres = [0.5 * (edges[1:] + edges[:-1]) for edges in (x_edges, y_edges)]
    draw.contour(*centres, counts.T, levels=levels, colors=colour, linewidths=(1.0, 2.0))
    draw.plot([], [], color=colour, label=name)


def lateral() -> None:
    """Densities of one proton and one iron shower with the reconstruction's curves."""
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained", sharex=True)
    for name in ("proton", "iron"):
        _, grid, event = typical(MASSES[name])
        colour = COLOURS[name]
        axis = (event.core_x_m[0], event.core_y_m[0], event.zenith_deg[0], event.azimuth_deg[0])
        r_m = axis_distance(KASCADE.x_m, KASCADE.y_m, *axis)
        cosine = np.cos(np.radians(axis[2]))
        detector = SETTINGS.detector
        per_electron = 1 + detector.photon_share + detector.photon_share_core * np.exp(-r_m / detector.photon_core_m)
        curve_m = np.geomspace(5, 180, 100)
        for draw, channel, area, energy in (
            (axes[0], 0, KASCADE.electron_area_m2, detector.electron_mev * per_electron),
            (axes[1], 1, KASCADE.muon_area_m2, np.full_like(r_m, detector.muon_mev)),
        ):
            live = area > 0
            result = grid[..., channel][live] * cosine / energy[live] / (area[live] * cosine)
            distance = r_m[live]
            draw.plot(distance[result > 0], result[result > 0], ".", color=colour, alpha=0.35, markersize=4)
            edges = np.geomspace(6, 170, 11)
            for low, high in itertools.pairwise(edges):
                inside = (distance >= low) & (distance < high)
                if inside.sum() > 2:
                    error = result[inside].std() / np.sqrt(inside.sum())
                    draw.errorbar(distance[inside].mean(), result[inside].mean(), error, fmt="o", color=colour,
                                  markersize=5)  # fmt: skip
        n_e, n_mu = 10 ** event.lg_ne[0], 10 ** event.lg_nmu[0]
        age = mean_muon_age(event.lg_nmu[0], 1 / cosine)
        axes[0].plot(curve_m, rho_electron(curve_m, n_e, event.age[0]), color=colour,
                     label=f"{name}: lg $N_e$ = {event.lg_ne[0]:.2f}, age {event.age[0]:.2f}")  # fmt: skip
        axes[1].plot(curve_m, rho_muon(curve_m, n_mu, age), color=colour,
                     label=f"{name}: lg $N_\\mu$ = {event.lg_nmu[0]:.2f}")  # fmt: skip
    for draw, what in zip(axes, ("electrons per m$^2$", "muons per m$^2$"), strict=True):
        draw.set(xscale="log", yscale="log", xlabel="distance from the axis (m)", ylabel=what)
        draw.legend(fontsize=8)
    axes[1].axvspan(5, SETTINGS.reconstruction.muon_r_min_m, color="0.93", zorder=0)
    axes[1].text(6, 0.03, "punch-through;\nnot used", fontsize=8, color="0.4")
    axes[1].set_ylim(0.02, 6)
    figure.savefig(PICTURES / "lateral.png")
    plt.close(figure)


def moments() -> None:
    """Every known fact: deviation in units of the tolerance."""
    table = realism(SETTINGS, sizes=Sizes(), bars=bar)
    figure, draw = plt.subplots(figsize=(9.5, 0.19 * table.height + 1), layout="constrained")
    where = np.arange(table.height)[::-1]
    deviation = np.clip(table["deviation"].to_numpy(), -4.0, 4.0)
    draw.axvspan(-1, 1, color="#e3efe9", zorder=0)
    colours = np.where(table["ok"].to_numpy(), "#009E73", "#D55E00")
    draw.hlines(where, 0, deviation, colors=colours, linewidth=1.5)
    draw.scatter(deviation, where, c=colours, s=14, zorder=3)
    samples = table["sample"].to_list()
    draw.set_yticks(where, table["quantity"].to_list(), fontsize=7)
    for k, sample in enumerate(samples):
        if k == 0 or samples[k - 1] != sample:
            draw.axhline(where[k] + 0.5, color="0.6", linewidth=0.6)
            draw.text(4.05, where[k], sample, fontsize=7, va="center")
    draw.set(xlim=(-4.2, 4.2), ylim=(-1, table.height), xlabel="(simulated - real) / tolerance")
    draw.spines.right.set_visible(False)
    figure.savefig(PICTURES / "moments.png")
    plt.close(figure)


def muon_tails(n: int = 150_000) -> None:
    """Distributions of the true muon number at one energy, with their tails."""
    figure, draw = plt.subplots(figsize=(7, 4.4), layout="constrained")
    edges = np.arange(2.0, 5.4, 0.04)
    for name in ("photon", "proton", "helium", "iron"):
        rng = np.random.default_rng(2)
        lg_nmu = develop(thrown(MASSES[name], n, zenith_deg=0.0), SETTINGS, rng).lg_nmu
        counts = np.histogram(lg_nmu, edges)[0] / (n * 0.04)
        colour = COLOURS.get(name, PHOTON_COLOUR)
        draw.stairs(counts, edges, color=colour, linewidth=1.6, label=name)
    draw.set(yscale="log", xlabel=r"true lg $N_\mu$", ylabel="density per unit of lg $N_\\mu$", ylim=(1e-4, 40))
    draw.set_title(f"vertical showers of lg(E/eV) = {LG_ENERGY}", fontsize=10)
    draw.legend(fontsize=9)
    figure.savefig(PICTURES / "muon_tails.png")
    plt.close(figure)


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for picture in (event_displays, plane, lateral, muon_tails, moments):
        print(picture.__name__)
        picture()
