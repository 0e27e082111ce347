"""Arrays drawn at random for pretraining, and how an array is told to the network.

Some of the blocks of a pretraining for any array are KASCADE's; every other one has stations of its own on ground of
its own. What a network is told of an array are :data:`DESCRIPTION` numbers, inputs beside the constants of the world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from showerstack.runtime.errors import InputError
from showerstack.showers.array import DetectorArray
from showerstack.showers.card import THRESHOLD, ArrayCard
from showerstack.showers.schema import Task
from showerstack.showers.simulation.cascade import develop
from showerstack.showers.simulation.deposits import CLUMP_AMPLITUDE
from showerstack.showers.simulation.detector import read_out
from showerstack.showers.simulation.ground import answering, ground_of, trigger_stations
from showerstack.showers.simulation.primaries import throw_primaries
from showerstack.showers.simulation.settings import Settings

STATIONS = (9, 400)
SPACING_M = (10.0, 150.0)
AREA_M2 = (0.5, 10.0)
MUON_AREA_M2 = (1.0, 30.0)
DEPTH_G_CM2 = (600.0, 1033.0)
THRESHOLD_MEV = (1.0, 12.0)
SATURATION_MEV = (1_500.0, 45_000.0)
ELECTRON_DISPERSION = (1.3, 3.2)
"""Least and largest value that is drawn, of whatever :data:`SEEN` says is the array's own."""
KASCADE_SHARE = 1 / 6
"""Share of blocks that KASCADE sees."""
MUONS = ("none", "some", "all")
"""Which stations have muon detectors, one of these with equal probability."""
OWN_RESPONSE = 0.5
"""Share of arrays whose stations do not answer as KASCADE's do."""
WITH_DEAD, MOST_DEAD = 0.25, 0.05
"""Share of arrays of which some stations are dead, and the largest share of these."""
DEPTH_NOT_SAID = 0.1
"""Share of arrays whose card says no depth: showers come to a ground that fits and network are not told."""
SIDES = (8, 16, 20)
"""Stations stand in a grid of one of these sizes."""
JITTER = 0.25
"""Of irregular arrays: rms displacement of a station along each axis, in spacings."""


@dataclass(frozen=True)
class Told:
    """One number that tells an array, of order one."""

    name: str
    centre: float
    width: float

    def position(self, value: float) -> float:
        """Return the value in widths from the centre."""
        return (value - self.centre) / self.width


DESCRIPTION: tuple[Told, ...] = (
    Told("lg spacing", 1.6, 0.35),
    Told("lg stations", 1.8, 0.45),
    Told("lg half side", 2.2, 0.5),
    Told("lg e/gamma area", 0.35, 0.4),
    Told("share with muon detectors", 0.5, 0.5),
    Told("lg muon area", 0.7, 0.4),
    Told("depth", 820.0, 130.0),
    Told("depth is said", 0.5, 0.5),
    Told("e/gamma dispersion", 2.1, 0.5),
    Told("lost share", 0.1, 0.1),
    Told("lg saturation in particles", 3.3, 0.4),
)
"""Lengths in m, areas in m2 per station, depth in g/cm2; the last three are constants of the fits' response."""
N_ARRAY = len(DESCRIPTION)
SEEN = {
    "stations": STATIONS,
    "spacing_m": SPACING_M,
    "electron_area_m2": AREA_M2,
    "muon_area_m2": MUON_AREA_M2,
    "depth_g_cm2": DEPTH_G_CM2,
    "threshold_mev": THRESHOLD_MEV,
    "saturation_mev": SATURATION_MEV,
    "electron_dispersion": ELECTRON_DISPERSION,
}
"""Ranges of what was drawn, as a card of weights says them."""


def description(array: DetectorArray) -> np.ndarray:
    """Return what a network is told of an array, (N_ARRAY,) float32; 0 for what nobody said, or what is not there."""
    spacing, electron, muon = facts(array)
    depth, response = array.depth_g_cm2, array.response
    values = (
        np.log10(spacing),
        np.log10(array.n_stations),
        np.log10(array.half_side_m),
        None if electron is None else np.log10(electron),
        array.n_muon_detectors / array.n_stations,
        None if muon is None else np.log10(muon),
        depth,
        depth is not None,
        response.electron_dispersion,
        response.lost_share,
        np.log10(response.saturation_mev / response.electron_deposit_mev),
    )
    told = [0.0 if x is None else one.position(float(x)) for one, x in zip(DESCRIPTION, values, strict=True)]
    return np.array(told, dtype=np.float32)


