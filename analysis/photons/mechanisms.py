"""Why gammas are taken for hadrons and hadrons for gammas: what the truth of such showers says, and one verdict.

All is seen against the hadrons of the same files, so that no constant of a simulation enters but one (marked below).
Lines in lg Ne, lg E and the sine of the inclination are least-squares fits to the hadrons, weighted.

* **Hadron-like gammas** (score below 0) are muon-rich if their true muon content is above :data:`RICH`, where content
  y = 10^(lg Nmu - line of the hadrons in true lg E and sec(zenith)) is the number of muons over that of a typical
  hadron of the same energy, a pure number. Are they not, the *detector* confuses them. Muon-rich ones are either
  hadrons with a wrong label (*label noise*: y near 1) or photons of which a share f of the energy went into one
  *photonuclear* interaction. The hardest such share falls as dP/df ~ 1/f^2, since all generations of a cascade have it
  (P(> f) = c1 + c (1/f - 1) with c1 = .0030, c = .0018 at lg E = 15.5: a cascade Monte Carlo with Sibyll-2.3d, compare
  M. Risse, P. Homola, Mod. Phys. Lett. A 22 (2007) 749), and y = .87 f^.85 with it: half-filled showers
  (:data:`RICH` < y < :data:`FULL`) are then twice as frequent as full ones, where hadrons' own are rare. The share of
  label noise among muon-rich gammas is s = (p - p_p) / (p_h - p_p), with p the share of full ones among all muon-rich
  gammas, p_h that of the hadrons and p_p = :data:`PHOTONUCLEAR` (the only constant). Beside it stands the share by
  energies: full showers follow the spectrum of the hadrons or that of the photons (maximum likelihood of the mixture).
* **Surviving hadrons** (score above the threshold that keeps 75 % of the gammas; 90 % where too few survive and fewer
  than 5 % of the gammas are muon-rich): if their showers themselves are poor in muons, they come from the *tail*: more
  than half of them among the 3 % of all hadrons whose lg Nmu lies lowest below the line in true lg Ne and sec(zenith).
  If this share is far smaller, the *detector* confuses them.
* **Models**: survival and tail (share of hadrons with y below one half, and slope of lg y there) by hadronic model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

from showerstack.analysis.photons.origin import GAMMA_LABEL, HADRON_LABEL, TrueShowers, read_labelled
from showerstack.runtime.context import Context
from showerstack.scoring.metrics.gamma import hadron_survival
from showerstack.scoring.metrics.intervals import Interval, grouped_error, linearised, share_interval, survival_interval

RICH, FULL = 0.2, 0.6
"""Muon contents from which a gamma is muon-rich, and full."""
PHOTONUCLEAR = 0.33
"""Share of full showers among muon-rich gammas if all come from photonuclear interactions: with f from .18 and from .65
on, and c1 and c of lg E = 14.5..15.5, it is .32 to .35."""
LIKE_HADRON = 0.0
"""Score below which a shower looks like a hadron."""
POOREST = 0.03
"""Share of the hadrons that counts as the tail."""
EFFICIENCIES = (0.75, 0.90)
FEWEST = 10.0
"""Showers (effective, where weighted) from which an answer is given."""
HALF_LG = -np.log10(2.0)
LABEL_NOISE, PHOTONUCLEAR_NAME, DETECTOR, TAIL, BOTH, FEW = (
    "label noise", "photonuclear", "detector", "muon tail", "both", "too few",
)  # fmt: skip


@dataclass(frozen=True)
class ShowerShare:
    """A share of showers and its confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: np.ndarray, showers: TrueShowers) -> ShowerShare:
        """Return the weighted share of true among (N,) bool of these showers."""
        interval: Interval = share_interval(hits, showers.group, weights=showers.weight)
        return cls(float(np.average(hits, weights=showers.weight)), interval.low, interval.high)

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class HadronLikeGammas:
    """What is known of gammas that look like hadrons."""

    n: int
    n_gamma: int
    muon_rich: ShowerShare | None
    """Those whose true muon content is above :data:`RICH`."""
    n_rich: int
    """Gammas with a true muon content above :data:`RICH`, whatever they look like."""
    full: ShowerShare | None
    """Full showers among these."""
    full_of_hadrons: float
    """The same of the hadrons."""
    noise: ShowerShare | None
    """Share of label noise among them, by :attr:`full`; not cut to 0..1."""
    noise_by_energy: tuple[float, float] | None
    """The same by true energies, and its standard error."""
    hadron_rank: float | None
    """Median share of the hadrons of equal energy that have fewer hadrons at the ground; .5: like hadrons."""
    answer: str


