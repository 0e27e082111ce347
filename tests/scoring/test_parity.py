"""Parity with the benchmark's definition: a plain second implementation, and any valid input at all."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from showerstack.runtime.errors import InputError
from showerstack.scoring.metrics.composition import (
    class_fraction_errors,
    composition_metrics,
    expected_fraction_error,
    fraction_error,
    mixture_counts,
)
from showerstack.scoring.metrics.gamma import gamma_metrics, hadron_survival

NAMES = ["proton", "helium", "carbon", "silicon", "iron"]
BINS = [(14.0, 15.0), (15.0, 15.5), (15.5, 16.0), (16.0, 16.5), (16.5, 17.0), (17.0, 18.0)]


def plain_errors(truth: np.ndarray, guess: np.ndarray, rng: np.random.Generator) -> list[list[float]] | None:
    """The definition, word by word: loops, rng.choice on the indices of each class."""
    indices = [np.flatnonzero(truth == k) for k in range(5)]
    if any(len(members) == 0 for members in indices):
        return None
    errors = []
    for tenths in itertools.product(range(11), repeat=4):
        if sum(tenths) > 10:
            continue
        fractions = [t * 0.1 for t in tenths] + [(10 - sum(tenths)) * 0.1]
        counts = [round(5000 * f) for f in fractions]
        counts[int(np.argmax(counts))] += 5000 - sum(counts)
        drawn = [guess[rng.choice(indices[k], size=counts[k], replace=True)] for k in range(5) if counts[k] > 0]
        tally = np.bincount(np.concatenate(drawn), minlength=5)
        errors.append([abs(counts[k] / 5000 - tally[k] / 5000) for k in range(5)])
    return errors


def plain_fraction_error(errors: list[list[float]] | None) -> dict[str, Any] | None:
    if errors is None:
        return None
    return {
        "mean_fraction_error": float(np.mean(errors)),
        "per_class_fraction_error": [float(np.mean([row[k] for row in errors])) for k in range(5)],
        "n_ensembles": 1001,
        "mixture_size": 5000,
        "grid_step": 0.1,
    }


def plain_composition(truth: np.ndarray, guess: np.ndarray, energy: np.ndarray) -> dict[str, Any]:
    precision, recall, f1, support = precision_recall_fscore_support(truth, guess, labels=range(5), zero_division=0)
    errors = plain_errors(truth, guess, np.random.default_rng(2026))
    details = plain_fraction_error(errors)
    shared, binned = np.random.default_rng(2026), {}
    for low, high in BINS:
        inside = np.array([low <= np.float32(e) < high for e in energy], dtype=bool)
        if not inside.any():
            continue
        row = {
            "accuracy": float(np.mean(truth[inside] == guess[inside])),
            "count": int(inside.sum()),
            "confusion_matrix": confusion_matrix(truth[inside], guess[inside], labels=range(5)).tolist(),
        }
        result = plain_fraction_error(plain_errors(truth[inside], guess[inside], shared))
        if result is not None:
            row["fraction_error"] = result
        binned[f"{low:.1f}-{high:.1f}"] = row
    return {
        "accuracy": float(np.mean(truth == guess)),
        "per_class": {
            name: {"precision": precision[k], "recall": recall[k], "f1": f1[k], "support": float(support[k])}
            for k, name in enumerate(NAMES)
        },
        "macro_f1": float(np.mean(f1)),
        "weighted_f1": float(np.sum(f1 * support) / np.sum(support)),
        "confusion_matrix": confusion_matrix(truth, guess, labels=range(5)).tolist(),
        "mean_fraction_error": details["mean_fraction_error"],
        "fraction_error_details": details,
        "fraction_error_extremes": {
            "per_class_max": [max(row[k] for row in errors) for k in range(5)],
            "per_class_p99": [float(np.percentile([row[k] for row in errors], 99)) for k in range(5)],
        },
        "energy_binned": binned,
    }


def plain_survival(truth: np.ndarray, scores: np.ndarray, efficiency: float, *, counts: bool) -> dict[str, Any] | None:
    gammas = sorted(scores[truth == 0].tolist(), reverse=True)
    hadrons = scores[truth == 1].tolist()
    if not gammas or not hadrons:
        return None
    threshold = gammas[math.ceil(efficiency * len(gammas)) - 1]
    survivors = sum(score >= threshold for score in hadrons)
    entries = {
        "threshold": threshold,
        "gamma_efficiency": sum(score >= threshold for score in gammas) / len(gammas),
        "hadron_survival": survivors / len(hadrons),
        "hadron_surviving": survivors,
    }
    return entries | {"n_gamma": len(gammas), "n_hadron": len(hadrons)} if counts else entries


def plain_gamma(truth: np.ndarray, scores: np.ndarray, energy: np.ndarray, zenith: np.ndarray) -> dict[str, Any]:
    def within(values: np.ndarray, low: float, high: float) -> np.ndarray:
        return np.array([low <= np.float32(v) < high for v in values], dtype=bool)

    def binned(mask: np.ndarray) -> dict[str, Any] | None:
        return plain_survival(truth[mask], scores[mask], 0.75, counts=True)

    zeniths = [(0, 10), (10, 20), (20, 30)]
    rates = {f"{round(100 * s)}%": plain_survival(truth, scores, s, counts=False) for s in (0.5, 0.75, 0.9, 0.95, 0.99)}
    by_energy = {f"{low:.1f}-{high:.1f}": binned(within(energy, low, high)) for low, high in BINS}
    by_zenith = {f"{low}-{high}": binned(within(zenith, low, high)) for low, high in zeniths}
    grid = {}
    for low, high in zeniths:
        edges = [14 + k / 2 for k in range(8)]
        row = {f"{e:.1f}-{e + 0.5:.1f}": binned(within(zenith, low, high) & within(energy, e, e + 0.5)) for e in edges}
        if row := {name: cell for name, cell in row.items() if cell}:
            grid[f"{low}-{high}"] = row
    return {
        "n_gamma": int(np.sum(truth == 0)),
        "n_hadron": int(np.sum(truth == 1)),
        "survival_rates": rates,
        "key_metric": rates["75%"]["hadron_survival"],
        "accuracy_at_0.5": float(np.mean([(s >= 0.5) == (t == 0) for s, t in zip(scores, truth, strict=True)])),
        "energy_binned": {name: cell for name, cell in by_energy.items() if cell},
        "zenith_binned": {name: cell for name, cell in by_zenith.items() if cell},
        "energy_zenith_grid": grid,
    }


def assert_same(ours: Any, plain: Any, where: str = "") -> None:
    """Same keys, integers equal and integers, floats to 1e-12."""
    if isinstance(plain, dict):
        assert list(ours) == list(plain), where
        for key in plain:
            assert_same(ours[key], plain[key], f"{where}/{key}")
    elif isinstance(plain, list):
        assert len(ours) == len(plain), where
        for k, (left, right) in enumerate(zip(ours, plain, strict=True)):
            assert_same(left, right, f"{where}/{k}")
    elif isinstance(plain, int):
        assert type(ours) is int, where
        assert ours == plain, where
    else:
        assert type(ours) is float, where
        assert ours == pytest.approx(plain, rel=0, abs=1e-12), where


# edges of the bins as float16 stores them, and their neighbours
EDGES = [
    float(np.nextafter(np.float16(e), np.float16(to))) for e in (14, 15, 15.5, 16, 16.5, 17, 18) for to in (0, e, 99)
]
ENERGIES = st.sampled_from([*EDGES, 14.7, 15.2])
ZENITHS = st.sampled_from([0.0, 9.9921875, 10.0, 19.984375, 20.0, 29.984375, 30.0, -1.0])


@pytest.mark.slow
@given(st.data())
@settings(max_examples=12, deadline=None)
def test_composition_on_tiny_sets_equals_the_plain_definition(data: st.DataObject) -> None:
    n = data.draw(st.integers(5, 40))
    truth = np.array([*range(5), *data.draw(st.lists(st.integers(0, 4), min_size=n - 5, max_size=n - 5))], np.int8)
    guess = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    # one energy for many events, so that some bins hold all classes and others lack some
    energy = np.array(data.draw(st.lists(ENERGIES, min_size=n, max_size=n)), dtype=np.float16)
    energy[: n // 2] = data.draw(ENERGIES)
    assert_same(composition_metrics(truth, guess, energy), plain_composition(truth, guess, energy))


def test_composition_on_a_realistic_set_equals_the_plain_definition() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 5, 4000).astype(np.int8)
    guess = np.clip(truth + rng.integers(-1, 2, 4000), 0, 4)
    energy = rng.choice([14.9, 15.2, 15.7, 16.2, 16.7, 17.5], 4000).astype(np.float16)
    truth[(energy > 17) & (truth == 4)] = 3  # the last bin lacks a class
    ours = composition_metrics(truth, guess, energy)
    assert "fraction_error" not in ours["energy_binned"]["17.0-18.0"]
    assert_same(ours, plain_composition(truth, guess, energy))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_gamma_on_tiny_sets_equals_the_plain_definition(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 40))
    truth = np.array([0, 1, *data.draw(st.lists(st.integers(0, 1), min_size=n - 2, max_size=n - 2))], np.int8)
    # few distinct values, so that ties at the threshold are the rule
    value = st.sampled_from([0.0, 0.5, 0.49999997, 1.0, -3.0, 1e300]) | st.floats(-5, 5)
    scores = np.array(data.draw(st.lists(value, min_size=n, max_size=n)))
    energy = np.array(data.draw(st.lists(ENERGIES, min_size=n, max_size=n)), dtype=np.float16)
    zenith = np.array(data.draw(st.lists(ZENITHS, min_size=n, max_size=n)), dtype=np.float16)
    assert_same(gamma_metrics(truth, scores, energy, zenith), plain_gamma(truth, scores, energy, zenith))


def test_grid_of_mixtures() -> None:
    counts = mixture_counts()
    assert counts.shape == (1001, 5)
    assert (counts.sum(axis=1) == 5000).all()
    assert counts[0].tolist() == [0, 0, 0, 0, 5000]
    assert counts[1].tolist() == [0, 0, 0, 500, 4500]
    assert counts[-1].tolist() == [5000, 0, 0, 0, 0]
    assert not counts.flags.writeable


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [(np.eye(5), 0.0), (np.full((5, 5), 0.2), 0.158), (np.eye(5)[[2] * 5], 0.32)],
    ids=["perfect", "uniform", "one constant class"],
)
def test_closed_form_of_known_matrices(matrix: np.ndarray, expected: float) -> None:
    assert expected_fraction_error(matrix) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize("n", [1, 40, 97])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_closed_forms_of_many_matrices_are_products_of_each(n: int, dtype: type) -> None:
    given = np.random.default_rng(n).dirichlet(np.full(5, 0.5), size=(n, 5)).astype(dtype)
    expected = np.abs(mixture_counts() / 5000 @ (np.eye(5) - given.astype(np.float64))).mean(axis=1)
    found = class_fraction_errors(given)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=2e-6 if dtype is np.float32 else 1e-14)
    np.testing.assert_array_equal(class_fraction_errors(given.reshape(1, n, 5, 5)), found[None])


def test_published_confusion_matrix_gives_the_published_error() -> None:
    """Row-normalised confusion matrix of the reproduced LeNet: 0.1081 with its rows rounded to three digits."""
    matrix = [
        [0.644, 0.226, 0.105, 0.021, 0.003],
        [0.295, 0.355, 0.249, 0.079, 0.021],
        [0.053, 0.223, 0.389, 0.245, 0.091],
        [0.003, 0.038, 0.231, 0.396, 0.332],
        [0.000, 0.003, 0.041, 0.235, 0.720],
    ]
    assert expected_fraction_error(np.array(matrix)) == pytest.approx(0.1081, abs=5e-4)


def test_sampled_value_is_the_closed_form_up_to_its_draws() -> None:
    rng = np.random.default_rng(8)
    truth = rng.integers(0, 5, 30_000)
    guess = np.where(rng.random(30_000) < 0.5, truth, rng.integers(0, 5, 30_000))
    matrix = confusion_matrix(truth, guess)
    assert fraction_error(truth, guess) == pytest.approx(expected_fraction_error(matrix), abs=3e-3)


def test_a_missing_class_is_refused_by_number() -> None:
    truth = np.array([0, 1, 2, 4])
    with pytest.raises(InputError, match=r"every class; none of class \[3\]"):
        fraction_error(truth, truth)


def test_survival_refuses_efficiencies_that_make_no_sense() -> None:
    with pytest.raises(InputError, match="outside"):
        hadron_survival(np.array([0, 1]), np.array([0.1, 0.2]), 0.0)
    with pytest.raises(InputError, match="0 gammas"):
        hadron_survival(np.array([1, 1]), np.array([0.1, 0.2]))
