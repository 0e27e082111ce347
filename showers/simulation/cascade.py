"""How a primary's shower develops: depth of maximum, electron and muon numbers at the ground, lateral shapes.

Fluctuations, tails, couplings and the differences between primaries come from a closed form fitted to a
one-dimensional hadronic cascade Monte Carlo (:mod:`showerstack.showers.simulation.monte_carlo` has its coefficients by
hadronic model and depth). Absolute offsets and overall scales are free (:class:`Cascade`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from showerstack.runtime.rows import Rows
from showerstack.showers.kascade import MASS_NUMBERS
from showerstack.showers.schema import HADRON
from showerstack.showers.simulation.monte_carlo import (
    AT_KASCADE,
    CASCADES,
    GROUND_DEPTH,
    Coefficients,
    coefficients,
)
from showerstack.showers.simulation.primaries import (
    PHOTON,
    PIVOT_LG_A,
    Primaries,
    cascade_numbers,
    model_shift,
)
from showerstack.showers.simulation.settings import Cascade, Settings, Shape

REFERENCE_LG_ENERGY = 15.5
PIVOT_E = -0.3
"""Fitted slopes in energy turn around lg E = 15.2, the typical triggered shower."""
EXPONENTIAL_CAP = 5.5
"""Exponential deviates beyond this are redrawn uniformly below it (Xmax and size, not muons) [m]."""
BELOW_MAXIMUM = 480.0
"""Matter between depth of maximum and ground around which lateral shapes turn, g/cm2."""
MIN_XMAX = 150.0
"""g/cm2 [g]."""


@dataclass(frozen=True)
class Showers(Rows):
    """Showers at the ground; all arrays (N,) float64."""

    primaries: Primaries
    xmax: np.ndarray
    """Depth of maximum, g/cm2."""
    lg_ne: np.ndarray
    lg_nmu: np.ndarray
    age: np.ndarray
    """Lateral age of the electrons."""
    muon_age: np.ndarray
    """Shape of the muon distribution."""
    weight: np.ndarray | None = None
    """Importance weight; None where all showers are thrown from the natural density."""
    content: np.ndarray | None = None
    """Hadronic content, Nmu over its mean where punch-through follows it; None where it follows the primary alone."""


@dataclass(frozen=True)
class Proposal:
    """Density from which the exponential deviate of hadrons' muon numbers is drawn in place of exp(-x).

    It is (1 - share) exp(-x) + share exp(-x / mean) / mean; a shower's weight is the natural density over it.
    """

    share: float = 0.6
    mean: float = 5.0

    def draw(self, x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return deviates of this density and their weights, (N,) each, from Exp(1) and uniform numbers (N,)."""
        x = np.where(u < self.share, self.mean * x, x)
        heavy = np.exp(np.minimum(x * (1.0 - 1.0 / self.mean), 700.0))
        return x, 1.0 / (1.0 - self.share + self.share / self.mean * heavy)


RARE = Proposal()
"""The proposal of ``simulate --rare``: weights are at most 1.92 and fall below 1e-3 from x = 11 on."""


@dataclass(frozen=True)
class Deviates(Rows):
    """Standard random numbers of a block of showers, drawn in fixed number whatever the settings say."""

    EVENTS_AXIS = -1
    normal: np.ndarray
    """(8, N) standard normal."""
    exponential: np.ndarray
    """(3, N) exponential, mean 1."""
    uniform: np.ndarray
    """(3, N) uniform in 0..1."""

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> Deviates:
        """Draw the numbers for ``n`` showers."""
        return cls(rng.standard_normal((8, n)), rng.standard_exponential((3, n)), rng.random((3, n)))


