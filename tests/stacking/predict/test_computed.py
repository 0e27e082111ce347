"""Prediction without a feature table: the bits of the table, nothing kept, bad input told as with tables."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import cli
import stacking
import stacking.inputs.events
from features.build import build_table
from features.catalogue import CATALOGUE
from features.compute import compute_rows
from features.table import FeatureTable
from runtime.checksums import CHECKSUMS_FILE
from runtime.errors import InputError
from showers.dataset import Dataset
from showers.schema import COMPOSITION, MATRICES_FILE, SCALARS_FILE
from stacking.inputs import computed
from stacking.inputs.computed import ComputedEvents
from stacking.inputs.events import CORE_COLUMNS, ShowerEvents, pieces
from stacking.predict import predict_to_file
from stacking.run.config import StackConfig
from stacking.train import stack

SMALL = {"lightgbm": {"rounds": 10}, "quadratic_logit": {}}


@pytest.fixture(scope="module")
def run(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "composition"
    options = {"preset": "quick", "learners": tuple(SMALL), "settings": SMALL, "folds": 2, "workers": 1}
    stack(StackConfig(task="composition", data=tiny_composition, run=folder, device="cpu", **options))
    return folder


@pytest.fixture
def new(tiny_composition: Path, tmp_path: Path) -> Path:
    """2,000 events without labels, and without a feature table."""
    folder = tmp_path / "new" / "events"
    shutil.copytree(
        tiny_composition / "composition_train", folder, ignore=shutil.ignore_patterns("labels*", "*.json", "truth*")
    )
    return folder


@pytest.fixture(params=[False, True], ids=["without age", "with age"])
def showers(request: pytest.FixtureRequest, new: Path) -> Path:
    """Return the same events, with the age as sixth column of the scalars or without."""
    if request.param:
        scalars = np.load(new / SCALARS_FILE)
        age = np.random.default_rng(1).uniform(0.5, 1.5, len(scalars))
        np.save(new / SCALARS_FILE, np.column_stack([scalars, age]).astype(np.float32))
    return new


@pytest.fixture
def borders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 700 events, features in blocks of 512: no border of pieces is one of blocks."""
    monkeypatch.setattr(stacking.inputs.events, "PIECE_EVENTS", 700)
    monkeypatch.setattr(computed, "BLOCK_EVENTS", 512)
    monkeypatch.setattr(computed, "GPU_CHUNK", 512)


def _same(found: np.ndarray | None, expected: np.ndarray | None) -> None:
    assert found is not None
    assert expected is not None
    assert found.dtype == expected.dtype
    # Bits: of NaN and zero, too.
    first, second = (np.ascontiguousarray(one).view(np.uint8) for one in (found, expected))
    np.testing.assert_array_equal(first, second)


@pytest.mark.usefixtures("borders")
@pytest.mark.parametrize("workers", [1, 2])
def test_columns_are_those_of_the_table_bit_by_bit(showers: Path, tmp_path: Path, workers: int) -> None:
    table = build_table(showers, tmp_path / "table", device="cpu", workers=1)
    through = ShowerEvents(showers, table.folder, COMPOSITION)
    events = ComputedEvents.of(showers, COMPOSITION, table.columns, workers=workers)
    assert ("Age" in table.columns) == (Dataset.open(showers, labels=False).age is not None)
    every, some = list(pieces(len(events))), ("e_hits", *CORE_COLUMNS, "E")
    assert [piece.stop for piece in every] == [700, 1400, 2000]
    for number, piece in enumerate(every):
        rows = np.arange(piece.start, piece.stop)
        for columns in (table.columns, some):
            found, expected = (one.batch(rows, columns, grids=True) for one in (events, through))
            _same(found.table, expected.table)
            _same(found.scalars, expected.scalars)
            assert (found.columns, found.scalar_columns) == (expected.columns, expected.scalar_columns)
        if number:  # learners are a piece behind those who read
            _same(events.fitted_core(every[number - 1]), through.fitted_core(every[number - 1]))
    assert len(events._held) <= 2, "what lies before the last piece is forgotten"
    assert len(events._cores) <= 3
    _same(events.fitted_core(slice(0, 50)), through.fitted_core(slice(0, 50)))  # computed again


@pytest.mark.usefixtures("borders")
def test_any_choice_of_columns_gives_the_same_bits(showers: Path, tmp_path: Path) -> None:
    table = build_table(showers, tmp_path / "table", device="cpu", workers=1)
    rows = np.arange(300, 900)
    for group in {CATALOGUE[name].group for name in table.columns}:
        columns = tuple(name for name in table.columns if CATALOGUE[name].group == group)
        events = ComputedEvents.of(showers, COMPOSITION, columns, workers=1)
        found = events.batch(rows, columns, grids=False).table
        _same(found, table.matrix(columns, rows))


