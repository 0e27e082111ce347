"""Cuts: those of the published analyses, on data and simulation alike, counted one after the other; label files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from showerstack.analysis.cuts import AGE, CORE, add_flows, published_cuts
from showerstack.analysis.events import MeasuredFolders, label_remarks, scalars
from showerstack.runtime.files import write_json
from showerstack.showers.array import KASCADE, array_entry
from showerstack.showers.card import ArrayCard
from showerstack.showers.dataset import Dataset


def _columns(**changes: list[float]) -> dict[str, np.ndarray]:
    values = {"Ze": [10, 10, 19, 10, 10, 10], "Ne": [5, 4.8, 5, 5, 5, 5], "Nmu": [4, 4, 4, 3.6, 4, 4]}
    values |= {AGE: [1.0, 1, 1, 1, 1.48, 1], CORE: [50.0, 50, 50, 50, 50, 91]}
    return {name: np.array(value, dtype=np.float32) for name, value in (values | changes).items()}


def test_every_cut_leaves_its_own_events_out() -> None:
    cuts = published_cuts(18.0, 3.6)
    columns = _columns()
    assert cuts.mask(columns).tolist() == [True] + 5 * [False]
    assert cuts.flow(columns) == {
        "zenith < 18 deg": 5, "lg Ne > 4.8": 4, "lg Nmu > 3.6": 3, "0.2 < age < 1.48": 2,
        "core within 91 m": 1,
    }  # fmt: skip
    assert cuts.not_applied(columns) == []
    assert published_cuts(18.0).mask(columns).tolist() == [True, False, False, True, False, False], "photons lack muons"


def test_what_a_set_does_not_know_is_not_cut_and_said() -> None:
    columns = _columns()
    del columns[AGE]
    columns[CORE] = np.full(6, np.nan, dtype=np.float32)
    cuts = published_cuts(18.0, 3.6)
    assert cuts.mask(columns).tolist() == [True, False, False, False, True, True]
    assert cuts.not_applied(columns) == ["age", "position of the core"]
    columns[CORE][0] = 50.0
    assert cuts.mask(columns).tolist() == [True] + 5 * [False], "an event whose core alone is undefined does not pass"
    flows = [{"all": 6, "zenith < 18 deg": 5, "0.2 < age < 1.48": 4}, {"all": 3, "zenith < 18 deg": 2}]
    assert add_flows(flows) == {"all": 9, "zenith < 18 deg": 7, "0.2 < age < 1.48": 6}


def test_cuts_of_kascade_are_told_where_the_array_is_another(tiny_composition: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(tiny_composition / "composition_test", folder, ignore=shutil.ignore_patterns("checksums.json"))
    own = replace(KASCADE, name="tanks", card=ArrayCard(depth_g_cm2=880.0))
    for array, told in ((own, 1), (KASCADE, 0)):
        write_json(folder / "source.json", array_entry(array))
        measured = MeasuredFolders(None, [folder])  # type: ignore[arg-type]
        measured.passing(Dataset.open(folder, labels=False), published_cuts(18.0))
        assert sum("are KASCADE's, not those of tanks" in line for line in measured.remarks) == told


def test_a_label_file_that_only_the_checksums_name_is_not_claimed(tiny_gamma: Path, tmp_path: Path) -> None:
    folder = tmp_path / "measured"
    shutil.copytree(tiny_gamma / "gamma_test", folder, ignore=shutil.ignore_patterns("*.features", "labels_*"))
    assert "labels_gamma.npy" in (folder / "checksums.json").read_text()
    assert label_remarks(Dataset.open(folder, labels=False)) == []
    shutil.copy(tiny_gamma / "gamma_test" / "labels_gamma.npy", folder)
    assert "labels_gamma.npy, which is not read" in label_remarks(Dataset.open(folder, labels=False))[0]


def test_simulated_sets_know_age_and_core_as_reconstructed(tiny_composition: Path) -> None:
    """Under the name of the truth stands the true core: it is not cut."""
    dataset = Dataset.open(tiny_composition / "composition_test", labels=False)
    columns, truth = scalars(dataset), pl.read_parquet(dataset.path / "truth.parquet")
    core = np.hypot(truth["reconstructed_core_x_m"], truth["reconstructed_core_y_m"]).to_numpy()
    np.testing.assert_allclose(columns[CORE], core, rtol=1e-5)
    assert (core > 91).any()
    assert (np.hypot(truth["core_x_m"], truth["core_y_m"]).to_numpy() <= 91.01).all()
    assert not published_cuts(60.0).mask(columns)[core > 91].any()
    assert np.isfinite(columns[AGE]).all()
