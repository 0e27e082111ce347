"""Prediction with finished runs: the bits of the feature table without one, of training in pieces, by many processes.

Nothing is kept, each file of a fit is opened once, and bad input is refused as with tables. Predictions of showers can
be written as tables; targets that cannot be are refused before any work.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest

import showerstack.stacking.events
from showerstack.features.build import build_table
from showerstack.features.catalogue import CATALOGUE
from showerstack.features.compute import compute_rows
from showerstack.features.table import FeatureTable
from showerstack.models.base.learner import Batch
from showerstack.models.base.saving import HEADER_FILE
from showerstack.models.pretraining.weights import ANY, ANY_SHA256
from showerstack.models.tables.lightgbm import LightGBM
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, write_json
from showerstack.showers.archives.folders import unlabelled_in
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.card import ArrayCard
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA, MATRICES_FILE, SCALARS_FILE, Task
from showerstack.stacking.chain import Predictions
from showerstack.stacking.config import StackConfig, TableConfig
from showerstack.stacking.events import CORE_COLUMNS, ShowerEvents, pieces
from showerstack.stacking.prediction import computed as computed_module
from showerstack.stacking.prediction import predict as predict_module
from showerstack.stacking.prediction import predictable
from showerstack.stacking.prediction.computed import ComputedEvents
from showerstack.stacking.prediction.predict import PredictionStream, predict, prediction_table
from showerstack.stacking.prediction.predict import predict as predict_events
from showerstack.stacking.prediction.predictable import SavedFits
from showerstack.stacking.prediction.run import load
from showerstack.stacking.tables.data import FrameEvents
from showerstack.stacking.training.train import stack
from tests.program import call

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
    monkeypatch.setattr(showerstack.stacking.events, "PIECE_EVENTS", 700)
    monkeypatch.setattr(computed_module, "BLOCK_EVENTS", 512)
    monkeypatch.setattr(computed_module, "GPU_CHUNK", 512)


def _same(values: np.ndarray | None, expected: np.ndarray | None) -> None:
    assert values is not None
    assert expected is not None
    assert values.dtype == expected.dtype
    # Bits: of NaN and zero, too.
    first, second = (np.ascontiguousarray(one).view(np.uint8) for one in (values, expected))
    np.testing.assert_array_equal(first, second)


@pytest.mark.usefixtures("borders")
def test_columns_are_those_of_the_table_bit_by_bit(showers: Path, tmp_path: Path) -> None:
    workers = 1 if Dataset.open(showers, labels=False).age is None else 2
    table = build_table(showers, tmp_path / "table", ctx=Context(device="cpu", workers=1))
    through = ShowerEvents(showers, table.folder, COMPOSITION)
    events = ComputedEvents.of(showers, COMPOSITION, table.columns, Context(workers=workers))
    assert ("Age" in table.columns) == (Dataset.open(showers, labels=False).age is not None)
    every, some = list(pieces(len(events))), ("e_hits", *CORE_COLUMNS, "E")
    assert [piece.stop for piece in every] == [700, 1400, 2000]
    for number, piece in enumerate(every):
        rows = np.arange(piece.start, piece.stop)
        for columns in (table.columns, some):
            result, expected = (one.batch(rows, columns, grids=True) for one in (events, through))
            _same(result.table, expected.table)
            _same(result.scalars, expected.scalars)
            assert (result.columns, result.scalar_columns) == (expected.columns, expected.scalar_columns)
        if number:  # learners are a piece behind those who read
            _same(events.fitted_core(every[number - 1]), through.fitted_core(every[number - 1]))
    assert len(events._blocks) <= 2, "what lies before the last piece is forgotten"
    assert len(events._cores) <= 3
    _same(events.fitted_core(slice(0, 50)), through.fitted_core(slice(0, 50)))  # computed again


@pytest.mark.usefixtures("borders")
def test_any_choice_of_columns_gives_the_same_bits(showers: Path, tmp_path: Path) -> None:
    table = build_table(showers, tmp_path / "table", ctx=Context(device="cpu", workers=1))
    rows = np.arange(300, 900)
    for group in {CATALOGUE[name].group for name in table.columns}:
        columns = tuple(name for name in table.columns if CATALOGUE[name].group == group)
        events = ComputedEvents.of(showers, COMPOSITION, columns, Context(workers=1))
        result = events.batch(rows, columns, grids=False).table
        _same(result, table.matrix(columns, rows))


@pytest.mark.usefixtures("borders")
def test_a_gpu_computes_in_this_process(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def on_gpu(data: Dataset, start: int, stop: int, groups: frozenset[str], device: str) -> object:
        asked.append((start, stop, device))
        return compute_rows(data, start, stop, groups)

    monkeypatch.setattr(computed_module, "compute_rows", on_gpu)
    monkeypatch.setattr(computed_module, "resolve_device", str)
    one, other = (
        ComputedEvents.of(new, COMPOSITION, CORE_COLUMNS, Context(device=device)) for device in ("cuda", "cpu")
    )
    _same(one.fitted_core(slice(600, 1100)), other.fitted_core(slice(600, 1100)))
    assert asked == [(512, 1024, "cuda"), (1024, 1536, "cuda")]


@pytest.mark.usefixtures("borders")
def test_predictions_are_those_through_the_table(run: Path, new: Path, tmp_path: Path) -> None:
    opened = load(run)
    ctx = Context(device="cpu", workers=2)
    result = predict(opened, new, ctx, no_table=True, everything=True).concatenated()
    assert not list(new.parent.glob("*.features"))
    expected = predict(opened, new, ctx, everything=True).concatenated()
    assert result.by_name.keys() == expected.by_name.keys()
    for name, log_proba in expected.by_name.items():
        _same(result.by_name[name], log_proba)
    _same(result.labels, expected.labels)
    assert (result.config_hash, result.test_fingerprint) == (expected.config_hash, expected.test_fingerprint)
    assert result.remarks == expected.remarks
    (new / CHECKSUMS_FILE).unlink(missing_ok=True)
    remark = predict(opened, new, ctx, no_table=True, everything=True).remarks[0]
    assert remark.startswith(f"{new.name} has no {CHECKSUMS_FILE}: damage to its files is noticed only where")


def test_files_have_the_bytes_of_those_through_the_table(run: Path, new: Path, tmp_path: Path) -> None:
    options = ("--run", run, "--data", new, "--out", tmp_path / "memory.npz", "--device", "cpu")
    call("cli.py", "predict", *options, "--no-table", "--quiet")
    assert sorted(path.name for path in new.parent.iterdir()) == ["events"]
    predict(load(run), new, Context(workers=1, device="cpu")).write(tmp_path / "table.npz")
    assert FeatureTable.open(new.parent / "events.features").n_events == 2000
    assert (tmp_path / "memory.npz").read_bytes() == (tmp_path / "table.npz").read_bytes()


def test_a_folder_of_runs_gets_a_file_each(run: Path, new: Path, tmp_path: Path) -> None:
    folder = tmp_path / "measured"
    for name in ("004000", "004001"):
        shutil.copytree(new, folder / name)
    options = ("predict", "--run", run, "--data", folder, "--device", "cpu", "--no-table", "--out")
    said = call("cli.py", *options, tmp_path / "one.npz", code=2).stderr
    assert "holds 2 runs, which get a file each: --out must be a folder" in said
    call("cli.py", *options, tmp_path / "predicted")
    written = [(tmp_path / "predicted" / f"{name}.npz").read_bytes() for name in ("004000", "004001")]
    own = Context(device="cpu")
    predict(load(run), new, own, no_table=True).write(tmp_path / "alone.npz")
    assert written[0] == written[1] == (tmp_path / "alone.npz").read_bytes()
    shutil.copytree(new, folder / "measured" / "004000")
    said = call("cli.py", *options, tmp_path / "again", code=2).stderr
    assert "holds two runs of one name: predict its folders one by one" in said
    assert not (tmp_path / "again").exists()
    shutil.copy(new / MATRICES_FILE, new / "labels_composition.npy")
    assert unlabelled_in(new.parent) == [], "a labelled set is no measured run"


@pytest.mark.usefixtures("borders")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_cell_far_behind_leaves_no_file(run: Path, new: Path, tmp_path: Path, workers: int) -> None:
    matrices = np.load(new / MATRICES_FILE)
    matrices[1777, 2, 3, 1] = np.nan
    np.save(new / MATRICES_FILE, matrices)
    opened = load(run)
    with pytest.raises(InputError, match=r"matrices.npy: row 1777, cell \(2, 3\), muon deposit.*--strict"):
        predict(opened, new, Context(workers=workers), no_table=True, strict=True).write(tmp_path / "out.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


def test_unfit_input_is_one_line(run: Path, new: Path, tiny_composition: Path, tmp_path: Path) -> None:
    opened = load(run)
    with pytest.raises(InputError, match="gives no feature 'Age'"):
        ComputedEvents.of(new, COMPOSITION, ("E", "Age"))
    for options in ({}, {"no_table": True}):
        with pytest.raises(InputError, match=r"has no shower age, .*composition learned: convert it with --protocol"):
            showerstack.stacking.prediction.predict._shower_source(opened, new, options, Context()).open(
                ("E", "fit_minus_age")
            )
    events = ComputedEvents.of(new, COMPOSITION, ("E",))
    with pytest.raises(InputError, match="'Ne' was not asked for"):
        events.batch(np.arange(3), ("E", "Ne"), grids=False)
    with pytest.raises(InputError, match="none is to be used"):
        predict(opened, new, no_table=True, features=tmp_path / "table").concatenated()
    with pytest.raises(InputError, match="unknown device 'tpu'"):
        predict(opened, new, Context(device="tpu"), no_table=True).concatenated()
    with (
        patch("showerstack.stacking.prediction.predictable.FEATURES_VERSION", 7),
        pytest.raises(InputError, match="made by version 1 of the features, which is now 7: train again"),
    ):
        load(opened.folder)
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_composition / "composition_test", damaged)
    assert (damaged / CHECKSUMS_FILE).exists()
    with (damaged / MATRICES_FILE).open("r+b") as file:
        file.seek(5000)
        file.write(b"\x01")
    with pytest.raises(InputError, match=r"matrices\.npy is not the file that was written"):
        predict(opened, damaged, no_table=True).concatenated()
    (new / SCALARS_FILE).unlink()
    with pytest.raises(InputError, match=r"features\.npy"):
        predict(opened, new, no_table=True).concatenated()


@pytest.mark.usefixtures("borders")
def test_events_that_change_meanwhile_are_noticed(run: Path, new: Path) -> None:
    predictions = predict(load(run), new, Context(device="cpu", workers=1), no_table=True)
    taken = next(predictions.pieces)
    assert len(taken.log_proba) == 700
    state = (new / MATRICES_FILE).stat()
    os.utime(new / MATRICES_FILE, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000_000))
    with pytest.raises(InputError, match="changed while its features were computed: start again"):
        list(predictions.pieces)


def test_replaced_scalars_are_seen_within_a_process(showers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "replaced"
    shutil.copytree(showers, folder)
    (folder / "checksums.json").unlink(missing_ok=True)
    events = ShowerEvents(folder, tmp_path / "table", COMPOSITION)
    before = events.context()[:, 0]
    scalars = np.load(folder / "features.npy")
    scalars[:, 0] += 1
    np.save(folder / "features.npy", scalars)
    np.testing.assert_allclose(events.context()[:, 0], before + 1, atol=0.02)


LOG_PROBA = np.log(np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]]))
SCORES = LOG_PROBA[:, 0] - LOG_PROBA[:, 1]


def _stream(task: Task, identifiers: pl.DataFrame | None = None) -> PredictionStream:
    """Return three events in two pieces."""
    arrays = {"gamma_scores": SCORES} if task == GAMMA else {}
    parts = (
        Predictions(LOG_PROBA[rows], {name: values[rows] for name, values in arrays.items()}, "c0ffee", "beef", {})
        for rows in (slice(0, 2), slice(2, 3))
    )
    return PredictionStream(task, 3, parts, ("a remark",), identifiers)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_of_gamma_scores(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / "new" / f"scores{suffix}"
    _stream(GAMMA).write(out)
    csv = pl.read_csv(out) if suffix == ".csv" else pl.read_parquet(out)
    assert csv.columns == ["event", "p_gamma", "p_hadron", "gamma_score"], "hashes stand once, not in every row"
    origin = read_json(out.with_name("scores.csv.json")) if suffix == ".csv" else pl.read_parquet_metadata(out)
    assert (origin["config_hash"], origin["test_fingerprint"]) == ("c0ffee", "beef")
    assert csv["event"].to_list() == [0, 1, 2]
    np.testing.assert_allclose(csv["p_gamma"], [0.9, 0.3, 0.5])
    np.testing.assert_allclose(csv["gamma_score"], SCORES)


@pytest.mark.parametrize("suffix", [".csv", ".pq"])
def test_rows_of_a_table_keep_their_identifiers_across_pieces(suffix: str, tmp_path: Path) -> None:
    _stream(Task("table", ("a", "b")), pl.DataFrame({"name": ["x", "y", "z"]})).write(tmp_path / f"rows{suffix}")
    csv = pl.read_csv(tmp_path / "rows.csv") if suffix == ".csv" else pl.read_parquet(tmp_path / "rows.pq")
    assert csv.columns == ["row", "name", "p_a", "p_b", "predicted"]
    assert csv["row"].to_list() == [0, 1, 2]
    assert csv["name"].to_list() == ["x", "y", "z"]
    assert csv["predicted"].to_list() == ["a", "b", "a"]


def test_archives_hold_all_pieces(tmp_path: Path) -> None:
    _stream(GAMMA).write(tmp_path / "p.npz")
    whole = _stream(GAMMA).concatenated()
    with np.load(tmp_path / "p.npz") as archive:
        np.testing.assert_array_equal(archive["gamma_scores"], SCORES)
        np.testing.assert_array_equal(archive["log_proba"], whole.log_proba)
    assert whole.remarks == ("a remark",)


def test_a_target_that_cannot_be_is_refused_before_work(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("kept")
    stream, rows = _stream(GAMMA), _stream(Task("table", ("a", "b")))
    for refused, name in ((stream, "text.npz"), (stream, "p.txt"), (stream, "p"), (rows, "p.npz")):
        with pytest.raises(InputError):
            refused.write(tmp_path / name)
    with pytest.raises(InputError, match="choose the name of a file"):
        stream.write(Path("/dev/null"))
    assert (tmp_path / "text.npz").read_text() == "kept"
    assert len(stream.concatenated().log_proba) == 3, "no piece was taken"


def test_the_most_probable_class_is_named() -> None:
    log_proba = np.log(np.array([[0.1, 0.1, 0.1, 0.4, 0.3], [0.6, 0.1, 0.1, 0.1, 0.1]]))
    predicted = Predictions(log_proba, {"predictions": np.array([3, 0], np.int8)}, "c0ffee", "beef", {})
    table = prediction_table(predicted, COMPOSITION)
    assert table["predicted"].to_list() == [COMPOSITION.classes[3], COMPOSITION.classes[0]]
    named = [f"p_{name}" for name in COMPOSITION.classes]
    assert table.columns == ["event", *named, "predicted", "ln_a", "ln_a_error"]
    assert predicted.labels.tolist() == [3, 0]


def _counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """Return a list that grows by the first argument with every call of a method."""
    visited: list[Any] = []
    real = getattr(owner, name)

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        visited.append(arguments[0])
        return real(self, *arguments, **options)

    monkeypatch.setattr(owner, name, counting)
    return visited


def test_pieces_and_processes_change_no_bit_and_open_each_file_once(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = two_gaussians
    small = {"lightgbm": {"rounds": 5}, "quadratic_logit": {}}
    config = TableConfig(repeats=1, holdout=0.1,
        run=tmp_path / "run", table=train, test_table=test, label="kind", learners=tuple(small), settings=small,
        folds=2, pools=("average",), preset="quick", workers=1,
    )  # fmt: skip
    expected = stack(config).predictions
    assert expected is not None
    run = load(tmp_path / "run")
    opened: list[Path] = []
    real = predictable.open_predictor
    monkeypatch.setattr(predictable, "open_predictor", lambda folder: opened.append(folder) or real(folder))
    monkeypatch.setattr(showerstack.stacking.events, "PIECE_EVENTS", 300)  # 800 rows: three pieces
    for workers in (1, 3):
        opened.clear()
        result = predict_events(run, test, Context(workers=workers)).concatenated()
        np.testing.assert_array_equal(result.log_proba, expected.log_proba)
        assert set(opened) == {fit.place for name in run.chain.needed for fit in run.fits(name).fits}
        assert workers > 1 or len(opened) == len(set(opened)), "one thread opens each file once"


class Estimating(LightGBM):
    """Estimates true quantities too, and counts what it is asked."""

    asked: ClassVar[list[str]] = []

    def predict_log_proba(self, batch: Batch) -> np.ndarray:
        self.asked.append("log_proba")
        return np.log(np.full((len(batch), 5), 0.2))

    def predict_targets(self, batch: Batch) -> np.ndarray:
        self.asked.append("targets")
        return np.full((len(batch), 8, 2), batch.index[0])

    def predict_both(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append("both")
        return np.log(np.full((len(batch), 5), 0.2)), np.full((len(batch), 8, 2), batch.index[0])


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [((False,), "log_proba"), ((True,), "targets"), ((False, True), "both")],
)
def test_events_go_through_a_fit_once(
    wanted: tuple[bool, ...], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showerstack.stacking.events, "PIECE_EVENTS", 40)
    monkeypatch.setattr(Estimating, "asked", [])
    monkeypatch.setattr(predictable, "open_predictor", lambda folder: Estimating(COMPOSITION.classes))
    events = FrameEvents(np.zeros((100, 2), dtype=np.float32, order="F"), ("a", "b"), "hash", {})
    saved = tuple(predictable.SavedFit(tmp_path / f"fold-{k}") for k in range(2))
    fits = [SavedFits("one", saved, ("a", "b"), False, log_proba=False in wanted, estimates=True in wanted)]
    ticks: list[tuple[int, int]] = []

    def progress(done: int, total: int, note: str = "") -> None:
        ticks.append((done, total))

    parts = list(predict_module.predict_fits(events, fits, Context(workers=1), progress))
    assert Estimating.asked == [asked] * 6
    assert ticks[-1] == (200, 200)
    for piece, results in parts:
        n = piece.stop - piece.start
        log_proba, estimates = results["one"].log_proba, results["one"].estimates
        assert (None if log_proba is None else log_proba.shape) == ((2, n, 5) if False in wanted else None)
        assert (None if estimates is None else estimates.shape) == ((2, n, 8, 2) if True in wanted else None)
        assert estimates is None or (estimates == piece.start).all()


def test_networks_of_a_gpu_predict_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, learner, device in (
        ("network", "TabularMLP", "cuda"), ("trees", "XGBoost", "cuda"), ("small", "TabularMLP", "cpu")
    ):  # fmt: skip
        (tmp_path / name / "member-0").mkdir(parents=True)
        write_json(tmp_path / name / "member-0" / HEADER_FILE, {"learner": learner, "device": device})
    monkeypatch.setattr(predict_module, "gpu_answers", lambda: True)
    # Boosters that were trained on a GPU predict on the CPU, by as many threads as there are cores.
    uses = predict_module.uses_gpu
    assert [uses(tmp_path / name) for name in ("network", "trees", "small")] == [True, False, False]
    monkeypatch.setattr(predict_module, "gpu_answers", lambda: False)
    assert not uses(tmp_path / "network")


def test_an_option_that_predict_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="predict\\(\\) has no option 'sudo'"):
        predict(None, tmp_path, sudo=True)  # type: ignore[arg-type,call-arg]


def test_events_of_another_array_or_rounding_are_refused(
    composition_run: Path, tiny_composition: Path, tmp_path: Path
) -> None:
    run = load(composition_run)
    folder = tmp_path / "composition_test"
    folder.mkdir()
    for name in ("matrices.npy", "features.npy"):
        shutil.copy(tiny_composition / "composition_test" / name, folder)
    other = replace(KASCADE, name="another", x_m=KASCADE.x_m * 2)
    write_json(folder / "source.json", {"array": other.as_json()})
    with pytest.raises(InputError, match=r"another array \(another\) than .* was trained on \(KASCADE\): "):
        predict(run, folder)
    write_json(folder / "source.json", {})
    predict(run, folder)
    scalars = np.load(folder / "features.npy").astype(np.float32)
    np.save(folder / "features.npy", scalars)
    predict(run, folder)  # the same numbers in another type
    np.save(folder / "features.npy", scalars + np.float32(1e-4))
    with pytest.raises(InputError, match=r"scalars are float32, .* trained on float16: convert with --protocol v2"):
        predict(run, folder)


def test_learners_that_cannot_learn_from_an_array_are_left_out() -> None:
    planes = ("x_m", "y_m", "electron_area_m2", "muon_area_m2", "cluster")
    small = replace(KASCADE, name="small", **{name: getattr(KASCADE, name)[:8, :8] for name in planes})
    config = StackConfig(task="composition", data=Path("d"), run=Path("r"), preset="best")
    kept, remarks = config.for_array(small, COMPOSITION)
    assert "learner lenet_fits needs a grid of 12 x 12 cells, small has 8 x 8: it is left out" in remarks
    assert kept.learners is not None
    assert not {"lenet", "lenet_fits"} & set(kept.learners)
    assert config.for_array(KASCADE, COMPOSITION) == (config, ())
    named = config.model_copy(update={"learners": ("lenet_fits", "lightgbm")})
    with pytest.raises(InputError, match="small has 8 x 8: name other learners"):
        named.for_array(small, COMPOSITION)


def test_on_another_array_pretrained_starts_from_weights_for_any() -> None:
    small = replace(KASCADE, name="small", card=ArrayCard(depth_g_cm2=700.0))
    config = StackConfig(task="composition", data=Path("d"), run=Path("r"), learners=("pretrained", "mlp"))
    kept, remarks = config.for_array(small, COMPOSITION)
    assert remarks == ()
    assert kept.settings == {"pretrained": {"weights": ANY, "weights_sha256": ANY_SHA256}}
    assert kept.identity() != config.identity()
    assert kept.for_array(small, COMPOSITION) == (kept, ()), "a run that goes on"

    def spread(times: float, name: str) -> DetectorArray:
        return replace(small, name=name, pitch_m=times * 13.0, x_m=times * small.x_m, y_m=times * small.y_m)

    _, remarks = config.for_array(spread(14.0, "wide"), COMPOSITION)
    assert remarks == (
        "learner pretrained starts from weights for any array that know none like wide (252 stations, 192 with a muon "
        "detector): spacing 182 m (seen: 10 to 150): it may gain less",
    )
    wider = spread(30.0, "wider")
    with pytest.raises(InputError, match=r"none like wider .*: spacing 390 m \(seen: 10 to 150\): name other learners"):
        config.for_array(wider, COMPOSITION)
    preset = config.model_copy(update={"learners": None})
    kept, remarks = preset.for_array(wider, COMPOSITION)
    assert "pretrained" not in (kept.learners or ())
    assert any("spacing 390 m (seen: 10 to 150): it is left out" in line for line in remarks)
    given = config.model_copy(update={"settings": {"pretrained": {"weights": ANY, "weights_sha256": ANY_SHA256}}})
    with pytest.raises(InputError, match="give weights of this array, or none"):
        given.for_array(wider, COMPOSITION)
