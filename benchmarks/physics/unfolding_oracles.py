"""Fluxes without a form beside those of other programs, from the same counts and the same simulation.

``python benchmarks/physics/unfolding_oracles.py --work bench/closure`` draws skies as ``closure.py`` does (whose run
and showers it takes, or makes), with exact scales, and unfolds each by

* the reweighted least squares of :mod:`analysis.spectra.fluxes`,
* a fit of templates by iminuit's own cost function (``iminuit.cost.Template``, H. Dembinski, A. Abdelmotteleb, Eur.
  Phys. J. C 82 (2022) 1043) with Minuit's errors,
* D'Agostini's iterations of pyunfold where it is installed (J. Bourbeau, Z. Hampel-Arias, JOSS 3 (2018) 741), with its
  statistical errors and those of the response.

It prints how far the others are from ours in our errors, the ratio of errors, and what each covers, with 95 % intervals
over skies.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from iminuit import Minuit
from iminuit.cost import NormalConstraint, Template

from analysis.spectra.fluxes import MARGIN_WIDTH, free_fluxes
from analysis.spectra.folding import make_response
from analysis.spectra.likelihood import INDEX_WIDTH, FoldedFit, FoldingProblem, Priors
from analysis.spectra.run import EDGES
from benchmarks.physics.closure import SKY, closure_parser, composition_truth
from benchmarks.physics.pseudo_experiments import SmoothTruth, mean_fluxes

Result = tuple[np.ndarray, np.ndarray]
"""Fluxes (J, K) and their errors, m^-2 sr^-1 s^-1 eV^-1."""
ITERATIONS = 100
"""At most, of pyunfold."""


class Templates:
    """What a fit's simulation expects of each group and wide bin of the true energy, from one sky's form."""

    def __init__(self, fit: FoldedFit, edges: np.ndarray) -> None:
        one = fit.likelihood
        heights = np.maximum(fit.parameters[one.layout.heights], 0.03)
        phi, wide = one.particles(fit.parameters, heights), np.searchsorted(edges, one.lg_energy, side="right")
        masked = np.stack([phi * (wide == j) for j in range(len(edges) + 1)])  # (J', K, T)
        self.edges, self.counts = edges, one.counts
        self.mean = np.einsum("kct,jkt->jkc", one.probability, masked)
        self.variance = np.einsum("kct,jkt->jkc", one.variance, masked**2)
        self.sent = masked.sum(axis=2)
        widths = np.diff(10.0**edges)
        self.unit = self.sent[1:-1] / (one.exposure_m2_sr_s * widths[:, None])

    def flux(self, factors: np.ndarray, errors: np.ndarray) -> Result:
        """Return fluxes of factors (J', K) on the expectations."""
        return factors[1:-1] * self.unit, errors[1:-1] * self.unit


def ours(fit: FoldedFit, edges: np.ndarray) -> Result:
    """Unfold by reweighted least squares."""
    result = free_fluxes(fit, edges)
    covariance = np.asarray(sum(result.covariance.values()))
    return result.flux, np.sqrt(np.diag(covariance)).reshape(result.flux.shape)


def by_iminuit(templates: Templates) -> Result:
    """Fit yields of templates; those beyond the wide bins have the expectations of the analysis."""
    shape = templates.sent.shape
    yields = templates.mean.sum(axis=2).ravel()
    names = [f"y{n}" for n in range(len(yields))]
    each = [np.stack(pair, axis=1) for pair in zip(*(one.reshape(len(yields), -1)
            for one in (templates.mean, templates.variance)), strict=True)]  # fmt: skip
    cost: Any = Template(templates.counts, np.arange(len(templates.counts) + 1.0), each, name=names, method="da")
    margins = [n for n in range(len(yields)) if n < shape[1] or n >= len(yields) - shape[1]]
    cost = cost + NormalConstraint([names[n] for n in margins], yields[margins], MARGIN_WIDTH * yields[margins])
    minuit = Minuit(cost, **dict(zip(names, yields, strict=True)))
    minuit.strategy = 1
    minuit.migrad(ncall=100_000)
    minuit.hesse()
    values, errors = (np.array([getattr(minuit, what)[name] for name in names]) for what in ("values", "errors"))
    return templates.flux((values / yields).reshape(shape), (errors / yields).reshape(shape))


def by_pyunfold(templates: Templates) -> Result:
    """Unfold by D'Agostini's iterations from the form's expectations, smoothed by nothing."""
    shape = templates.sent.shape
    sent = templates.sent.ravel()
    response = templates.mean.reshape(len(sent), -1).T / sent
    error = np.sqrt(templates.variance.reshape(len(sent), -1).T) / sent
    efficiency = response.sum(axis=0)
    counts = templates.counts
    result = import_module("pyunfold").iterative_unfold(
        data=counts, data_err=np.sqrt(np.maximum(counts, 1.0)), response=response, response_err=error,
        efficiencies=efficiency, efficiencies_err=np.sqrt((error**2).sum(axis=0)), prior=sent / sent.sum(),
        ts="ks", ts_stopping=1e-4, max_iter=ITERATIONS,
    )  # fmt: skip
    errors = np.hypot(result["stat_err"], result["sys_err"])
    return templates.flux((result["unfolded"] / sent).reshape(shape), (errors / sent).reshape(shape))


def unfolded(
    truth: SmoothTruth, seed: int, events: int, methods: dict[str, Callable[[Templates], Result]]
) -> dict[str, Result]:
    """Draw one sky and unfold it by every method; ours first."""
    rng = np.random.default_rng((seed, 7))
    mean = truth.expected(SKY, np.zeros(3))
    exposure = events / float(mean.sum())
    counts = rng.poisson(mean * exposure).astype(np.float64)
    simulated, thrown = truth.simulation(rng)
    response = make_response(simulated, truth.cells, thrown, scales=False)
    priors = Priors(index=rng.normal(SKY.index, INDEX_WIDTH, 5))
    fit = FoldingProblem(counts, lambda at: response, exposure, SKY.sharpness, priors).fit()
    edges = np.array(EDGES)
    templates = Templates(fit, edges)
    return {"ours": ours(fit, edges)} | {name: method(templates) for name, method in methods.items()}


def main() -> None:
    """Print one line for each method and number of events."""
    parser = closure_parser(__doc__ or "")
    parser.add_argument("--skies", type=int, default=20)
    given = parser.parse_args()
    methods: dict[str, Callable[[Templates], Result]] = {"iminuit": by_iminuit}
    if find_spec("pyunfold"):
        methods["pyunfold"] = by_pyunfold
    else:
        print("pyunfold is not installed")
    truth, true = composition_truth(given).truth, mean_fluxes(SKY, np.array(EDGES))
    for events in given.events:
        skies = [unfolded(truth, seed, events, methods) for seed in range(given.skies)]
        mine = np.array([one["ours"] for one in skies])
        for name in skies[0]:
            values = np.array([one[name] for one in skies])  # (skies, 2, J, K)
            pull = (values[:, 0] - true) / values[:, 1]
            words = [
                f"within one error {_interval((np.abs(pull) < 1).mean(axis=(1, 2)))}",
                f"mean {_interval(pull.mean(axis=(1, 2)), 1.0)} errors",
                f"rms of the deviation {_interval((((values[:, 0] - true) / true) ** 2).mean(axis=(1, 2)) ** 0.5)}",
            ]
            if name != "ours":
                away = np.abs(values[:, 0] - mine[:, 0]) / mine[:, 1]
                words += [
                    f"from ours {_interval(away.mean(axis=(1, 2)), 1.0)} errors, at most {away.max():.2f}",
                    f"error over ours {_interval((values[:, 1] / mine[:, 1]).mean(axis=(1, 2)), 1.0)}",
                ]
            print(f"{events:,} events, {len(skies)} skies, {name}: {'; '.join(words)}", flush=True)


def _interval(values: np.ndarray, scale: float = 100.0) -> str:
    unit = " %" if scale == 100.0 else ""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{scale * values.mean():.3g}{unit} ± {scale * half:.2g}{unit}"


if __name__ == "__main__":
    main()