@dataclass(frozen=True)
class SurvivingHadrons:
    """What is known of hadrons that look like gammas."""

    efficiency: float
    """Of gammas, at the threshold."""
    n: int
    n_effective: float
    survival: float
    interval: tuple[float, float]
    is_limit: bool
    """Whether ``interval[1]`` is an upper limit and no survival is to be quoted."""
    poorest: ShowerShare | None
    """Those among the :attr:`tail_share` of all hadrons that are poorest in muons at equal true lg Ne."""
    tail_share: float
    muon_deficit: tuple[float, float]
    """Mean of lg Nmu minus that of hadrons with equal true lg Ne, survivors: true, and reconstructed."""
    hadron_deficit: float | None
    """Survivors' share with hadrons at the ground as few as in the lowest :attr:`tail_share` of all, at equal lg Ne."""
    answer: str


@dataclass(frozen=True)
class ModelTail:
    """The tail of one hadronic model."""

    model: str
    n_hadron: int
    survival: tuple[float, float, float]
    """At :attr:`SurvivingHadrons.efficiency` of all gammas: value, and ends of its interval."""
    below_half: tuple[float, float]
    """Share of hadrons with less than half of the muons of their energy, and its standard error."""
    slope: tuple[float, float]
    """Mean of lg(1/2) - lg y of those, in decades, and its standard error; NaN without any."""


@dataclass(frozen=True)
class GammaCheck:
    """All that the check found."""

    data: Path
    n_read: int
    n_gamma: int
    n_hadron: int
    mislabelled: int | None
    gammas: HadronLikeGammas
    hadrons: SurvivingHadrons
    models: tuple[ModelTail, ...]
    models_p: float | None
    """Probability that all models have one share below half; None for one model."""
    content: np.ndarray
    """(N,) lg of the true muon content of all showers, for pictures."""
    showers: TrueShowers
    surviving: np.ndarray
    """(N,) bool."""
    remarks: tuple[str, ...]


def check_gammas(path: Path, *, seed: int = 1, ctx: Context = Context()) -> GammaCheck:
    """Look at the truth of gammas that look like hadrons and of hadrons that look like gammas.

    Parameters
    ----------
    path, seed, ctx
        As in :func:`showerstack.analysis.photons.origin.read_labelled`.

    Raises
    ------
    InputError
        If the files cannot be used, do not tell the truth, or hold too few showers.
    """
    labelled = read_labelled(path, seed=seed, ctx=ctx)
    showers = labelled.showers
    content = _residual(showers, showers.lg_energy)
    gammas = hadron_like_gammas(showers, content)
    hadrons, surviving = surviving_hadrons(showers, content)
    models = model_tails(showers, hadrons.efficiency)
    return GammaCheck(
        Path(path), labelled.n_read, int(showers.gamma.sum()), int((~showers.gamma).sum()), labelled.mislabelled,
        gammas, hadrons, models, _models_differ(models), content, showers, surviving, labelled.remarks,
    )  # fmt: skip