def facts(array: DetectorArray) -> tuple[float, float | None, float | None]:
    """Return the spacing (m) and the mean areas (m2) of an array's e/gamma and muon detectors, None without any."""
    areas = [plane[plane > 0] for plane in (array.electron_area_m2, array.muon_area_m2)]
    electron, muon = (float(one.mean()) if one.size else None for one in areas)
    return spacing_of(array.x_m[array.has_station], array.y_m[array.has_station]), electron, muon


FAR = 2.0
"""Beyond a range by this factor weights are refused."""
FAR_DEPTH_G_CM2 = 100.0
"""The same for the depth, as a difference."""


def outside(array: DetectorArray, seen: Mapping[str, Sequence[float]]) -> tuple[list[str], bool]:
    """Return in what an array lies outside of the ranges that weights have seen, in words, and whether far outside."""
    spacing, electron, muon = facts(array)
    response = array.response
    values = {
        "spacing_m": ("spacing", spacing, "m"),
        "stations": ("stations", array.n_stations, ""),
        "electron_area_m2": ("e/gamma area", electron, "m2"),
        "muon_area_m2": ("muon area", muon, "m2"),
        "depth_g_cm2": ("depth", array.depth_g_cm2, "g/cm2"),
        "electron_dispersion": ("e/gamma dispersion", response.electron_dispersion, ""),
    }
    words, far = [] if electron is not None else ["no e/gamma detectors"], electron is None
    for key, (name, value, unit) in values.items():
        low, high = seen[key]
        if value is None or low * (1 - EDGE_TOLERANCE) <= value <= high * (1 + EDGE_TOLERANCE):
            continue
        words.append(f"{name} {value:.4g} {unit}".strip() + f" (seen: {low:g} to {high:g})")
        beyond = (low - FAR_DEPTH_G_CM2, high + FAR_DEPTH_G_CM2) if key == "depth_g_cm2" else (low / FAR, high * FAR)
        far |= not beyond[0] <= value <= beyond[1]
    return words, far


EDGE_TOLERANCE = 0.01


def check_seen(array: DetectorArray, seen: Mapping[str, Sequence[float]]) -> None:
    """Refuse an array far outside of what weights have seen."""
    words, far = outside(array, seen)
    if far:
        raise InputError(
            f"the pretrained weights for any array know none like {array.title}: {', '.join(words)}; "
            "pretrain --array makes weights for it"
        )


def spacing_of(x_m: np.ndarray, y_m: np.ndarray) -> float:
    """Return the median distance to the nearest station, m."""
    distance = np.hypot(x_m[:, None] - x_m, y_m[:, None] - y_m)
    np.fill_diagonal(distance, np.inf)
    return float(np.median(distance.min(axis=1)))


def draw_array(rng: np.random.Generator) -> DetectorArray:
    """Return stations on a ground, drawn from the ranges above: square, triangular or irregular, round or square."""
    n, spacing = round(log_uniform(rng, STATIONS)), log_uniform(rng, SPACING_M)
    x_m, y_m = _places(rng, n, spacing)
    area = np.full(n, log_uniform(rng, AREA_M2))
    if rng.random() < 0.25:  # as at KASCADE, the inner ones twice as large
        area[np.hypot(x_m, y_m) < 0.6 * np.hypot(x_m, y_m).max()] *= 2.0
    share = {"none": 0.0, "some": rng.uniform(0.2, 0.8), "all": 1.0}[MUONS[rng.integers(len(MUONS))]]
    muon = np.where(rng.permutation(n) < round(share * n), log_uniform(rng, MUON_AREA_M2), 0.0)
    response: dict[str, float] = {}
    if rng.random() < OWN_RESPONSE:
        response = {
            THRESHOLD: log_uniform(rng, THRESHOLD_MEV),
            "saturation_mev": log_uniform(rng, SATURATION_MEV),
            "electron_dispersion": log_uniform(rng, ELECTRON_DISPERSION),
        }
    side = next(side for side in SIDES if n <= side**2)
    own = np.stack((x_m, y_m, area, muon))
    x_m, y_m, area, muon = np.pad(own, ((0, 0), (0, side**2 - n))).reshape(4, side, side)
    array = DetectorArray(
        "drawn",
        spacing_of(*own[:2]),
        x_m,
        y_m,
        area,
        muon,
        np.zeros((side, side)),
        ArrayCard(depth_g_cm2=round(rng.uniform(*DEPTH_G_CM2), 1), response=response),
    )
    if rng.random() < WITH_DEAD:
        array = array.without(np.flatnonzero(rng.random(n) < rng.uniform(0.0, MOST_DEAD)), ())
    return in_clusters(array)


