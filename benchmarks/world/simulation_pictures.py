"""Draws simulated showers of the default world: docs/pictures/event_displays.svg and muon_tails.svg.

    python -m benchmarks.world.simulation_pictures

Their titles, in the files' metadata, hold the hash of the world's settings; a test compares it with today's.
"""

from __future__ import annotations

import argparse

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from benchmarks.figures import PICTURES, save
from showerstack.report.pictures.style import PALETTE, colour_map, drawing, new_figure
from showerstack.showers.array import KASCADE
from showerstack.showers.kascade import MASS_NUMBERS
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.cascade import Showers, develop
from showerstack.showers.simulation.detector import read_out
from showerstack.showers.simulation.primaries import PHOTON, Primaries
from showerstack.showers.simulation.reconstruction import Reconstructed, reconstruct

SETTINGS = load_settings()
COLOURS = dict(zip((*COMPOSITION.classes, "photon"), PALETTE, strict=False))
MASSES = dict(zip((*COMPOSITION.classes, "photon"), (*MASS_NUMBERS, PHOTON), strict=True))
LG_ENERGY = 15.5
FEWEST = 5
"""Bins with fewer showers are not drawn."""


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
    arrays = (showers.xmax, showers.lg_ne, showers.lg_nmu, showers.age, showers.muon_age)
    only = Showers(thrown(mass, 1), *(values[row] for values in arrays))
    return only, readings.grids()[0], event


def event_displays() -> Figure:
    """Three showers of the same energy in both channels."""
    figure = new_figure(7.4, 4.9)
    axes = figure.subplots(3, 2, sharex=True, sharey=True)
    channels = (("e/gamma", KASCADE.has_station, 3e4), ("muon", KASCADE.has_muon, 200.0))
    for row, name in enumerate(("proton", "iron", "photon")):
        showers, grid, event = typical(MASSES[name])
        for column, (channel, stations, most_mev) in enumerate(channels):
            draw, cells = axes[row, column], grid[..., column]
            hit = stations & (cells > 0)
            draw.plot(KASCADE.x_m[stations & ~hit], KASCADE.y_m[stations & ~hit], "s", markersize=2.2,
                      markerfacecolor="none", markeredgecolor=PALETTE[6], markeredgewidth=0.4)  # fmt: skip
            shown = draw.scatter(KASCADE.x_m[hit], KASCADE.y_m[hit], c=cells[hit], s=16, marker="s", linewidth=0,
                                 norm=LogNorm(1.0, most_mev), cmap=colour_map())  # fmt: skip
            core = showers.primaries
            draw.plot(core.core_x_m, core.core_y_m, "+", color=PALETTE[0], markersize=10, mew=1.6, label="true core")
            draw.plot(event.core_x_m, event.core_y_m, "x", color=PALETTE[5], markersize=7, mew=1.3,
                      label="reconstructed core")  # fmt: skip
            draw.set(aspect="equal", xlim=(-105, 105), ylim=(-105, 105))
            number = f"lg $N_e$ {event.lg_ne[0]:.2f}" if column == 0 else f"lg $N_\\mu$ {event.lg_nmu[0]:.2f}"
            draw.set_title(f"{name}, {channel}: {hit.sum()} hits, {number}", fontsize=7.5)
            if row == 2:
                draw.set_xlabel("x (m)")
                figure.colorbar(shown, ax=axes[:, column], label="deposit (MeV)", location="bottom", aspect=30)
        axes[row, 0].set_ylabel("y (m)")
    axes[2, 1].legend(loc="center", bbox_to_anchor=(0.52, 0.62), fontsize=6, handlelength=0.8)
    return figure


def muon_tails(n: int = 150_000) -> Figure:
    """Distributions of the true muon number at one energy, with their tails."""
    figure = new_figure(3.2)
    draw = figure.add_subplot()
    edges = np.arange(2.0, 5.4, 0.04)
    for name in ("photon", *COMPOSITION.classes):
        rng = np.random.default_rng(2)
        lg_nmu = develop(thrown(MASSES[name], n, zenith_deg=0.0), SETTINGS, rng).lg_nmu
        counts = np.histogram(lg_nmu, edges)[0].astype(float)
        counts[counts < FEWEST] = np.nan
        draw.stairs(counts / (n * 0.04), edges, color=COLOURS[name], linewidth=1.4, label=name)
    draw.set(yscale="log", xlabel=r"true lg $N_\mu$", ylabel=r"density per unit of lg $N_\mu$", ylim=(1e-3, 40))
    draw.set_title(f"vertical showers of lg(E/eV) = {LG_ENERGY}")
    draw.legend()
    return figure


def main() -> None:
    """Draw both."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for make in (event_displays, muon_tails):
        with drawing():
            save(make(), PICTURES / f"{make.__name__}.svg", f"{make.__doc__} World {SETTINGS.digest()[:8]}")


if __name__ == "__main__":
    main()