def _residual(showers: TrueShowers, size: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
    """Return lg Nmu (or other values) minus the hadrons' line in a size (lg E or lg Ne) and sec(zenith), (N,)."""
    values = showers.lg_nmu if values is None else values
    hadron = ~showers.gamma
    centre = float(np.average(size[hadron], weights=showers.weight[hadron]))
    e, s = size - centre, showers.secant - 1.0
    design = np.stack([np.ones(len(e)), e, e**2, s, e * s], axis=1)
    root = np.sqrt(showers.weight[hadron])
    line = np.linalg.lstsq(design[hadron] * root[:, None], values[hadron] * root, rcond=None)[0]
    residual = values - design @ line
    # A tail pulls the mean: contents count from the median.
    return np.asarray(residual - _quantile(residual[hadron], showers.weight[hadron], 0.5))


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, share * reached[-1]))
    return float(values[order[min(place, len(order) - 1)]])


def _effective(weights: np.ndarray) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0


def hadron_like_gammas(showers: TrueShowers, content: np.ndarray) -> HadronLikeGammas:
    """Say why gammas look like hadrons.

    Parameters
    ----------
    showers
        All.
    content
        (N,) lg of the true muon content.
    """
    gamma = showers.gamma
    like = gamma & (showers.score < LIKE_HADRON)
    n = int(like.sum())
    y = 10.0**content
    rich, of_hadrons = gamma & (y > RICH), ~gamma & (y > RICH)
    full_of_hadrons = float(np.average(y[of_hadrons] > FULL, weights=showers.weight[of_hadrons]))
    like_rich = ShowerShare.of(y[like] > RICH, showers.take(like)) if n else None
    full = noise = by_energy = None
    if _effective(showers.weight[rich]) >= FEWEST:
        full = ShowerShare.of(y[rich] > FULL, showers.take(rich))
        scale = full_of_hadrons - PHOTONUCLEAR
        noise = ShowerShare(*((value - PHOTONUCLEAR) / scale for value in (full.value, full.low, full.high)))
        by_energy = _by_energy(showers, gamma & (y > FULL))
    if like_rich is None or n < FEWEST:
        answer = FEW
    elif like_rich.high < 0.5:
        answer = DETECTOR
    elif like_rich.low <= 0.5:
        answer = BOTH
    elif noise is None:
        answer = FEW
    else:
        answer = LABEL_NOISE if noise.low > 0.5 else PHOTONUCLEAR_NAME if noise.high < 0.5 else BOTH
    return HadronLikeGammas(
        n,
        int(gamma.sum()),
        like_rich,
        int(rich.sum()),
        full,
        full_of_hadrons,
        noise,
        by_energy,
        _hadron_rank(showers, like),
        answer,
    )


def _by_energy(showers: TrueShowers, chosen: np.ndarray) -> tuple[float, float] | None:
    """Return the share of showers that follow the hadrons' energies instead of the photons', and its error."""
    if np.count_nonzero(chosen) < FEWEST:
        return None
    edges = np.quantile(showers.lg_energy[chosen], np.linspace(0, 1, 6))[1:-1]
    places = np.searchsorted(edges, showers.lg_energy)

    def density(rows: np.ndarray) -> np.ndarray:
        counts = np.bincount(places[rows], showers.weight[rows], minlength=len(edges) + 1) + 0.5
        return np.asarray(counts / counts.sum())

    hadrons, photons = density(~showers.gamma), density(showers.gamma & ~chosen)
    counts = np.bincount(places[chosen], showers.weight[chosen], minlength=len(edges) + 1)
    shares = np.linspace(0.0, 1.0, 501)
    fit = counts @ np.log(shares * hadrons[:, None] + (1 - shares) * photons[:, None])
    best = float(shares[np.argmax(fit)])
    mixed = best * hadrons + (1 - best) * photons
    information = float((counts * ((hadrons - photons) / mixed) ** 2).sum())
    error = information**-0.5 if information > 0 else np.inf
    return (best, error) if error < 1.0 else None


def _hadron_rank(showers: TrueShowers, chosen: np.ndarray) -> float | None:
    """Return the median rank of chosen showers in hadrons at the ground among the hadrons of nearly equal energy."""
    known = ~np.isnan(showers.lg_nhadron)
    if not (known & chosen).any() or not (known & ~showers.gamma).any():
        return None
    ranks = _ranks(showers.lg_nhadron, np.floor(showers.lg_energy / 0.25), known & ~showers.gamma, known & chosen)
    return float(np.median(ranks)) if len(ranks) else None


