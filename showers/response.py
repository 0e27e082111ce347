"""How a station answers to particles, as far as publications and the data themselves tell: KASCADE's.

An array's card (:mod:`showerstack.showers.card`) may say otherwise. These constants belong to the fits. They are
deliberately not imported from the simulation: a fit that knew the simulation's own constants would look better than it
is. ``benchmarks/fits/resolution.py`` shows what it costs when they are wrong. Some agree all the same, having been
taken from the same public facts: benchmarks/results/shared_constants.md names them and moves each in the simulation.

Sources: [K] T. Antoni et al., Nucl. Instrum. Meth. A 513 (2003) 490 (detectors, lateral energy correction); [L] T.
Antoni et al., Astropart. Phys. 14 (2001) 245; W. D. Apel et al., Astropart. Phys. 24 (2006) 467 (lateral
distributions); [D] deduced from public KASCADE data: deposits per reconstructed particle, smallest deposits; [S]
statistics of a compound Poisson process: a sum of N deposits with N Poisson and deposits of relative variance v has the
variance (1 + v) of a Poisson variable in units of the mean deposit.
"""

from __future__ import annotations

from typing import NamedTuple


class StationResponse(NamedTuple):
    """Constants of the detector's response and priors of the fits.

    A named tuple, so that compiled kernels take it as an argument and a study can fit with other values.
    """

    electron_deposit_mev: float = 9.5
    """Mean deposit of an electron that crosses an e/gamma detector vertically [D]."""
    muon_deposit_mev: float = 8.4
    """Mean deposit of a muon that crosses a muon detector vertically [D]."""
    gamma_fraction: float = 1.11
    """Deposit per electron far from the axis over that of the electron alone: photons of the shower convert [K, D]."""
    core_excess: float = 1.30
    """Further deposit per electron on the axis, where energetic photons and hadrons hit [K, D]."""
    core_excess_scale_m: float = 8.5
    """Distance at which that excess has fallen to 1/e [K, D]."""
    electron_dispersion: float = 2.1
    """Variance over mean of electrons' deposits, in units of the mean deposit: nearly exponential deposits [S, D]."""
    muon_in_electron_dispersion: float = 1.2
    """The same for muons in the e/gamma channel [S, D]."""
    muon_dispersion: float = 1.17
    """The same in the muon channel [S, D]."""
    saturation_mev: float = 30_000.0
    """From here on an e/gamma deposit is a lower limit only [D]."""
    muon_saturation_mev: float = 15_000.0
    """From here on a muon deposit is a lower limit only [D]."""
    lost_share: float = 0.035
    """Share of the deposit lost to the 3 MeV threshold where single electrons hit: nearly exponential deposits [S]."""
    muon_miss: float = 0.03
    """Probability that a single muon stays below the threshold of the muon detector [S]."""
    electron_strays: float = 0.015
    """Background particles per e/gamma station and event [D]."""
    muon_strays: float = 0.008
    """Background particles per muon station and event [D]."""
    punch_through: float = 0.14
    """Punch-through in a muon detector per electron above it, on the axis, in units of a muon's deposit [D, rough]."""
    punch_through_scale_m: float = 13.0
    """Distance at which punch-through has fallen to 1/e [D, rough]."""
    punch_through_dispersion: float = 2.9
    """Variance over mean of punch-through, in muon deposits: exponential deposits of 12 MeV [S, D]."""
    punch_through_uncertainty: float = 1.0
    """Relative uncertainty of the expected punch-through: where it dominates, a station says nothing about muons."""
    muon_age_mean: float = 1.3
    """Mean age s_mu of the muon lateral distribution, nearly vertical showers with lg N_mu = 4.5 [L]."""
    muon_age_size: float = -0.094
    """Its slope in lg N_mu: larger showers are steeper, having come deeper [D]."""
    muon_age_inclination: float = 0.45
    """Its slope in sec(zenith) [D]."""
    muon_age_spread: float = 0.05
    """Prior spread of that age, 0.04 to 0.06: a shower's own muons say more only where there are hundreds [D]."""
    age_mean: float = 1.0
    """Mean lateral age of the electrons [L]."""
    age_spread: float = 0.3
    """Prior spread of the age: wide, and felt only by showers with few hits."""
    extent_m: float = 0.6
    """Rms extent of a detector about its centre: 0.5 m of 1.57 m2, 0.7 m of 3.14 m2 [K]."""
    core_spread_m: float = 60.0
    """Prior spread of the core's coordinates: cores of the data lie within 91 m of the centre (45 m rms) [D]."""


PUBLISHED = StationResponse()
"""KASCADE's."""
