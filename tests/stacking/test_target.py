"""A target as bins: equal numbers of events, estimates and errors that are those of the posterior."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import InputError
from showers.dataset import Dataset
from showers.schema import ENERGY
from showers.writer import write_dataset
from stacking.decide.base import DecisionSample
from stacking.decide.classes import stacking_of
from stacking.decide.target import PosteriorMean
from stacking.inputs.events import Binned, ShowerEvents, binned
from stacking.meta.scorers import LogLossScorer, OrderedScorer
from tests.report.conftest import make_dataset

RNG = np.random.default_rng(1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder whose true energies lie 0.1 above the reconstructed ones, give or take 0.05."""
    folder = make_dataset(tmp_path / "energy_train", ENERGY, np.full(3000, 15.0), np.random.default_rng(2))
    (folder / "checksums.json").unlink()
    reconstructed = np.load(folder / "features.npy")[:, 0].astype(np.float32)
    true = reconstructed + np.random.default_rng(3).normal(0.1, 0.05, 3000)
    np.save(folder / "labels_energy.npy", true.astype(np.float32))
    return folder


def test_bins_hold_equal_numbers_of_events_under_the_cuts(data: Path) -> None:
    opened = Dataset.open(data, ENERGY)
    found = binned(opened)
    passing = opened.evaluation_cuts.mask(opened.scalar_frame())
    assert 0 < passing.sum() < 3000
    counts = np.bincount(found.labels[passing], minlength=ENERGY.n_classes)
    assert counts.max() - counts.min() <= 1
    assert found.offsets.mean() == pytest.approx(0.1, abs=0.005)
    events = ShowerEvents(data, data, ENERGY, labelled=True)
    np.testing.assert_array_equal(events.labels(), found.labels)
    with pytest.raises(InputError, match="labels are not read here"):
        ShowerEvents(data, data, ENERGY).offsets()


def test_mean_and_width_are_those_of_the_mixture() -> None:
    values, bins = np.array([0.0, 2.0, 10.0, 14.0]), np.array([0, 0, 1, 1])
    rule = PosteriorMean.of(values, bins, 2)
    estimate, error = rule(np.log([[0.5, 0.5], [1.0, 1e-300]]))
    np.testing.assert_allclose(estimate, [values.mean(), 1.0])
    np.testing.assert_allclose(error, [values.std(), 1.0])
    again = PosteriorMean.from_json(json.loads(json.dumps(rule.as_json())))
    np.testing.assert_array_equal(again(np.log([[0.3, 0.7]])), rule(np.log([[0.3, 0.7]])))


def test_estimates_start_from_the_reconstructed_energy() -> None:
    procedure = stacking_of(ENERGY)
    offsets = RNG.normal(0, 0.1, 6000)
    labels = np.argsort(np.argsort(offsets)) * ENERGY.n_classes // len(offsets)
    sharp = np.where(labels[:, None] == np.arange(ENERGY.n_classes), 0.0, -40.0)
    held_out = DecisionSample({"stack": sharp}, "stack", labels, labels % 2, None, offsets, Binned(offsets, labels))
    record, rules = procedure.decide(held_out, Path("nowhere"), lambda *_: None)
    assert record["held_out"]["resolution"] < 0.02
    assert record["held_out_in_widths"]["rms"] == pytest.approx(1.0, abs=0.05)
    context = np.column_stack([np.linspace(14, 16, 6000), np.zeros((6000, 3))])
    found = procedure.arrays(rules["stack"], sharp, context)
    assert list(found) == ["lg_energy", "lg_energy_error"]
    missed = found["lg_energy"] - context[:, 0] - offsets
    assert np.std(missed) < 0.03
    assert np.mean(np.abs(missed) < found["lg_energy_error"]) == pytest.approx(0.683, abs=0.02)
    assert [column.name for column in procedure.columns(found, ENERGY)] == list(found)


def test_greedy_selection_sees_the_distance_of_bins() -> None:
    labels = np.zeros(100, int)
    near, far = (np.log(np.tile(p, (100, 1))) for p in ([0.4, 0.5, 0.1], [0.4, 0.1, 0.5]))
    scorer = OrderedScorer()
    assert scorer.metric(near, labels) < scorer.metric(far, labels)
    assert scorer.loss(near, labels) == scorer.loss(far, labels) == LogLossScorer().loss(near, labels)
    certain = np.log([[1.0, 1e-300, 1e-300]])
    assert scorer.metric(certain, np.array([0])) == 0.0


def test_true_values_that_cannot_be_are_refused(data: Path, tmp_path: Path) -> None:
    values = np.load(data / "labels_energy.npy")
    values[17] = 8.0
    np.save(data / "labels_energy.npy", values)
    with pytest.raises(InputError, match=r"labels_energy.npy: row 17 holds 8, expected lg\(E/eV\) from 13 to 19"):
        Dataset.open(data, ENERGY)
    (data / "labels_energy.npy").unlink()
    with pytest.raises(InputError, match="the public sets hold no true values"):
        Dataset.open(data, ENERGY)
    with write_dataset(tmp_path / "made", 2, ENERGY, source={}) as writer:
        writer.put(0, np.zeros((2, 16, 16, 2)), np.full((2, 5), 15.0), np.array([15.25, 15.5]))
    np.testing.assert_array_equal(np.asarray(Dataset.open(tmp_path / "made", ENERGY).labels), [15.25, 15.5])
