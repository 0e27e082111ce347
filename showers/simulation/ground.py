"""What an array's place and size mean for the simulation, whose constants are fitted at KASCADE."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammainc

from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.atmosphere import air_density
from showerstack.showers.card import CARD_FILE, DEPTH_TOLERANCE_G_CM2, MUON_THRESHOLD, THRESHOLD
from showerstack.showers.response import PUBLISHED
from showerstack.showers.simulation.monte_carlo import AT_KASCADE, FITTED, GROUND_DEPTH, check_depth, coefficients
from showerstack.showers.simulation.settings import LARGEST_MEV, Settings


@dataclass(frozen=True)
class GroundScales:
    """The ground that an array stands on."""

    depth_g_cm2: float
    """Vertical atmospheric depth."""
    electron_scale: float
    """Distances from the axis at which electrons fall alike, over KASCADE's."""
    muon_scale: float
    """The same of muons."""


KASCADES = GroundScales(GROUND_DEPTH, 1.0, 1.0)


SCATTERED_ABOVE = 2 * 37.0
"""Matter between the ground and where its electrons were scattered, g/cm2."""


@functools.cache
def ground_at(depth_g_cm2: float) -> GroundScales:
    """Return the ground at a vertical depth, g/cm2.

    Multiple scattering spreads electrons over a Moliere radius, which is a length over the air's density (J. Nishimura,
    Handbuch der Physik XLVI/2 (1967) 1), where they were scattered: two cascade units above the ground (K. Greisen,
    Ann. Rev. Nucl. Sci. 10 (1960) 63). Muons spread in proportion to the height above the ground at which they are
    made, with the transverse momentum that they get there: the cascade Monte Carlo's mean for protons of 10^15.5 eV.
    """
    if depth_g_cm2 == GROUND_DEPTH:
        return KASCADES
    here = coefficients(FITTED, depth_g_cm2)
    density = float(air_density(GROUND_DEPTH - SCATTERED_ABOVE) / air_density(depth_g_cm2 - SCATTERED_ABOVE))
    return GroundScales(depth_g_cm2, density, float(here.rows["hM"][1][0] / AT_KASCADE.rows["hM"][1][0]))


def ground_of(array: DetectorArray) -> GroundScales:
    """Return an array's ground; KASCADE's where its card does not say."""
    return ground_at(GROUND_DEPTH if array.depth_g_cm2 is None else array.depth_g_cm2)


def check_ground(array: DetectorArray) -> None:
    """Refuse an array whose card says no depth, or one that showers cannot be simulated at."""
    if array.depth_g_cm2 is None:
        raise InputError(
            f"array {array.name} does not say how high it stands: give depth_g_cm2 or altitude_m in {CARD_FILE} "
            "beside its stations"
        )
    check_depth(array.depth_g_cm2)


def standing_at(array: DetectorArray, depth_g_cm2: float | None) -> DetectorArray:
    """Return an array at a depth, g/cm2, that its card does not say; unchanged if that is None.

    Raises
    ------
    InputError
        If the card says another depth, or showers cannot be simulated at it.
    """
    known = array.depth_g_cm2
    if depth_g_cm2 is not None:
        if known is not None and abs(known - depth_g_cm2) > DEPTH_TOLERANCE_G_CM2:
            raise InputError(
                f"the card of array {array.name} says a depth of {known:g} g/cm2, not {depth_g_cm2:g}: leave one out"
            )
        array = replace(array, card=replace(array.card, depth_g_cm2=depth_g_cm2)) if known is None else array
    ground_of(array)
    return array


def covering(settings: Settings, array: DetectorArray) -> Settings:
    """Return the world with cores as far from the centre of an array, in units of its side, as KASCADE's are.

    Without muon detectors no event is lost for want of muons. Clusters that are larger need
    more hit stations, so that strays alone trigger no more often than at KASCADE. Elsewhere than there
    photons come from zenith angles of up to :data:`MOST_ZENITH_DEG`.

    Raises
    ------
    InputError
        If a world's hadrons come from larger ones.
    """
    most_deg = 90.0 if array == KASCADE else MOST_ZENITH_DEG
    if not array.has_electron.any():
        raise InputError(f"array {array.name} has no e/gamma detectors, whose signals trigger in the simulation")
    if settings.spectrum.hadron_zenith_max_deg > most_deg:
        raise InputError(
            f"hadron_zenith_max_deg = {settings.spectrum.hadron_zenith_max_deg:g}: showers of zenith angles beyond "
            f"{MOST_ZENITH_DEG:g} deg are simulated for KASCADE's public sets alone, whose photons have them"
        )
    scale = array.half_side_m / KASCADE.half_side_m
    muons = {} if array.n_muon_detectors else {"trigger__lg_nmu_min": 0.0}
    return settings.changed(
        spectrum__photon_zenith_max_deg=min(settings.spectrum.photon_zenith_max_deg, most_deg),
        spectrum__core_radius_m=settings.spectrum.core_radius_m * scale,
        trigger__core_max_m=settings.trigger.core_max_m * scale,
        trigger__stations=trigger_stations(settings, array, _noise_at_kascade(settings)),
        **muons,
    )


