"""The fit of a world's constants: targets, steps, bounds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.world.fit import Free, ModelProblem, Problem, fit, jacobian, next_step, summary
from benchmarks.world.networks import Moments, Published, PublishedNetwork, norm_deviations
from benchmarks.world.targets import POSTERIORS, SCORES, Look, NetworkTarget, PosteriorTarget, decisions, norm_vector
from showers.realism.facts import FACTS, MATCHED
from showers.realism.moments import Sizes
from showers.schema import COMPOSITION
from showers.simulation import load_settings

SIZES = Sizes(matched=500, free=200, gamma=200, gamma_test=200)


def published(n: int = 5_000) -> Published:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 5, n)
    logits = rng.normal(0.0, 1.0, (n, 5)) - np.abs(labels[:, None] - np.arange(5))
    said = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return Published("v1", PublishedNetwork(), labels, said.astype(np.float16))


def test_real_posteriors_do_not_deviate_and_others_do() -> None:
    real = published()
    target = PosteriorTarget(real)
    assert np.abs(target.deviations(real.labels, real.posteriors)).max() < 1e-6
    bolder = decisions(real.posteriors)
    assert (target.deviations(real.labels, bolder) ** 2).sum() > 100.0
    # Half of the events: deviations of the size of the sampling error, far below a unit.
    half = target.deviations(real.labels[::2], real.posteriors[::2])
    assert np.abs(half).max() < 2.5


def test_smooth_decisions_are_nearly_those_for_the_largest() -> None:
    real = published()
    smooth, hard = decisions(real.posteriors), np.eye(5)[real.posteriors.argmax(axis=1)]
    assert np.abs(smooth.mean(axis=0) - hard.mean(axis=0)).max() < 0.02
    assert smooth.sum(axis=1) == pytest.approx(1.0)


def problem(names: tuple[str, ...], start: dict[str, float], networks: tuple[Published, ...] = ()) -> Problem:
    free = [Free(name, 0.02, 0.1) for name in names]
    targets = [fact for fact in FACTS if fact.sample == MATCHED and fact.name in ("mean Ne", "mean Nmu")]
    settings = load_settings().changed(**start)
    return Problem(settings, free, targets, networks, (COMPOSITION,), sizes=SIZES, seed=3, workers=1)


def test_a_displaced_constant_is_found_again() -> None:
    base = load_settings()
    moved = problem(("cascade__lg_nmu_offset",), {"cascade__lg_nmu_offset": base.cascade.lg_nmu_offset + 0.08})
    kept = []
    fitted = fit(moved, 2, 1.0, kept.append)
    assert kept
    assert kept[-1].cascade.lg_nmu_offset == fitted[0]
    # Two facts against the prior's pull back to where the fit began.
    assert fitted[0] < base.cascade.lg_nmu_offset + 0.045


def test_constants_that_cannot_be_negative_stop_at_zero() -> None:
    at = problem(("detector__muon_stray", "cascade__lg_nmu_offset"), {})
    slope = np.array([[3000.0, 0.0], [0.0, 10.0]])
    step = next_step(at, at.origin, np.array([30.0, 30.0]), slope, 0.7)
    assert at.origin[0] + step[0] == pytest.approx(0.0, abs=1e-8)
    assert at.origin[0] + step[0] >= 0.0
    assert step[1] == pytest.approx(-0.07)


def test_networks_add_their_deviations() -> None:
    alone, watched = problem(("cascade__lg_nmu_offset",), {}), problem(("cascade__lg_nmu_offset",), {}, (published(),))
    found = watched.deviations(watched.origin)
    assert found[:2] == pytest.approx(alone.deviations(alone.origin))
    n_norms = sum(sums.size for sums in Moments(watched.networks[0].published.network).sums.values())
    assert len(found) == 2 + POSTERIORS + SCORES + n_norms
    assert watched.weights(found)[2:].tolist() == [1.0] * (POSTERIORS + SCORES + n_norms)


def test_a_judge_is_heard_and_pulls_at_nothing() -> None:
    network = published()
    targets = [fact for fact in FACTS if fact.sample == MATCHED and fact.name == "mean Ne"]
    free = [Free("cascade__lg_nmu_offset", 0.02, 0.1)]
    judged = Problem(
        load_settings(), free, targets, (), (COMPOSITION,), scorers=[network], sizes=SIZES, seed=3, workers=1
    )
    found = judged.deviations(judged.origin)
    assert len(found) == 1
    assert len(judged.judged[0]) > 96
    assert "v1: posteriors" in summary(judged, found, judged.origin)


def test_plain_moments_are_shifted_to_those_of_training() -> None:
    network = published()
    target = NetworkTarget(network)
    rng = np.random.default_rng(2)
    cells = torch.from_numpy(rng.exponential(1.0, (300, 2, 16, 16)).astype(np.float32))
    scalars = torch.from_numpy(rng.normal(0.0, 1.0, (300, 6)).astype(np.float32))
    seen = Look(target)
    seen.add(cells, scalars)
    target.calibrate(seen.norms(), cells, scalars)
    trained = norm_vector(norm_deviations(network.network, cells, scalars))
    assert seen.deviations(network.labels[:300])[POSTERIORS + SCORES :] == pytest.approx(trained, abs=1e-4)
    assert np.abs(seen.norms() - trained).max() > 0.01


def test_an_interrupted_fit_keeps_its_slopes(tmp_path: Path) -> None:
    names = ("cascade__lg_nmu_offset", "cascade__lg_ne_offset")
    whole, state = problem(names, {}), tmp_path / "slopes.npz"
    slope = jacobian(whole, whole.origin, 1.0, state)
    with np.load(state) as kept:
        np.savez(state, values=kept["values"], base=kept["base"], columns=kept["columns"][:1] + 1.0)
    again = jacobian(whole, whole.origin, 1.0, state)
    assert again[:, 0] == pytest.approx(slope[:, 0] + 1.0)
    assert again[:, 1] == pytest.approx(slope[:, 1])


def test_constants_are_pulled_to_the_monte_carlos_value() -> None:
    free = [Free("cascade__xmax_scale", 0.02, 0.1, centre=1.0)]
    pulled = Problem(load_settings(), free, [], (), (COMPOSITION,), sizes=SIZES, seed=3)
    assert pulled.pulls(np.array([0.8])) == pytest.approx([-2.0])


def test_epos_as_qgsjet_differs_by_chance_alone() -> None:
    start = load_settings().changed(cascade__epos_xmax=0.0, cascade__epos_lg_ne=0.0, cascade__epos_lg_nmu=0.0)
    free = [Free("cascade__epos_lg_ne", 0.02, 0.1)]
    sizes = replace(SIZES, free=4_000)
    same = ModelProblem(start, free, [published()], sizes=sizes, seed=3, workers=1)
    found = same.deviations(same.origin)
    assert found.shape == (5,)
    assert abs(found[4] * same.facts[4].tolerance + same.facts[4].real) < 0.1
    # Far fewer electrons: far fewer events pass.
    fewer = same.deviations(np.array([-0.3]))
    assert fewer[4] < found[4] - 1.0
