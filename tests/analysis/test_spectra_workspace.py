"""The model of spectra in pyhf: the same likelihood, and fluxes that come back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from showerstack.analysis.options import Widths
from showerstack.analysis.spectra.fluxes import MARGIN_WIDTH, folded, wide_bins
from showerstack.analysis.spectra.folding import make_cells, make_movable, make_response
from showerstack.analysis.spectra.likelihood import LEAST_HEIGHT, FoldedFit, FoldingProblem, deviance
from showerstack.analysis.spectra.response import FIVE
from showerstack.analysis.spectra.run import cell_binning
from showerstack.analysis.spectra.workspace import THOUSAND, spectra_workspace
from tests.analysis.skies import EXPOSURE, Sky, measured, simulated

# pyhf's own use of jsonschema.
pytestmark = pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning")

EDGES = np.array([15.2, 15.6, 16.2])
BINS = cell_binning(tuple(EDGES))
EXPOSURE_ERROR = 0.05


@pytest.fixture(scope="module")
def fit() -> FoldedFit:
    events, thrown = simulated(60_000, 1, BINS)
    cells = make_cells(BINS, events)
    movable, total = make_movable(events, BINS, Widths()), thrown.counts.sum(axis=0)
    counts = cells.counts(measured(Sky(), 3, exposure=EXPOSURE / 8))
    return FoldingProblem(counts, lambda at: make_response(movable, cells, total, at), EXPOSURE / 8).fit()


@pytest.fixture(scope="module")
def pyhf_model(fit: FoldedFit) -> tuple[Any, Any, Any]:
    """pyhf, its model and data."""
    pyhf = pytest.importorskip("pyhf")
    pyhf.set_backend("numpy")
    both = pyhf.Workspace(spectra_workspace(fit, EDGES, EXPOSURE_ERROR))
    model = both.model()
    return pyhf, model, both.data(model)


class Ours:
    """-2 ln L of factors (J', K), scales (3,) and an exposure that is off, as the analysis has it."""

    def __init__(self, fit: FoldedFit) -> None:
        self.likelihood = fit.likelihood
        heights = np.maximum(fit.parameters[self.likelihood.layout.heights], LEAST_HEIGHT)
        self.phi = self.likelihood.particles(fit.parameters, heights, energy=0.0)
        self.inside = wide_bins(self.likelihood.lg_energy, EDGES)
        self.parts = folded(self.phi, self.inside, self.likelihood.probability)
        slope = self.phi * self.likelihood.energy_slope(fit.parameters, 0.0)
        self.sent = (self.phi @ self.inside.T).T
        self.slope = (slope @ self.inside.T).T / self.sent

    def mean(self, factors: np.ndarray, scales: np.ndarray, exposure: float) -> np.ndarray:
        f, _ = self.likelihood.moves.factors(np.array([0.0, *scales[1:]]) - self.likelihood.response.at)
        factors = factors * np.exp(self.slope * scales[0] + EXPOSURE_ERROR * exposure)
        return np.einsum("jk,jkc,kc->c", factors, self.parts, f)[self.likelihood.simulated]

    def __call__(self, factors: np.ndarray, scales: np.ndarray, exposure: float) -> float:
        used = self.likelihood.simulated
        cells = deviance(
            self.likelihood.counts[used], self.mean(factors, scales, exposure), self.likelihood.tau[used]
        ).sum()
        margins = (self.margins(factors) ** 2).sum()
        return float(cells + margins + (scales**2).sum() + exposure**2)

    @staticmethod
    def margins(factors: np.ndarray) -> np.ndarray:
        """(2, K) of the samples below and above all bins, in widths."""
        return (np.array([factors[0] / factors[1], factors[-1] / factors[-2]]) - 1) / MARGIN_WIDTH

    def theirs(self, model: Any, factors: np.ndarray, scales: np.ndarray, exposure: float) -> np.ndarray:
        """pyhf's parameters at the same place, the factors of the simulation at their best."""
        likelihood, values = (
            self.likelihood,
            dict(zip(("energy_scale", "muon_scale", "electron_scale"), scales, strict=True)),
        )
        values["exposure"] = exposure
        for k, group in enumerate(FIVE.names):
            for j in range(1, len(EDGES)):
                values[f"{group}_{EDGES[j - 1]:g}-{EDGES[j]:g}"] = factors[j, k] * self.sent[j, k] / THOUSAND
            values[f"{group}_below"], values[f"{group}_above"] = self.margins(factors)[:, k]
        used = likelihood.simulated
        n, tau, mean = likelihood.counts[used], likelihood.tau[used], self.mean(factors, scales, exposure)
        result = np.zeros(model.config.npars)
        for name in model.config.par_order:
            place = model.config.par_slice(name)
            result[place] = (n + tau) / (mean + tau) if name == "finite_simulation" else values[name]
        return result


def test_pyhf_has_the_same_likelihood(fit: FoldedFit, pyhf_model: tuple[Any, Any, Any]) -> None:
    pyhf, model, data = pyhf_model
    ours, rng = Ours(fit), np.random.default_rng(2)
    places = [
        (1 + 0.2 * rng.uniform(-1, 1, ours.sent.shape), np.array(scales), exposure)
        for scales, exposure in (
            ((0, 0, 0), 0), ((0, 1, 0), 0), ((0, -1, 0), 0), ((0, 0, 1), 0), ((0, 0, -1), 0), ((0.7, 0, 0), -0.4),
            ((-1.4, 0, 0), 1.2),
        )
    ]  # fmt: skip
    # Margins off their bin are added to what scales change, not multiplied: here they agree but for the first place.
    for factors, scales, exposure in places[1:]:
        if scales.any() or exposure:
            factors[0], factors[-1] = factors[1], factors[-2]
    mine = [ours(*place) for place in places]
    theirs = [float(pyhf.infer.mle.twice_nll(ours.theirs(model, *place), data, model)[0]) for place in places]
    assert np.ptp(mine) > 10
    np.testing.assert_allclose(np.diff(theirs), np.diff(mine), atol=1e-3)


def test_the_factors_of_the_simulation_are_at_their_best(fit: FoldedFit, pyhf_model: tuple[Any, Any, Any]) -> None:
    pyhf, model, data = pyhf_model
    ours = Ours(fit)
    at = ours.theirs(model, np.ones_like(ours.sent), np.zeros(3), 0.0)
    place = model.config.par_slice("finite_simulation")
    best = float(pyhf.infer.mle.twice_nll(at, data, model)[0])
    for step in (-0.01, 0.01):
        away = at.copy()
        away[place] += step
        assert float(pyhf.infer.mle.twice_nll(away, data, model)[0]) > best


def test_true_fluxes_are_likely(fit: FoldedFit, pyhf_model: tuple[Any, Any, Any]) -> None:
    """Both likelihoods have their minimum near the truth: 10 fluxes and margins are worth some 10 to 20 units."""
    pyhf, model, data = pyhf_model
    ours = Ours(fit)
    centre = 10.0**ours.likelihood.lg_energy
    step = centre * np.log(10.0) * np.diff(BINS.fine)
    true = ((Sky().flux(centre) * step * ours.likelihood.exposure_m2_sr_s) @ ours.inside.T).T / ours.sent

    def theirs(factors: np.ndarray) -> float:
        return float(pyhf.infer.mle.twice_nll(ours.theirs(model, factors, np.zeros(3), 0.0), data, model)[0])

    at_truth = theirs(true)

    def cost(x: np.ndarray) -> float:
        return ours(x.reshape(true.shape), np.zeros(3), 0.0)

    found = minimize(cost, true.ravel(), method="L-BFGS-B", bounds=[(0.01, 50)] * true.size)
    gained = at_truth - theirs(found.x.reshape(true.shape))
    assert gained == pytest.approx(ours(true, np.zeros(3), 0.0) - found.fun, abs=1e-3)
    # Chi-square of at most 20 free numbers, five standard deviations above its mean.
    assert 0 < gained < 20 + 5 * np.sqrt(40)
    assert theirs(1.3 * true) > at_truth + 20


def test_the_schema_of_workspaces_holds(fit: FoldedFit) -> None:
    pyhf = pytest.importorskip("pyhf")
    written = spectra_workspace(fit, EDGES, EXPOSURE_ERROR)
    pyhf.schema.validate(written, "workspace.json")
    for channel in written["channels"]:
        for one in channel["samples"]:
            modifiers = [(modifier["name"], modifier["type"]) for modifier in one["modifiers"]]
            assert len(modifiers) == len(set(modifiers))
