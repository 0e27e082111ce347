"""Robustness: biases that are put in come out, fits are kept, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.physics import robustness_study as study_module
from benchmarks.physics.classifier import weighted_auc
from benchmarks.physics.places import jittered, parse_places
from benchmarks.physics.robustness_study import (
    ALONE,
    JITTER,
    MIX,
    WITHOUT,
    Robustness,
    RobustnessOptions,
    share_bias,
    study,
)
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION


def _posteriors(labels: np.ndarray, rng: np.random.Generator, shift: float = 0.0) -> np.ndarray:
    x = labels + shift + rng.normal(0, 1, len(labels))
    density = -0.5 * (x[:, None] - np.arange(5)) ** 2
    return np.asarray(density - np.logaddexp.reduce(density, axis=1, keepdims=True))


def test_biases_of_shares_are_zero_at_home_and_seen_abroad() -> None:
    rng, prior = np.random.default_rng(1), np.full(5, 0.2)
    pulls = []
    for _ in range(40):
        labels, here = rng.choice(5, 3000, p=[0.1, 0.1, 0.3, 0.3, 0.2]), rng.integers(0, 5, 3000)
        response = [(_posteriors(here, rng), here)]
        bias, error = share_bias(_posteriors(labels, rng), labels, response, prior, 1)
        pulls.append(bias / error)
        assert abs(bias.sum()) < 1e-9
    pulls = np.array(pulls)
    # Means of 40 pulls have an error of .16; their width, from four independent shares each, one of .06.
    assert np.abs(pulls.mean(axis=0)).max() < 0.6
    assert 0.7 < pulls.std() < 1.35
    bias, error = share_bias(_posteriors(labels, rng, 0.6), labels, response, prior, 1)
    assert np.abs(bias / error).max() > 3


def test_the_error_of_a_weighted_auc_is_its_scatter() -> None:
    rng, z = np.random.default_rng(5), []
    for _ in range(400):
        auc = weighted_auc(rng.normal(size=2_000), rng.normal(size=3_000), rng.exponential(1.0, 3_000))
        z.append((auc.value - 0.5) / auc.error)
    # The width of 400 normal numbers is known to .035, their mean to .05.
    assert np.std(z) == pytest.approx(1.0, abs=0.18)
    assert abs(np.mean(z)) < 0.25


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Robustness:
    places = parse_places("default/qgs,default/sibyll,harder/mix")
    out = tmp_path_factory.mktemp("robustness")
    return study(RobustnessOptions(places, out, train=600, test=500, learner="quadratic_logit"), Context(workers=1))


def test_every_training_is_tested_everywhere(found: Robustness) -> None:
    table = pl.read_csv(found.options.out / "robustness.csv")
    counts = dict(table["training"].value_counts().iter_rows())
    assert counts == {ALONE: 9, WITHOUT: 3, JITTER: 3, MIX: 3}
    home = table.filter((pl.col("training") == ALONE) & (pl.col("trained_on") == "default/qgs"))
    assert (home["log_loss_minus_home"] == 0).all()
    diagonal = table.filter((pl.col("training") == ALONE) & (pl.col("trained_on") == pl.col("tested_on")))
    for name in COMPOSITION.classes:
        assert (diagonal[f"share_bias_{name}"].abs() < 4 * diagonal[f"share_error_{name}"]).all()
    assert (table["accuracy"] > 0.3).all()
    assert set(found.auc) == {"default/sibyll", "harder/mix"}


def test_fits_are_kept(found: Robustness, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(study_module, "create", never)
    assert study(found.options).table().equals(found.table())
    with pytest.raises(AssertionError, match="trained again"):
        study(replace(found.options, seed=1, preset="good"))


def test_jitter_changes_sizes_together(tiny_composition: Path, tmp_path: Path) -> None:
    source = tiny_composition / "composition_test"
    copy = Dataset.open(jittered(source, tmp_path / "copy", 0.05, 3), COMPOSITION)
    old = Dataset.open(source, COMPOSITION)
    moved = copy.scalars[:, 4].astype(float) - old.scalars[:, 4].astype(float)
    assert moved.std() == pytest.approx(0.05, rel=0.15)
    sums = [np.asarray(data.matrices[..., 1], dtype=float).sum(axis=(1, 2)) for data in (copy, old)]
    np.testing.assert_allclose(np.log10(sums[0] / sums[1]), moved, atol=0.01)
    np.testing.assert_array_equal(copy.labels, old.labels)


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ("default", "world/model"), ("default/qgs", "two or more"), ("default/qgs,default/qgs", "given twice"),
        ("default/qgs,default/none", "hadronic model"), ("default/qgs,nowhere/mix", "nowhere"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            parse_places(text)
    options = RobustnessOptions(parse_places("default/qgs,default/epos"), tmp_path)
    for changes, message in (({"train": 10}, "at least 500"), ({"jitter": 0.0}, "jitter"), ({"learner": "x"}, "x")):
        with pytest.raises(InputError, match=message):
            study(replace(options, **changes))  # type: ignore[arg-type]
