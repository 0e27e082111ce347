"""How a station answers to particles, as far as publications and the data themselves tell.

These constants belong to the fits. They are deliberately not imported from the simulation: a fit that knew the
simulation's own constants would look better than it is. ``benchmarks/resolution.py`` shows what it costs when
they are wrong.

Sources: [K] T. Antoni et al., Nucl. Instrum. Meth. A 513 (2003) 490 (detectors, lateral energy correction);
[D] deduced from public KASCADE data: deposits per reconstructed particle, smallest non-zero deposits;
[S] statistics of a compound Poisson process: a sum of N deposits with N Poisson and deposits of relative variance v
has the variance (1 + v) of a Poisson variable in units of the mean deposit.
"""

from __future__ import annotations

ELECTRON_DEPOSIT_MEV = 9.5
"""Mean deposit of an electron that crosses an e/gamma detector vertically [D]."""
MUON_DEPOSIT_MEV = 8.4
"""Mean deposit of a muon that crosses a muon detector vertically [D]."""

GAMMA_FRACTION = 1.11
"""Deposit per electron far from the axis over that of the electron alone: photons of the shower convert [K, D]."""
CORE_EXCESS = 1.30
"""Further deposit per electron on the axis, where energetic photons and hadrons hit [K, D]."""
CORE_EXCESS_SCALE_M = 8.5
"""Distance at which that excess has fallen to 1/e [K, D]."""

ELECTRON_DISPERSION = 2.1
"""Variance over mean of a deposit by electrons, in units of the mean deposit: nearly exponential deposits [S, D]."""
MUON_IN_ELECTRON_DISPERSION = 1.2
"""The same for muons in the e/gamma channel [S, D]."""
MUON_DISPERSION = 1.17
"""The same in the muon channel [S, D]."""

ELECTRON_THRESHOLD_MEV = 3.0
"""Smallest deposit an e/gamma station reports [D]."""
MUON_THRESHOLD_MEV = 3.9
"""Smallest deposit a muon station reports [D]."""
SATURATION_MEV = 30_000.0
"""From here on an e/gamma deposit is a lower limit only [D]."""
MUON_SATURATION_MEV = 15_000.0
"""From here on a muon deposit is a lower limit only [D]."""

BELOW_THRESHOLD_SHARE = 0.035
"""Share of the deposit lost to the threshold where single electrons hit: nearly exponential deposits [S]."""
ELECTRON_MISS = 0.25
"""Probability that a single electron stays below the threshold [S]."""
MUON_MISS = 0.03
"""Probability that a single muon stays below the threshold [S]."""

ELECTRON_STRAYS = 0.015
"""Background particles per e/gamma station and event [D]."""
MUON_STRAYS = 0.008
"""Background particles per muon station and event [D]."""

PUNCH_THROUGH = 0.14
"""Deposits in a muon detector per electron above it, on the axis, in units of a muon's deposit [D, rough]."""
PUNCH_THROUGH_SCALE_M = 13.0
"""Distance at which punch-through has fallen to 1/e [D, rough]."""
PUNCH_THROUGH_DISPERSION = 2.9
"""Variance over mean of punch-through, in muon deposits: exponential deposits of 12 MeV [S, D]."""
PUNCH_THROUGH_UNCERTAINTY = 1.0
"""Relative uncertainty of the expected punch-through: where it dominates, a station says nothing about muons."""

MUON_SHAPE_MEAN = 1.3
"""Mean shape parameter of the muon lateral distribution [K: T. Antoni et al., Astropart. Phys. 14 (2001) 245]."""
MUON_SHAPE_SPREAD = 0.15
"""Prior spread of that shape; only showers with many muons say more."""
AGE_MEAN = 1.0
"""Mean lateral age of the electrons [K: W. D. Apel et al., Astropart. Phys. 24 (2006) 467]."""
AGE_SPREAD = 0.3
"""Prior spread of the age: wide, and felt only by showers with few hits."""
