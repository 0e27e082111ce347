"""What the fits reach at ten arrays, from four stations to 1,600: users look up the nearest to theirs.

    python -m benchmarks.fits.arrays --events 300 --store

Showers of known core, direction and size are drawn within each array, with Poisson numbers and exponential deposits.
Electrons follow the NKG function (ages 1.2 +- 0.12, Moliere radius of 9.6 g/cm2), which is not the form that is fitted.
Sizes are drawn from where half of the showers hit eight stations to 30 times as much. Times are those of the first of a
station's particles in a curved front, with a clock of 2 ns.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.shared.results import HELP, store
from showerstack.features.compute import compute_events
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.atmosphere import air_density
from showerstack.showers.calibration import calibrate
from showerstack.showers.card import ArrayCard
from showerstack.showers.front import LIGHT_M_PER_NS, FrontModel, front_of
from showerstack.showers.lateral import axis_distance, muon_normalisation, special_functions

GROUPS = frozenset({"position", "electron-fit", "optimum-density", "muon-fit", "times"})
MOLIERE_G_CM2 = 9.6
"""Of air."""
MEAN_AGE, AGE_SPREAD = 1.2, 0.12
MUONS_PER_ELECTRON = (0.9, -0.45)
"""lg N_mu = 0.9 lg N_e - 0.45, KASCADE's showers."""
LEAST_HITS, LEAST_SHARE, DECADES = 8, 0.5, 1.5
"""Showers are drawn from where half of them hit so many stations (three quarters of them, where there are fewer)."""
MAX_SINE = 0.5
CLOCK_NS = 2.0
THRESHOLD = 0.3
"""Of a particle."""
CORES = 0.8
"""Cores lie within this part of the array's extent."""


@dataclass(frozen=True)
class ArrayCase:
    """One array of the table."""

    name: str
    array: DetectorArray

    @property
    def facts(self) -> str:
        """Spacing, stations, muon detectors, depth."""
        a = self.array
        return f"{a.pitch_m:g} | {a.n_stations:,} | {a.n_muon_detectors or 'none'} | {a.depth_g_cm2:.0f}"


