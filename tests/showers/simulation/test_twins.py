"""Hadronic models of one seed share no shower, and conversion spreads none over train and test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runtime.errors import InputError
from showers.archives.convert import convert
from showers.dataset import Dataset
from showers.schema import COMPOSITION, GAMMA, Task
from showers.simulation import load_settings
from showers.simulation.blocks import BlockJob, SimulatedEvents, simulate_block
from showers.simulation.primaries import MODELS
from showers.simulation.raw import simulate_raw


def twins(first: SimulatedEvents, second: SimulatedEvents) -> int:
    """Count events of the first that have the direction, the core and the class of one of the second."""

    def place(events: SimulatedEvents) -> np.ndarray:
        truth = events.truth
        columns = ("zenith_deg", "azimuth_deg", "core_x_m", "core_y_m")
        return np.column_stack([*(truth[name].to_numpy() for name in columns), 100.0 * events.labels])

    distance = np.abs(place(first)[:, None] - place(second)[None]).max(axis=2)
    return int((distance.min(axis=1) < 0.05).sum())


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=lambda task: task.name)
def test_models_of_one_seed_are_independent(task: Task) -> None:
    settings, models = load_settings(), (*MODELS, "mix")
    found = {model: simulate_block(BlockJob(task, "train", 5, model, "test", settings), 0) for model in models}
    assert twins(found["qgs"], found["qgs"]) == len(found["qgs"]) > 100, "the finder knows a copy"
    for model in ("epos", "sibyll", "mix"):
        assert twins(found[model], found["qgs"]) == 0


def test_groups_are_the_showers_of_each_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Showers keep the number of their first raw row, so that their energies can be looked up.
    monkeypatch.setattr("showers.archives.convert._renumbered", lambda groups, content: groups)
    simulate_raw(COMPOSITION, tmp_path / "raw", 900, reuse=3)
    truth = []
    for mode in ("qgs_spectra", "epos_spectra"):
        with np.load(tmp_path / "raw" / f"{mode}_true_features.npz") as archive:
            truth.append(archive["true_features"])
    energy = np.concatenate(truth)[:, 0]
    groups = [np.asarray(Dataset.open(folder).groups) for folder in convert(tmp_path / "raw", tmp_path, COMPOSITION)]
    for rows in groups:
        assert np.array_equal(np.unique(rows).size, np.unique(energy[rows]).size), "a group is one shower"
    assert set(energy[:900]).isdisjoint(energy[900:]), "no shower is in two modes"
    assert np.intersect1d(*groups).size == 0, "no shower is in train and test"


def test_modes_that_copy_each_other_are_refused(tmp_path: Path) -> None:
    simulate_raw(COMPOSITION, tmp_path, 300)
    for kind in ("matrices", "features", "true_features"):
        with np.load(tmp_path / f"qgs_spectra_{kind}.npz") as archive:
            array = archive[kind]
        for mode in ("qgs_spectra", "epos_spectra"):
            np.savez(tmp_path / f"{mode}_{kind}.npz", **{kind: array})
    with pytest.raises(InputError, match=r"epos_spectra_true_features\.npz.*300 of 300 showers .* qgs_spectra"):
        convert(tmp_path, tmp_path / "sets", COMPOSITION)