@pytest.mark.usefixtures("borders")
def test_a_gpu_computes_in_this_process(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def on_gpu(data: Dataset, start: int, stop: int, groups: frozenset[str], device: str) -> object:
        asked.append((start, stop, device))
        return compute_rows(data, start, stop, groups)

    monkeypatch.setattr(computed, "compute_rows", on_gpu)
    one, other = (ComputedEvents.of(new, COMPOSITION, CORE_COLUMNS, device=device) for device in ("cuda", "cpu"))
    _same(one.fitted_core(slice(600, 1100)), other.fitted_core(slice(600, 1100)))
    assert asked == [(512, 1024, "cuda"), (1024, 1536, "cuda")]


@pytest.mark.usefixtures("borders")
@pytest.mark.parametrize("fast", [False, True])
def test_predictions_are_those_through_the_table(run: Path, new: Path, tmp_path: Path, fast: bool) -> None:
    bundle = stacking.load(run, trusted=True)
    options = {"fast": fast, "everything": not fast, "device": "cpu", "workers": 2}
    found = bundle.predict(new, no_table=True, **options)
    assert not list(new.parent.glob("*.features"))
    expected = bundle.predict(new, **options)
    assert found.by_name.keys() == expected.by_name.keys()
    for name, log_proba in expected.by_name.items():
        _same(found.by_name[name], log_proba)
    _same(found.labels, expected.labels)
    assert (found.config_hash, found.test_fingerprint) == (expected.config_hash, expected.test_fingerprint)
    assert found.remarks == expected.remarks
    (new / CHECKSUMS_FILE).unlink(missing_ok=True)
    remark = bundle.predict(new, no_table=True, **options).remarks[0]
    assert remark.startswith(f"{new.name} has no {CHECKSUMS_FILE}: damage to its files is noticed only where")


def test_files_have_the_bytes_of_those_through_the_table(
    run: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--run", str(run), "--data", str(new), "--out", str(tmp_path / "memory.npz"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["cli.py", "predict", *options, "--no-table", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert sorted(path.name for path in new.parent.iterdir()) == ["events"]
    predict_to_file(run, new, tmp_path / "table.npz", workers=1, device="cpu")
    assert FeatureTable.open(new.parent / "events.features").n_events == 2000
    assert (tmp_path / "memory.npz").read_bytes() == (tmp_path / "table.npz").read_bytes()


@pytest.mark.usefixtures("borders")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_cell_far_behind_leaves_no_file(run: Path, new: Path, tmp_path: Path, workers: int) -> None:
    matrices = np.load(new / MATRICES_FILE)
    matrices[1777, 2, 3, 1] = np.nan
    np.save(new / MATRICES_FILE, matrices)
    with pytest.raises(InputError, match=r"matrices.npy: row 1777, cell \(2, 3\), channel 1.*--strict"):
        predict_to_file(run, new, tmp_path / "out.npz", no_table=True, workers=workers, trusted=True, strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


def test_unfit_input_is_one_line(run: Path, new: Path, tiny_composition: Path, tmp_path: Path) -> None:
    bundle = stacking.load(run, trusted=True)
    with pytest.raises(InputError, match="gives no feature 'Age'"):
        ComputedEvents.of(new, COMPOSITION, ("E", "Age"))
    events = ComputedEvents.of(new, COMPOSITION, ("E",))
    with pytest.raises(InputError, match="'Ne' was not asked for"):
        events.batch(np.arange(3), ("E", "Ne"), grids=False)
    with pytest.raises(InputError, match="none is to be used"):
        bundle.predict(new, no_table=True, features=tmp_path / "table")
    with pytest.raises(InputError, match="unknown device 'tpu'"):
        bundle.predict(new, no_table=True, device="tpu")
    with (
        patch("stacking.predict.feature_code_version", lambda: "0" * 64),
        pytest.raises(InputError, match="features of other code"),
    ):
        bundle.predict(new, no_table=True)
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_composition / "composition_test", damaged)
    assert (damaged / CHECKSUMS_FILE).exists()
    with (damaged / MATRICES_FILE).open("r+b") as file:
        file.seek(5000)
        file.write(b"\x01")
    with pytest.raises(InputError, match=r"matrices\.npy is not the file that was written"):
        bundle.predict(damaged, no_table=True)
    (new / SCALARS_FILE).unlink()
    with pytest.raises(InputError, match=r"features\.npy"):
        bundle.predict(new, no_table=True)


@pytest.mark.usefixtures("borders")
def test_events_that_change_meanwhile_are_noticed(run: Path, new: Path) -> None:
    bundle = stacking.load(run, trusted=True)
    found = bundle.stream(new, no_table=True, device="cpu", workers=1)
    taken = next(found.pieces)
    assert len(taken.log_proba) == 700
    state = (new / MATRICES_FILE).stat()
    os.utime(new / MATRICES_FILE, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000_000))
    with pytest.raises(InputError, match="changed while its features were computed: start again"):
        list(found.pieces)


def test_replaced_scalars_are_seen_within_a_process(showers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "replaced"
    shutil.copytree(showers, folder)
    (folder / "checksums.json").unlink(missing_ok=True)
    events = ShowerEvents(folder, tmp_path / "table", COMPOSITION)
    before = events.energy()
    scalars = np.load(folder / "features.npy")
    scalars[:, 0] += 1
    np.save(folder / "features.npy", scalars)
    np.testing.assert_allclose(events.energy(), before + 1, atol=0.02)
