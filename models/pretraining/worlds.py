"""Randomised worlds: every uncertain constant of the simulation drawn from a prior.

The priors are absolute: where the default world lies within them does not matter. Their widths cover the published
values, both fits to the real data that this project has made, and the size of the guesses; a prior in ``lg`` units
multiplies. Positions of a world within its priors, in widths, are inputs of the network (:data:`N_WORLD` numbers).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showers.simulation.settings import Settings

LIMIT = 2.2
"""Constants are drawn within so many widths of the centre."""


@dataclass(frozen=True)
class Prior:
    """A constant's prior: normal around ``centre`` (of its logarithm with ``factor``), cut at :data:`LIMIT` widths."""

    name: str
    """``section__field`` of :class:`showers.simulation.settings.Settings`."""
    centre: float
    width: float
    factor: bool = False
    """Whether the width is one of ln(value)."""
    low: float = -np.inf
    high: float = np.inf

    def value(self, position: float) -> float:
        """Return the constant at a position in widths from the centre."""
        shift = self.width * position
        value = self.centre * np.exp(shift) if self.factor else self.centre + shift
        return float(np.clip(value, self.low, self.high))


PRIORS: tuple[Prior, ...] = (
    Prior("cascade__xmax_scale", 0.75, 0.15, low=0.2),
    Prior("cascade__muon_scale", 0.87, 0.12, low=0.2),
    Prior("cascade__size_scale", 0.67, 0.12, low=0.2),
    Prior("cascade__lg_ne_offset", 0.05, 0.08),
    Prior("cascade__lg_ne_mass", 0.055, 0.03),
    Prior("cascade__lg_ne_energy", -0.015, 0.03),
    Prior("cascade__lg_ne_inclination", 0.6, 0.5),
    Prior("cascade__lg_nmu_offset", 0.08, 0.08),
    Prior("cascade__lg_nmu_mass", 0.022, 0.015),
    Prior("cascade__lg_nmu_energy", -0.004, 0.025),
    Prior("cascade__lg_nmu_inclination", -0.03, 0.15),
    Prior("cascade__photon_lg_ne_offset", 0.1, 0.1),
    Prior("cascade__photon_lg_ne_inclination", 0.15, 0.3),
    Prior("cascade__photon_lg_nmu_offset", -0.5, 0.35),
    Prior("cascade__photon_muon_spread", 0.05, 0.05, low=0.0),
    Prior("cascade__photonuclear_scale", 1.0, 0.4, factor=True),
    Prior("cascade__epos_xmax", 8.0, 6.0),
    Prior("cascade__epos_lg_nmu", 0.015, 0.015),
    Prior("cascade__sibyll_xmax", 12.0, 6.0),
    Prior("cascade__sibyll_lg_nmu", 0.03, 0.02),
    Prior("shape__electron_r0_m", 39.0, 2.0),
    Prior("shape__age_offset", 0.955, 0.05),
    Prior("shape__age_longitudinal", 0.88, 0.2),
    Prior("shape__age_depth", 0.06, 0.025),
    Prior("shape__age_energy", -0.035, 0.03),
    Prior("shape__age_inclination", -0.2, 0.3),
    Prior("shape__age_spread", 0.035, 0.025, low=0.0),
    Prior("shape__muon_age_offset", 0.06, 0.09),
    Prior("shape__muon_age_spread", 0.03, 0.025, low=0.0),
    Prior("shape__clump_sigma", 0.07, 0.35, factor=True),
    Prior("shape__clump_iron_factor", 2.2, 0.3, factor=True),
    Prior("detector__electron_mev", 8.1, 0.6),
    Prior("detector__electron_shape", 0.76, 0.12),
    Prior("detector__muon_in_electron_shape", 5.0, 1.0),
    Prior("detector__photon_share", 0.276, 0.06),
    Prior("detector__photon_share_core", 1.27, 0.4),
    Prior("detector__photon_core_m", 10.0, 2.5),
    Prior("detector__electron_threshold_mev", 1.9, 0.7, low=0.3),
    Prior("detector__electron_stray", 0.025, 0.5, factor=True),
    Prior("detector__electrons_per_muon", 0.3, 0.3, low=0.0),
    Prior("detector__muon_mev", 8.15, 0.4),
    Prior("detector__muon_shape", 6.7, 1.6),
    Prior("detector__muon_threshold_mev", 3.5, 0.6),
    Prior("detector__muon_stray", 0.004, 0.6, factor=True),
    Prior("detector__punch", 0.12, 0.35, factor=True),
    Prior("detector__punch_range_m", 15.2, 2.5),
    Prior("detector__punch_mev", 12.0, 1.5),
    Prior("detector__punch_photon", 0.15, 0.7, factor=True),
    Prior("detector__punch_photon_range_m", 8.0, 0.35, factor=True),
    Prior("detector__dead", 0.0, 0.012, low=0.0),
    Prior("spectrum__index", 2.0, 0.07),
    Prior("spectrum__low_share", 0.6, 0.15, low=0.0, high=1.0),
    Prior("spectrum__contamination", 0.003, 0.4, factor=True),
    Prior("spectrum__protons_per_photon", 4.0, 0.7, factor=True),
    Prior("spectrum__photon_hard_share", 0.06, 0.03, low=0.0),
    Prior("spectrum__photon_hard_lg_energy_min", 15.6, 0.25),
    Prior("spectrum__photon_zenith_power", 0.75, 0.2),
    Prior("reconstruction__core_m", 2.16, 0.4),
    Prior("reconstruction__angle_deg", 0.33, 0.07),
    Prior("reconstruction__lg_nmu_error", 0.02, 0.02, low=0.0),
    Prior("reconstruction__age_error", 0.01, 0.015, low=0.0),
    Prior("reconstruction__muon_round", 0.1, 0.08),
    Prior("reconstruction__min_muons", 250.0, 0.45, factor=True),
    Prior("reconstruction__muon_failure", 0.0075, 0.4, factor=True),
    Prior("reconstruction__muon_loss", 0.0, 0.01, low=0.0),
)
"""Constants without a prior keep the values of :class:`Settings`: published ones, limits and thresholds of cuts."""
N_WORLD = len(PRIORS)

STATIONS = (3, 4, 4, 4, 5)
"""Hit stations that trigger, one of these with equal probability."""


def draw_world(rng: np.random.Generator) -> tuple[Settings, np.ndarray]:
    """Return a world and its position in the priors.

    Returns
    -------
    settings
        Validated settings.
    position
        (N_WORLD,) float32 in widths of the priors, within :data:`LIMIT`.
    """
    position = rng.standard_normal(N_WORLD)
    while (far := np.abs(position) > LIMIT).any():
        position[far] = rng.standard_normal(int(far.sum()))
    values: dict[str, float | int] = {
        prior.name: prior.value(float(x)) for prior, x in zip(PRIORS, position, strict=True)
    }
    values["trigger__stations"] = int(rng.choice(STATIONS))
    return Settings().changed(**values), position.astype(np.float32)