def stations(
    name: str, pitch_m: float, side: int, depth: float, area: float, muons: float = 0.0, *, triangular: bool = True,
    hexagon: bool = False,
) -> DetectorArray:  # fmt: skip
    """Return side x side stations on a lattice, or those of them within a hexagon about the middle one.

    Up to 16 x 16 stations stand in a grid of KASCADE's form.
    """
    cells = max(side, 16)
    i, j = np.meshgrid(np.arange(cells, dtype=float), np.arange(cells, dtype=float))
    x, y = (i + 0.5 * (j % 2), np.sqrt(3) / 2 * j) if triangular else (i, j)
    there = (i < side) & (j < side)
    if hexagon:
        middle = (side // 2, side // 2)
        dx, dy = x - x[middle], y - y[middle]
        there &= np.maximum(np.abs(dy) / np.sqrt(0.75), np.abs(dx) + np.abs(dy) / np.sqrt(3)) < side / 2
    x, y = x * pitch_m, y * pitch_m
    x, y = np.where(there, x - x[there].mean(), 0.0), np.where(there, y - y[there].mean(), 0.0)
    card = ArrayCard(depth_g_cm2=depth)
    return DetectorArray(name, pitch_m, x, y, area * there, muons * there, np.zeros(x.shape), card)


def cases() -> list[ArrayCase]:
    """Return the ten arrays."""
    no_muons = replace(KASCADE, name="KASCADE, no muon detectors", muon_area_m2=0.0 * KASCADE.muon_area_m2)
    muons = replace(KASCADE, name="KASCADE, muons alone", electron_area_m2=0.0 * KASCADE.electron_area_m2)
    apart = stations("400 scintillators", 15.0, 16, 606.0, 1.0, triangular=False)
    below = ((np.arange(16)[:, None] % 2 == 0) & (np.arange(16) % 2 == 0)) * 36.0
    made = [
        stations("four plates on roofs", 10.0, 2, 1033.0, 0.5, triangular=False),
        stations("16 stations, sea level", 15.0, 4, 1033.0, 2.0, 2.0, triangular=False),
        KASCADE, no_muons, muons,
        stations("dense carpet, 2,200 m", 8.0, 16, 800.0, 1.0),
        replace(apart, name="dense, high, large muon detectors", muon_area_m2=below.astype(float)),
        stations("37 stations, 3,000 m", 30.0, 7, 700.0, 3.0, hexagon=True),
        stations("81 tanks, as on ice", 125.0, 9, 690.0, 5.4),
        stations("1,600 tanks, 1.5 km", 1500.0, 40, 870.0, 10.0),
    ]  # fmt: skip
    return [ArrayCase(array.name, array) for array in made]


def nkg(r_m: np.ndarray, age: np.ndarray, moliere_m: float) -> np.ndarray:
    """Return the NKG function of unit integral, per m2."""
    gammaln = special_functions(np).gammaln
    norm = np.exp(gammaln(4.5 - age) - gammaln(age) - gammaln(4.5 - 2 * age)) / (2 * np.pi * moliere_m**2)
    x = np.maximum(r_m, 1.0) / moliere_m
    return norm * x ** (age - 2) * (1 + x) ** (age - 4.5)


@dataclass(frozen=True)
class DrawnShowers:
    """Drawn showers and their truth."""

    grids: np.ndarray
    scalars: np.ndarray
    times_ns: np.ndarray
    core: np.ndarray
    lg_ne: np.ndarray
    lg_rho_opt: np.ndarray
    """Of the electrons that the fit counts, per m2 at two thirds of the spacing."""

    @property
    def hits(self) -> np.ndarray:
        """Stations hit, (n,)."""
        return (self.grids > 0).any(axis=-1).sum(axis=(1, 2))


def draw(array: DetectorArray, n: int, lg_ne: tuple[float, float], seed: int) -> DrawnShowers:
    """Draw showers of sizes between ``lg_ne``."""
    rng, response, depth = np.random.default_rng(seed), array.response, array.depth_g_cm2 or 1023.0
    there = array.has_station
    half = [CORES * np.abs(plane[there]).max() + 0.2 * array.pitch_m for plane in (array.x_m, array.y_m)]
    core = rng.uniform(-1, 1, (n, 2)) * half
    size, zenith = rng.uniform(*lg_ne, n), np.rad2deg(np.arcsin(MAX_SINE * np.sqrt(rng.random(n))))
    azimuth, age = 360 * rng.random(n), np.clip(rng.normal(MEAN_AGE, AGE_SPREAD, n), 0.8, 1.6)
    lg_nmu = MUONS_PER_ELECTRON[0] * size + MUONS_PER_ELECTRON[1] + rng.normal(0, 0.15, n)
    x, y, cosine = array.x_m.ravel(), array.y_m.ravel(), np.cos(np.deg2rad(zenith))[:, None]
    r = axis_distance(x, y, core[:, :1], core[:, 1:], zenith[:, None], azimuth[:, None])
    density = float(air_density(depth))
    moliere_m = 10.0 * MOLIERE_G_CM2 / density
    electrons = 10 ** size[:, None] * nkg(r, age[:, None], moliere_m)
    wide = 420.0 * float(air_density(1023.0)) / density

    def muon_density(r: np.ndarray) -> np.ndarray:
        shape = (np.maximum(r, 1.0) / wide) ** -0.7 * (1 + r / wide) ** -3.2
        return 10 ** lg_nmu[:, None] * float(muon_normalisation(1.3, wide)) * shape

    muons, far = muon_density(r), np.array([[array.optimum_m]])
    # What is no muon detector's counts as electrons.
    optimum = 10 ** size[:, None] * nkg(far, age[:, None], moliere_m) + muon_density(far) * (not array.has_muon.any())
    n_e, n_m = (rng.poisson(one * array.electron_area_m2.ravel() * cosine) for one in (electrons, muons))
    below = rng.poisson(muons * array.muon_area_m2.ravel() * cosine)
    e = np.where(n_e + n_m > 0, rng.gamma(np.maximum(n_e + n_m, 1e-9)), 0.0)
    m = np.where(below > 0, rng.gamma(np.maximum(below / 0.17, 1e-9)) * 0.17, 0.0)
    e, m = (np.where(one < THRESHOLD, 0.0, one) / cosine for one in (e, m))
    grids = np.stack([e * response.electron_deposit_mev, m * response.muon_deposit_mev], axis=-1)
    front = FrontModel()
    sine = np.sin(np.deg2rad(zenith))[:, None]
    u, v = sine * np.cos(np.deg2rad(azimuth))[:, None], sine * np.sin(np.deg2rad(azimuth))[:, None]
    late = rng.exponential(front.late_ns(r)) / np.maximum(n_e + n_m + below, 1)
    times = -(u * x + v * y) / LIGHT_M_PER_NS + r**2 / (2 * LIGHT_M_PER_NS * front.curvature_m) + late
    times = np.where((e > 0) | (m > 0), times + rng.normal(0, CLOCK_NS, r.shape), np.nan)
    scalars = np.stack([0.9 * size + 10.8, zenith, azimuth, size, lg_nmu], axis=1).astype(np.float32)
    plane = (n, *array.grid_shape[:2])
    return DrawnShowers(
        grids.reshape(*plane, 2).astype(np.float32), scalars, times.reshape(plane).astype(np.float32), core, size,
        np.log10(optimum[:, 0] / response.gamma_fraction),
    )  # fmt: skip


def least_hits(array: DetectorArray) -> int:
    """Return how many stations a shower has to hit."""
    return min(LEAST_HITS, 3 * array.n_stations // 4)


def least_size(array: DetectorArray, seed: int) -> float:
    """Return lg N_e from which half of the showers hit so many stations."""
    for lg_ne in np.arange(3.0, 12.0, 0.25):
        if (draw(array, 100, (lg_ne, lg_ne), seed).hits >= least_hits(array)).mean() >= LEAST_SHARE:
            return float(lg_ne)
    raise ValueError(f"{array.name}: no shower hits {least_hits(array)} stations")


def half_width(values: np.ndarray) -> float:
    """Return half of what the central 68 % span."""
    low, high = np.nanquantile(values, (0.16, 0.84))
    return float(high - low) / 2


def space_angle_deg(
    zenith_deg: np.ndarray, azimuth_deg: np.ndarray, true_zenith_deg: np.ndarray, true_azimuth_deg: np.ndarray
) -> np.ndarray:
    """Return the angle between two directions, (N,) deg, by the haversine formula, which is exact for small ones."""
    zenith, azimuth, other, other_azimuth = map(
        np.radians, (zenith_deg, azimuth_deg, true_zenith_deg, true_azimuth_deg)
    )
    turned = np.sin((azimuth - other_azimuth) / 2) ** 2
    half = np.sin((zenith - other) / 2) ** 2 + np.sin(zenith) * np.sin(other) * turned
    return np.asarray(np.degrees(2 * np.arcsin(np.sqrt(np.minimum(half, 1.0)))))


def particle(array: DetectorArray, showers: DrawnShowers, taken: np.ndarray, channel: int) -> str:
    """Return the single particle that signals tell, in units of the true one."""
    there, true = (
        (array.has_muon, array.response.muon_deposit_mev) if channel
        else (array.has_electron, array.response.electron_deposit_mev)
    )  # fmt: skip
    found = calibrate(array, showers.grids[taken], channel, showers.scalars[taken, 1]) if there.any() else None
    return "–" if found is None or found.particle is None else f"{found.particle / true:.2f}"


def measured(case: ArrayCase, n: int, seed: int) -> str:
    """Return the row of one array."""
    array, lowest = case.array, least_size(case.array, seed)
    showers = draw(array, 3 * n, (lowest, lowest + DECADES), seed + 1)
    taken = np.flatnonzero(showers.hits >= least_hits(array))[:n]
    table = compute_events(
        showers.grids[taken], showers.scalars[taken], None, GROUPS, array, times_ns=showers.times_ns[taken]
    )
    column = {name: table[name].to_numpy() for name in table.columns}
    core = np.hypot(*(column[f"fit_core_{axis}_m"] - showers.core[taken, k] for k, axis in enumerate("xy")))
    sizes = "–"
    if "fit_lg_ne" in column:
        gap = column["fit_lg_ne"] - showers.lg_ne[taken]
        sizes = f"{np.nanmedian(gap):+.2f} ± {half_width(gap):.2f}"
    density = "–"
    if "fit_lg_rho_opt" in column:
        gap = column["fit_lg_rho_opt"] - showers.lg_rho_opt[taken]
        density = f"{np.nanmedian(gap):+.2f} ± {half_width(gap):.2f}"
    muons = "–"
    if "fit_lg_nmu" in column:
        gap = column["fit_lg_nmu"] - showers.scalars[taken, 4]
        muons = f"{np.nanmedian(gap):+.2f} ± {half_width(gap):.2f}"
    zenith_deg, azimuth_deg = showers.scalars[taken, 1], showers.scalars[taken, 2]
    away = space_angle_deg(column["front_zenith_deg"], column["front_azimuth_deg"], zenith_deg, azimuth_deg)
    halves = [
        values <= np.median(values) if low else values > np.median(values)
        for values in (showers.lg_ne[taken], zenith_deg) for low in (True, False)
    ]  # fmt: skip
    whole, *parts = (float(np.nanquantile(away[one], 0.68)) for one in (np.ones(len(away), dtype=bool), *halves))
    directions = f"{whole:.1f} | {' | '.join(f'{one:.1f}' for one in parts)}"
    first = front_of(array, showers.grids[taken], showers.times_ns[taken])
    converted = space_angle_deg(*first.zenith_azimuth_deg(), zenith_deg, azimuth_deg)
    directions += f" | {float(np.nanquantile(converted, 0.68)):.1f}"
    error, rng = np.nanmedian(core) / array.pitch_m, np.random.default_rng(seed)
    low, high = np.quantile(
        [np.nanmedian(rng.choice(core, core.size)) / array.pitch_m for _ in range(200)], (0.025, 0.975)
    )
    return (
        f"| {case.name} | {case.facts} | {lowest:.2f} to {lowest + DECADES:.2f} | {error:.2f} [{low:.2f}, {high:.2f}] "
        f"| {sizes} | {density} | {muons} | {directions} | {100 * np.nan_to_num(column['fit_converged']).mean():.0f} "
        f"| {particle(array, showers, taken, 0)} | {particle(array, showers, taken, 1)} |"
    )


HEAD = (
    "| array | spacing, m | stations | muon detectors | depth, g/cm2 | lg Ne | median core error, spacings | lg Ne "
    "| lg rho(r_opt) | lg Nmu | direction, deg | small | large | steep | inclined | by convert, deg "
    "| fits converged, % | e/gamma particle | muon particle |"
)


def main() -> None:
    """Draw, fit, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=300, help="showers per array (default 300)")
    parser.add_argument("--seed", type=int, default=63)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    rows = [HEAD, "|" + "---|" * HEAD.count(" |")]
    print("\n".join(rows), flush=True)
    for case in cases():
        rows.append(measured(case, options.events, options.seed))
        print(rows[-1], flush=True)
    if options.store:
        words = (
            f"{options.events} showers each, that hit 8 stations or more (4 plates: 3). lg Ne, lg Nmu: median of fit "
            "minus truth ± half the width of the central 68 %. Direction: 68 % of the fronts (clock 2 ns) lie within "
            "this angle of the true one: of all, of the half with fewer and more electrons, less and more inclined; of "
            "all where the front is about the weighted mean of the stations, as in convert, not about the fitted core. "
            "Particles: the deposit of a single one that doctor finds over the true one, with an error of up to 0.04."
        )
        store("arrays", "The fits at ten arrays", "\n".join([words, "", *rows]), worlds=())


if __name__ == "__main__":
    main()