def log_uniform(rng: np.random.Generator, limits: Sequence[float]) -> float:
    """Return a number whose logarithm is uniform between limits."""
    return float(np.exp(rng.uniform(*np.log(limits))))


def _places(rng: np.random.Generator, n: int, spacing_m: float) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of ``n`` stations, (n,) m each, about their centre."""
    form = rng.integers(3)
    steps = np.arange(-24.0, 25.0)
    column, row = (plane.ravel() for plane in np.meshgrid(steps, steps))
    x, y = (column + 0.5 * (row % 2), np.sqrt(0.75) * row) if form == 1 else (column, row)
    middle = rng.uniform(-0.5, 0.5, 2)
    from_middle = np.abs(x - middle[0]), np.abs(y - middle[1])
    outward = np.maximum(*from_middle) if rng.random() < 0.5 else np.hypot(*from_middle)
    nearest = np.argsort(outward, kind="stable")[:n]
    x, y = x[nearest], y[nearest]
    if form == 2:
        x, y = (one + np.clip(JITTER * rng.standard_normal(n), -0.45, 0.45) for one in (x, y))
    return spacing_m * (x - x.mean()), spacing_m * (y - y.mean())


def in_clusters(array: DetectorArray) -> DetectorArray:
    """Return the array with neighbours (4 x 4 spacings, as at KASCADE) that trigger together, if all stations did.

    Stray particles alone would trigger a large array all the time.
    """
    there = array.has_station
    if np.ptp(array.cluster[there]) or array.n_stations <= CLUSTER_SIDE**2:
        return array
    width = CLUSTER_SIDE * facts(array)[0]
    column, row = (np.floor((plane - plane[there].min()) / width) for plane in (array.x_m, array.y_m))
    _, numbers = np.unique((row * (column[there].max() + 1) + column)[there], return_inverse=True)
    cluster = np.zeros(array.cluster.shape, dtype=np.int64)
    cluster[there] = numbers
    changed = replace(array, cluster=cluster)
    changed.__dict__["complete"] = changed if array.complete is array else array.complete
    changed.__dict__["no_muon"] = array.no_muon
    return changed


CLUSTER_SIDE = 4
"""Spacings along a side of what triggers together."""
NOISE_SHARE = 0.03
"""Probability that strays alone trigger, at most."""


def triggering(settings: Settings, array: DetectorArray) -> Settings:
    """Return the world whose stations answer as an array's card says, and trigger on showers."""
    stations = trigger_stations(settings, array, NOISE_SHARE)
    return answering(settings, array).changed(trigger__stations=stations)


PILOTS, BINS = 384, 16
TENTH = 0.1
LG_ENERGY = (14.0, 18.0)


def lowest_energy(task: Task, settings: Settings, array: DetectorArray, rng: np.random.Generator) -> float:
    """Return lg(E/eV) from where a tenth of the showers triggers, at least 14, found with a few hundred showers."""
    flat = settings.changed(
        spectrum__index=1.0, spectrum__low_share=0.0, spectrum__high_share=0.0, spectrum__photon_hard_share=0.0,
        spectrum__lg_energy_min=LG_ENERGY[0], spectrum__lg_energy_max=LG_ENERGY[1],
    )  # fmt: skip
    primaries = throw_primaries(task, PILOTS, "mix", flat.spectrum, rng)
    showers = develop(primaries, flat, rng, None, ground_of(array).depth_g_cm2)
    keys = rng.integers(0, 2**64, size=PILOTS, dtype=np.uint64)
    modes = rng.standard_normal((PILOTS, len(CLUMP_AMPLITUDE), 2))
    fired = read_out(showers, np.arange(PILOTS), flat, keys, modes, array).largest_cluster >= flat.trigger.stations
    order = np.argsort(primaries.lg_energy)
    shares = [float(fired[part].mean()) for part in np.array_split(order, BINS)]
    first = next((k for k, share in enumerate(shares) if share >= TENTH), BINS - 1)
    return float(np.array_split(primaries.lg_energy[order], BINS)[first][0])


def without_depth(array: DetectorArray) -> DetectorArray:
    """Return the array with a card that says no depth, as fits and network are told."""
    hidden = replace(array, card=replace(array.card, depth_g_cm2=None))
    hidden.__dict__["complete"] = hidden if array.complete is array else without_depth(array.complete)
    hidden.__dict__["no_muon"] = array.no_muon
    return hidden