MOST_ZENITH_DEG = 50.0
"""Up to here showers are those of the Monte Carlo, to 0.05 in lg Ne above 1023 g/cm2."""
LEAST_SPREAD = 0.05
"""Relative variance of a particle's signal below which none is simulated."""
KASCADE_THRESHOLD_MEV = 3.0
"""Threshold that the fits' response is made for."""
BY_FACTOR = {
    "electron_strays": "electron_stray", "muon_strays": "muon_stray", "punch_through": "punch",
    "punch_through_scale_m": "punch_range_m", "core_excess": "photon_share_core",
    "core_excess_scale_m": "photon_core_m",
}  # fmt: skip
"""Keys of ``[response]`` and the constants of the simulation that move by the same factor from KASCADE's."""
BY_SPREAD = {
    "electron_dispersion": "electron_shape", "muon_dispersion": "muon_shape",
    "muon_in_electron_dispersion": "muon_in_electron_shape",
}  # fmt: skip
"""Keys that are variances over means, 1 + 1 / shape of the simulated Gamma distribution."""


def answering(settings: Settings, array: DetectorArray, most_mev: float = LARGEST_MEV) -> Settings:
    """Return the world whose stations answer as ``[response]`` of an array's card says, up to ``most_mev``.

    The card's constants are those of the fits; the simulation's move by the same factor. Shares lost below a threshold
    follow from thresholds, and ages are those of the showers.
    """
    given, detector, response = array.card.response, settings.detector, array.response
    changes: dict[str, float] = {}
    for channel, cap in (("electron", "saturation_mev"), ("muon", "muon_saturation_mev")):
        deposit = f"{channel}_deposit_mev"
        factor = getattr(response, deposit) / getattr(PUBLISHED, deposit)
        changes |= {f"{channel}_{name}": factor for name in ("mev", "threshold_mev") if deposit in given}
        if deposit in given or cap in given:
            changes[f"{channel}_cap_mev"] = getattr(response, cap) / getattr(PUBLISHED, cap)
    if threshold := given.get(THRESHOLD):
        changes["electron_threshold_mev"] = threshold / KASCADE_THRESHOLD_MEV
    if threshold := given.get(MUON_THRESHOLD):
        changes["muon_threshold_mev"] = threshold / detector.muon_threshold_mev
    for key, name in BY_SPREAD.items():
        if key in given:
            changes[name] = (getattr(PUBLISHED, key) - 1.0) / max(given[key] - 1.0, LEAST_SPREAD)
    for key, name in BY_FACTOR.items():
        if key in given:
            changes[name] = given[key] / getattr(PUBLISHED, key)
    moved = {name: min(getattr(detector, name) * factor, most_mev) for name, factor in changes.items()}
    if "gamma_fraction" in given:  # of photons and the electron together
        moved["photon_share"] = max(
            (1 + detector.photon_share) * given["gamma_fraction"] / PUBLISHED.gamma_fraction - 1, 0
        )
    return settings.changed(**{f"detector__{name}": value for name, value in moved.items()})


MOST_STATIONS = 16
"""The simulation's limit."""


def trigger_stations(settings: Settings, array: DetectorArray, noise: float) -> int:
    """Return how many hit stations of a cluster trigger: those of the world, or more where strays alone would.

    More are asked for until strays alone trigger with a probability of at most ``noise``. Strays in a cluster are
    Poisson distributed; P(N >= k) of mean m is the regularised gamma function P(k, m).
    """
    for stations in range(settings.trigger.stations, MOST_STATIONS):
        if _noise(settings, array, stations) <= noise:
            return stations
    return MOST_STATIONS


def _noise(settings: Settings, array: DetectorArray, stations: int) -> float:
    mean = np.bincount(array.cluster[array.has_electron]) * settings.detector.electron_stray
    return float(gammainc(stations, mean).sum())


def _noise_at_kascade(settings: Settings) -> float:
    return _noise(settings, KASCADE, settings.trigger.stations)


def check_trigger(settings: Settings, array: DetectorArray) -> None:
    """Refuse an array of a world as :func:`covering` returns it whose clusters are so large that strays trigger them.

    Raises
    ------
    InputError
        If strays alone trigger with a probability above :data:`MOST_NOISE`, whatever a cluster needs.
    """
    if settings.trigger.stations == MOST_STATIONS and (noise := _noise(settings, array, MOST_STATIONS)) > MOST_NOISE:
        largest = int(np.bincount(array.cluster[array.has_electron]).max())
        raise InputError(
            f"array {array.name}: stray particles alone would trigger its cluster of {largest:,} stations with a "
            f"probability of {min(noise, 1.0):.0%}: give a DetectorArray with smaller clusters (docs/simulation.md)"
        )


MOST_NOISE = 0.3
"""Probability of a trigger by strays alone above which an array is refused."""