def capped_exponential(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return Exp(1) - 1 with exponentials beyond 5.5 redrawn uniformly in 0..5.5."""
    return np.where(x > EXPONENTIAL_CAP, EXPONENTIAL_CAP * u, x) - 1.0


def develop(
    primaries: Primaries,
    settings: Settings,
    rng: np.random.Generator,
    proposal: Proposal | None = None,
    depth_g_cm2: float = GROUND_DEPTH,
    deviates: Deviates | None = None,
) -> Showers:
    """Let the primaries' showers develop to the ground.

    Parameters
    ----------
    proposal
        Density of the tail of muon-poor protons; photons, and protons that carry their label, keep the natural one and
        the weight 1.
    depth_g_cm2
        Vertical depth of the ground.

    Returns
    -------
    Showers
        Depth of maximum, true electron and total muon numbers, lateral shapes.
    """
    n = len(primaries.mass)
    deviates = Deviates.draw(n, rng) if deviates is None else deviates
    weight = None
    if proposal is not None:
        rows = np.flatnonzero((primaries.mass == 1) & (primaries.label == HADRON))
        weight = np.ones(n)
        deviates.exponential[2, rows], weight[rows] = proposal.draw(deviates.exponential[2, rows], rng.random(n)[rows])
    e = primaries.lg_energy - REFERENCE_LG_ENERGY
    s = 1.0 / np.cos(np.radians(primaries.zenith_deg)) - 1.0
    xmax, lg_ne, lg_nmu, longitudinal = (np.empty(n) for _ in range(4))
    for mass, (of_cascade, table) in itertools.product((PHOTON, *MASS_NUMBERS), by_cascade(primaries, depth_g_cm2)):
        rows = np.flatnonzero((primaries.mass == mass) & of_cascade)
        if not rows.size:
            continue
        part = Deviates(deviates.normal[:, rows], deviates.exponential[:, rows], deviates.uniform[:, rows])
        depth, size, muons = model_shift(primaries.model[rows], mass, settings.cascade)
        developed = develop_mass(mass, e[rows], s[rows], part, settings.cascade, depth, size, muons, table)
        for target, values in zip((xmax, lg_ne, lg_nmu, longitudinal), developed, strict=True):
            target[rows] = values
    shape = settings.shape
    depth = depth_g_cm2 * (1.0 + s)
    lg_mass = np.log10(np.maximum(primaries.mass, 1))
    # What lies between maximum and ground at KASCADE is fitted; elsewhere shapes turn around the matter that is there.
    below_maximum = depth - xmax - (depth_g_cm2 - GROUND_DEPTH)
    age = lateral_age(longitudinal, below_maximum, e, s, lg_mass, deviates.normal[5], shape)
    muon_age = (
        mean_muon_age(lg_nmu, 1.0 + s)
        + shape.muon_age_offset
        + shape.muon_age_inclination * s
        + shape.muon_age_depth * (below_maximum - BELOW_MAXIMUM) / 100.0
        + shape.muon_age_spread * deviates.normal[6]
    )
    muon_age = np.clip(muon_age, shape.muon_age_min, shape.muon_age_max)
    content = None
    if settings.detector.punch_content:
        content = hadronic_content(primaries, lg_nmu, e, s, settings, depth_g_cm2)
    return Showers(primaries, xmax, lg_ne, lg_nmu, age, muon_age, weight, content)


MOST_CONTENT = 1.5
"""Upper limit of the hadronic content [f]."""


def hadronic_content(
    primaries: Primaries,
    lg_nmu: np.ndarray,
    e: np.ndarray,
    s: np.ndarray,
    settings: Settings,
    depth_g_cm2: float = GROUND_DEPTH,
) -> np.ndarray:
    """Return the hadronic content of showers (N,): a power of Nmu over its mean for protons, 1 for all others."""
    content = np.ones(len(lg_nmu))
    for of_cascade, table in by_cascade(primaries, depth_g_cm2):
        rows = np.flatnonzero((primaries.mass == 1) & of_cascade)
        mean = table.at("mM", 1, e[rows], s[rows]) + hadron_offset(0.0, e[rows], s[rows], settings.cascade)[1]
        mean = mean + model_shift(primaries.model[rows], 1, settings.cascade)[2]
        content[rows] = np.minimum(10.0 ** (settings.detector.punch_content * (lg_nmu[rows] - mean)), MOST_CONTENT)
    return content


def by_cascade(primaries: Primaries, depth_g_cm2: float) -> list[tuple[np.ndarray, Coefficients]]:
    """Return which primaries, (N,) bool, follow which coefficients."""
    numbers = cascade_numbers(primaries.model)
    return [(numbers == k, coefficients(tuple(CASCADES)[k], depth_g_cm2)) for k in np.unique(numbers)]


def develop_mass(
    mass: int,
    e: np.ndarray,
    s: np.ndarray,
    deviates: Deviates,
    cascade: Cascade,
    xmax_shift: np.ndarray | float = 0.0,
    lg_ne_shift: np.ndarray | float = 0.0,
    lg_nmu_shift: np.ndarray | float = 0.0,
    table: Coefficients = AT_KASCADE,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return Xmax (g/cm2), lg Ne, lg Nmu and the longitudinal age of showers of one kind.

    z = (tX E + sX N)/100; h = -tM (x - 1) - [proton] 0.05 max(0, x - 8) + sM N; lgNmu = mM + cX z + h;
    r = tR E + sR N; lgNe = n0 + n1 z + n2 z^2 + nh h + r; age = s0 + sz z + sh h + sr r + ss N,
    with E = Exp(1) - 1, x ~ Exp(1), N normal; z, h and r times their scales and A^fluctuation_mass.
    """

    def at(name: str) -> np.ndarray:
        return table.at(name, mass, e, s)

    normal, exponential, uniform = deviates.normal, deviates.exponential, deviates.uniform
    wider = max(mass, 1) ** cascade.fluctuation_mass
    z = (at("tX") * capped_exponential(exponential[0], uniform[0]) + at("sX") * normal[0]) / 100.0
    tail = cascade.proton_tail if mass == 1 else 0.0
    z = with_tail(z, cascade.xmax_scale * wider, tail, lambda: np.hypot(at("tX"), at("sX")) / 100.0)
    z = z + xmax_shift / 100.0
    xmax = np.maximum(at("mX") + 100.0 * z, MIN_XMAX)
    r = at("tR") * capped_exponential(exponential[1], uniform[1]) + at("sR") * normal[1]
    r = with_tail(r, cascade.size_scale * wider, tail, lambda: np.hypot(at("tR"), at("sR")))
    lg_ne = at("n0") + at("n1") * z + at("n2") * z**2 + r
    age = at("s0") + at("sz") * z + at("sr") * r + at("ss") * normal[2]
    if mass == PHOTON:
        age = age + cascade.photon_age_offset
        lg_nmu, hard_share = photon_muons(e, s, deviates, cascade, table)
        lg_ne = lg_ne + cascade.photon_lg_ne_offset + cascade.photon_lg_ne_inclination * s
        lg_ne = lg_ne - np.where(hard_share > 0.5, 0.15 * hard_share, 0.0)
        return xmax, lg_ne, lg_nmu, age
    x = exponential[2]
    h = -at("tM") * (x - 1.0) + at("sM") * normal[3]
    if mass == 1:
        h = h - 0.05 * np.maximum(0.0, x - 8.0)
    scale = cascade.muon_scale * wider
    h = scale * h + tail * (1.0 - scale) * np.minimum(h + MUON_POOR, 0.0) if tail else scale * h
    more_electrons, more_muons = hadron_offset(np.log10(mass), e, s, cascade)
    loss = np.maximum(h, cascade.electron_loss_min) if mass == 1 else h
    lg_ne = lg_ne + at("nh") * loss + lg_ne_shift + more_electrons
    lg_nmu = at("mM") + at("cX") * z + h + lg_nmu_shift + more_muons
    age = age + at("sh") * h
    if mass == 1 and cascade.hadronic_front:
        hadronic = np.minimum(10.0 ** (cascade.hadronic_front * (h + MUON_POOR)), 1.0)
        s0, sz, sr, ss = (table.at(name, PHOTON, e, s) for name in ("s0", "sz", "sr", "ss"))
        photon_age = s0 + sz * z + sr * r + ss * normal[2] + cascade.photon_age_offset
        age = hadronic * age + (1.0 - hadronic) * photon_age
    return xmax, lg_ne, lg_nmu, age


MUON_POOR = 0.2
"""Protons with h below minus this are muon-poor: there the tail begins [f]."""
TAIL_BEGINS = 0.65
"""Standard deviations of the Monte Carlo above which Xmax and sizes are in the tail [f]."""


def with_tail(u: np.ndarray, scale: float, tail: float, sd: Callable[[], np.ndarray]) -> np.ndarray:
    """Return fluctuations times a scale, in the upper tail by the share ``tail`` with the Monte Carlo's own slope.

    ``sd`` returns their standard deviations.
    """
    if not tail:
        return scale * u
    return np.asarray(scale * u + tail * (1.0 - scale) * np.maximum(u - TAIL_BEGINS * sd(), 0.0))


def hadron_offset(lg_mass: float, e: np.ndarray, s: np.ndarray, cascade: Cascade) -> tuple[np.ndarray, np.ndarray]:
    """Return what places lg Ne and lg Nmu of the Monte Carlo on the real data.

    Linear in lg A, lg E, their product (everything depends on the energy of a nucleon) and sec(zenith); lg Ne with a
    curvature in lg E.
    """
    d_mass, d_e = lg_mass - PIVOT_LG_A, e - PIVOT_E
    c = cascade
    lg_ne = c.lg_ne_offset + c.lg_ne_mass * d_mass + c.lg_ne_energy * d_e + c.lg_ne_inclination * s
    lg_nmu = c.lg_nmu_offset + c.lg_nmu_mass * d_mass + c.lg_nmu_energy * d_e + c.lg_nmu_inclination * s
    lg_ne = lg_ne + c.lg_ne_curvature * d_e**2 + c.lg_ne_mass_energy * d_mass * d_e
    return lg_ne, lg_nmu + c.lg_nmu_mass_energy * d_mass * d_e


def photon_muons(
    e: np.ndarray, s: np.ndarray, deviates: Deviates, cascade: Cascade, table: Coefficients = AT_KASCADE
) -> tuple[np.ndarray, np.ndarray]:
    """Return lg Nmu of photon showers and the energy share of the hardest photonuclear interaction.

    A soft part from many photonuclear interactions and muon pairs, and the cascade of the hardest one, whose
    energy share f falls off as a power law, P(share > f) = 1 - exp(-scale (c1 + c (1/f - 1))); the closed form of
    the cascade Monte Carlo, where scale is 1. The hard part is a hadronic shower and gets a proton's offsets. Other
    depths and hadronic models differ in the means of both parts.
    """
    normal = deviates.normal
    lg_soft = 3.044 + 1.172 * e - 0.037 * e**2 + (-0.73 + 0.13 * e) * s
    lg_hard = 4.535 + 0.888 * e + (-0.45 + 0.13 * e) * s
    spread = 0.055 * 10.0 ** (-0.19 * e) * (1.0 + 0.7 * s)
    if table is not AT_KASCADE:
        lg_soft, lg_hard = lg_soft + table.at("lN0", PHOTON, e, s), lg_hard + table.at("lK", PHOTON, e, s)
    # c1 follows the Monte Carlo's share of photons with a hadron's muons (0.44, 0.46, 0.76 % at lg E = 14.5, 15.5,
    # 16.5), which the closed form's own 0.0054 * 10^(0.081 e) exceeds.
    c, c1 = 0.0018 * 10.0 ** (0.10 * e), 0.0030 * 10.0 ** (0.20 * e)
    depth = -np.log1p(-deviates.uniform[2]) / max(cascade.photonuclear_scale, 1e-9)
    share = np.where(depth < c1, 1.0, 1.0 / (1.0 + (depth - c1) / c))
    h = -0.06 - 0.07 * (deviates.exponential[2] - 1.0) + 0.06 * normal[4]
    lg_soft = lg_soft + cascade.photon_lg_nmu_offset + cascade.photon_muon_spread * normal[7]
    lg_hard = lg_hard + hadron_offset(0.0, e, s, cascade)[1]
    number = 10.0 ** (lg_soft + spread * normal[3]) + 10.0 ** (lg_hard + h) * share**0.85
    return np.log10(number), share


def lateral_age(
    longitudinal: np.ndarray,
    below_maximum: np.ndarray,
    e: np.ndarray,
    s: np.ndarray,
    lg_mass: np.ndarray,
    normal: np.ndarray,
    shape: Shape,
) -> np.ndarray:
    """Return the lateral age from the longitudinal one and the matter below the maximum (g/cm2)."""
    age = (
        shape.age_offset
        + shape.age_longitudinal * (longitudinal - 1.31)
        + shape.age_depth * (below_maximum - BELOW_MAXIMUM) / 100.0
        + shape.age_energy * (e - PIVOT_E)
        + shape.age_inclination * s
        + shape.age_mass * (lg_mass - PIVOT_LG_A)
        + shape.age_spread * normal
    )
    return np.clip(age, shape.age_min, shape.age_max)


def mean_muon_age(lg_nmu: np.ndarray, secant: np.ndarray) -> np.ndarray:
    """Return the mean muon age that the reconstruction assumes: 1.30 - 0.094 (lgNmu - 4.5) + 0.45 (sec - 1.035)."""
    return np.clip(1.30 - 0.094 * (lg_nmu - 4.5) + 0.45 * (secant - 1.035), 0.8, 1.7)