def _ranks(values: np.ndarray, cells: np.ndarray, reference: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the mid-ranks (0..1) of chosen values among the reference of their cell; without one they are dropped."""
    result = []
    for cell in np.unique(cells[chosen]):
        beside = np.sort(values[reference & (cells == cell)])
        own = values[chosen & (cells == cell)]
        if len(beside) >= 20:
            result.append(
                (np.searchsorted(beside, own, "left") + np.searchsorted(beside, own, "right")) / 2 / len(beside)
            )
    return np.concatenate(result) if result else np.zeros(0)


def surviving_hadrons(showers: TrueShowers, content: np.ndarray) -> tuple[SurvivingHadrons, np.ndarray]:
    """Say why hadrons survive; return it and which do, (N,) bool.

    Parameters
    ----------
    showers
        All.
    content
        (N,) lg of the true muon content: a threshold among muon-rich gammas would say nothing of hadrons.
    """
    labels = np.where(showers.gamma, GAMMA_LABEL, HADRON_LABEL)
    hadron, weights = ~showers.gamma, showers.weight
    weighted = weights if np.ptp(weights) > 0 else None
    rich = float(np.average(10.0 ** content[~hadron] > RICH, weights=weights[~hadron]))
    for wanted in (one for one in EFFICIENCIES if one == EFFICIENCIES[0] or rich < (1 - one) / 2):
        efficiency, result = wanted, hadron_survival(labels, showers.score, wanted, weighted)
        surviving = hadron & (showers.score >= result.threshold)
        effective = _effective(weights[surviving])
        if effective >= FEWEST:
            break
    groups = showers.group if len(np.unique(showers.group)) < len(showers) else None
    interval = survival_interval(labels, showers.score, efficiency, groups, weighted)
    tail_share = float(np.clip(3 * result.hadron_survival, POOREST, 0.2))
    deficit = _residual(showers, showers.lg_ne)
    limit = _quantile(deficit[hadron], weights[hadron], tail_share)
    few = effective < FEWEST
    poorest = None if few else ShowerShare.of(deficit[surviving] <= limit, showers.take(surviving))
    answer = FEW
    if poorest is not None:
        answer = TAIL if poorest.low > 0.5 else DETECTOR if poorest.high < 0.5 else BOTH
    reconstructed = _residual(showers, showers.lg_ne, showers.reconstructed_lg_nmu)
    means = (float("nan"), float("nan"))
    if surviving.any():
        means = tuple(float(np.average(v[surviving], weights=weights[surviving])) for v in (deficit, reconstructed))  # type: ignore[assignment]
    part = SurvivingHadrons(
        efficiency, int(surviving.sum()), effective, result.hadron_survival, (interval.low, interval.high),
        interval.is_limit, poorest, tail_share, means, _hadron_deficit(showers, surviving, tail_share), answer,
    )  # fmt: skip
    return part, surviving


def _hadron_deficit(showers: TrueShowers, surviving: np.ndarray, share: float) -> float | None:
    known = ~np.isnan(showers.lg_nhadron)
    if not (known & surviving).any():
        return None
    ranks = _ranks(showers.lg_nhadron, np.floor(showers.lg_ne / 0.25), known & ~showers.gamma, known & surviving)
    return float(np.mean(ranks <= share)) if len(ranks) else None


def model_tails(showers: TrueShowers, efficiency: float) -> tuple[ModelTail, ...]:
    """Return the tail of each hadronic model; contents count from the model's own hadrons."""
    result = []
    names = [str(name) for name in np.unique(showers.model[~showers.gamma])]
    for name in names:
        # All gammas set the threshold: a model has few of its own, and they look alike in all.
        part = showers.take(showers.gamma | (showers.model == name))
        hadron = ~part.gamma
        labels = np.where(part.gamma, GAMMA_LABEL, HADRON_LABEL)
        weighted = part.weight if np.ptp(part.weight) > 0 else None
        value = hadron_survival(labels, part.score, efficiency, weighted).hadron_survival
        copies = part.group if len(np.unique(part.group)) < len(part) else None
        interval = survival_interval(labels, part.score, efficiency, copies, weighted)
        content = _residual(part, part.lg_energy)[hadron]
        w, groups = part.weight[hadron], part.group[hadron]
        below = content < HALF_LG
        share = float(np.average(below, weights=w))
        error = np.nan
        if len(np.unique(groups)) > 1:
            error = grouped_error(linearised(below.astype(np.float64), w), groups)[0]
        slope = (float("nan"), float("nan"))
        if below.any():
            mean = float(np.average(HALF_LG - content[below], weights=w[below]))
            slope = (mean, mean / np.sqrt(_effective(w[below])))
        result.append(
            ModelTail(name, int(hadron.sum()), (value, interval.low, interval.high), (share, float(error)), slope)
        )
    return tuple(result)


def _models_differ(models: Sequence[ModelTail]) -> float | None:
    usable = [one.below_half for one in models if one.below_half[1] > 0]
    if len(usable) < 2:
        return None
    values, errors = np.array(usable).T
    centre = np.average(values, weights=errors**-2)
    return float(chi2.sf((((values - centre) / errors) ** 2).sum(), len(usable) - 1))


def verdict(check: GammaCheck) -> str:
    """Return what the truth says, in plain words: of gammas, then of hadrons."""
    return f"{_of_gammas(check)} {_of_hadrons(check)}"


def _of_gammas(check: GammaCheck) -> str:
    one = check.gammas
    start = f"Of {one.n_gamma:,} gammas {one.n:,} look like hadrons"
    if one.answer == FEW or one.muon_rich is None:
        return f"{start}: too few to say why."
    rich = f"{100 * one.muon_rich.value:.0f} % of them have a hadron's muons in truth"
    if one.answer == DETECTOR:
        return f"{start}, by the detector: only {rich}."
    if one.noise is None:
        return f"{start}; {rich}."
    noise = f"of the {one.n_rich:,} gammas with such muons a share of {one.noise} fits label noise"
    names = {
        LABEL_NOISE: "by label noise: they are hadrons in every respect",
        PHOTONUCLEAR_NAME: "by photonuclear interactions: showers with a part of a hadron's muons go with them",
        BOTH: "for more than one reason, or too few to tell label noise from photonuclear interactions",
    }
    return f"{start}, {names[one.answer]}; {rich}, {noise}."


def _of_hadrons(check: GammaCheck) -> str:
    one = check.hadrons
    if one.poorest is None:
        return f"Hadrons that survive at {one.efficiency:.0%} gamma efficiency: {one.n:,}, too few to say why."
    share = f"{one.poorest} of them belong to the {100 * one.tail_share:.2g} % of the hadrons poorest in muons"
    names = {
        TAIL: "from the tail of muon-poor showers",
        DETECTOR: "by the detector and the reconstruction: most of their showers are ordinary",
        BOTH: "from the tail of muon-poor showers and by the detector",
    }
    return f"At {one.efficiency:.0%} gamma efficiency {one.n:,} hadrons survive, {names[one.answer]}; {share}."


def as_json(check: GammaCheck) -> dict[str, Any]:
    """Return the numbers of the check for a file; what is not known is null."""
    content = {
        "data": check.data.name,
        "showers": check.n_read,
        "gammas": check.n_gamma,
        "hadrons": check.n_hadron,
        "mislabelled": check.mislabelled,
        "verdict": verdict(check),
        "hadron_like_gammas": asdict(check.gammas),
        "surviving_hadrons": asdict(check.hadrons),
        "models": [asdict(one) for one in check.models],
        "models_alike_p": check.models_p,
        "remarks": list(check.remarks),
    }
    return {name: _plain(value) for name, value in content.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
