"""The table of learners beside the stack; and the GPU's self-test: what it calls equal, and its words without a GPU."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from showerstack.features import build, compute
from showerstack.features.device import namespace, on_device
from showerstack.features.groups import fit_showers
from showerstack.features.lateral.events import make_events
from showerstack.features.lateral.fit import RawFit
from showerstack.report import gpu
from showerstack.report.gpu import DeviceComparison, column_agreement, compare, fit_agreement
from showerstack.report.outcome import _simulated_already, learner_table, outcome
from showerstack.report.shared.subject import mean_loss, read_labels
from showerstack.report.shared.text import short
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import read_json, write_json, write_npz
from showerstack.scoring import scoring_of
from showerstack.scoring.metrics.composition import fraction_error
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.simulation import load_settings, simulate
from showerstack.showers.simulation.blocks import BlockJob, simulate_block
from showerstack.stacking.run.folder import write_run_checksums
from showerstack.stacking.run.read import Run


@pytest.fixture(scope="module")
def fits() -> np.ndarray:
    """(n, numbers) outputs of the lateral fits of simulated showers."""
    events = simulate_block(BlockJob(COMPOSITION, "train", 3, "qgs", "test", load_settings()), 0).head(300)
    batch = make_events(namespace("cpu"), events.grids.astype(np.float32), events.scalars.astype(np.float32))
    return np.stack(list(fit_showers(batch).columns()), axis=1)


def _changed(fits: np.ndarray, channel: str, part: int, factor: float) -> RawFit:
    """Return the fits with one output of every shower multiplied."""
    raw = RawFit.from_numbers(fits.copy())
    planes = list(getattr(raw, channel))
    planes[part] = planes[part] * np.float32(factor)
    return replace(raw, **{channel: type(getattr(raw, channel))(planes)})


def test_equal_fits_agree(fits: np.ndarray) -> None:
    words, ok = fit_agreement(RawFit.from_numbers(fits), RawFit.from_numbers(fits))
    assert ok
    assert f"{len(fits)} showers" in words
    assert "100.00% below 0.1" in words


@pytest.mark.parametrize(
    ("channel", "part", "factor"),
    [("electron", 2, 1.05), ("muon", 0, 1.1), ("electron_fisher", 0, 1.3), ("muon_fisher", 2, 1.3)],
)
def test_a_wrong_minimum_or_matrix_is_noticed(fits: np.ndarray, channel: str, part: int, factor: float) -> None:
    assert not fit_agreement(_changed(fits, channel, part, factor), RawFit.from_numbers(fits))[1]


def test_showers_fitted_by_one_side_only_are_noticed(fits: np.ndarray) -> None:
    torn = fits.copy()
    torn[5] = np.nan
    words, ok = fit_agreement(RawFit.from_numbers(torn), RawFit.from_numbers(fits))
    assert not ok
    assert "NOT the same showers" in words


def test_columns_that_differ_are_named() -> None:
    rng = np.random.default_rng(1)
    ours = {name: rng.normal(size=1000).astype(np.float32) for name in ("a", "b", "c")}
    assert column_agreement(ours, ours)[1]
    words, ok = column_agreement(ours | {"b": ours["b"] + np.float32(0.02)}, ours)
    assert not ok
    assert "worst: b" in words
    torn = ours["c"].copy()
    torn[:5] = np.nan
    words, ok = column_agreement(ours | {"c": torn}, ours)
    assert not ok
    assert "undefined elsewhere: c" in words


def test_a_library_that_fails_is_a_finding_and_the_others_go_on() -> None:
    def broken(name: str) -> DeviceComparison:
        raise RuntimeError("no kernel image\nis available")

    finding = gpu._tried(gpu.partial(broken, "xgboost")).finding
    assert (finding.what, finding.state) == ("xgboost", "bad")
    assert finding.outcome == "RuntimeError: no kernel image is available"


def test_kernels_and_table_are_compared_on_events_enough_to_fill_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NumPy stands for the GPU, so that both sides are equal; timed is what each is given.
    folder, _ = simulate(COMPOSITION, tmp_path / "data", n_train=70, n_test=1, train_cuts="test", workers=1)
    sizes = {"cpu": 32, "cuda": 128}
    for module in (gpu, compute):
        monkeypatch.setattr(module, "chunk_size", sizes.__getitem__)
        monkeypatch.setattr(module, "namespace", lambda device: namespace("cpu"))
    monkeypatch.setattr(compute, "on_device", lambda chunks, device: on_device(chunks, "cpu"))
    monkeypatch.setattr(build, "resolve_device", lambda device: device)
    monkeypatch.setattr(build, "in_own_process", lambda function, *arguments: function(*arguments))
    for module in (gpu, build):
        monkeypatch.setattr(module, "GPU_SHARD_EVENTS", 128)
    monkeypatch.setattr(gpu, "_seconds", lambda run, rounds: float(run() is not Ellipsis))
    data = Dataset.open(folder, COMPOSITION)
    for step, on_gpu in ((gpu._fits, 128), (gpu._chunks, 128), (partial(gpu._tables, scratch=tmp_path), 256)):
        comparison = step(data, rounds=1)
        assert comparison.ok, comparison.agreement
        assert (comparison.cpu_per_s, comparison.gpu_per_s) == (70, on_gpu)
    again = Dataset.open(tmp_path / "filled", labels=False)
    np.testing.assert_array_equal(np.asarray(again.matrices)[70:140], np.asarray(data.matrices))
    np.testing.assert_array_equal(np.asarray(again.scalars)[210:], np.asarray(data.scalars)[:46])


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: str) -> str:
        raise InputError("no CUDA device answers")

    monkeypatch.setattr(gpu, "resolve_device", none)
    (line,) = gpu.gpu_findings()
    assert (line.what, line.outcome, line.state) == ("GPU", "no CUDA device answers", "note")
    with pytest.raises(InputError, match="no CUDA device"):
        next(compare(100))


def text(table: object, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(table)
    return stream.getvalue()


def test_composition_table_fits_a_terminal(composition_world: tuple[Path, Path]) -> None:
    run, data = composition_world
    shown = text(learner_table(run, data))
    assert "…" not in shown
    for name in ("random_forest", "lightgbm", "mlp", "average", "stack"):
        assert name in shown
    labels = read_labels(Run.open(run), data).labels
    with np.load(run / "test" / "stack.npz") as archive:
        raw, decided = (fraction_error(labels, archive[key].astype(int)) for key in ("argmax", "decided"))
    row = next(line for line in shown.splitlines() if "stack" in line)
    assert f"{raw:.4f} ±" in row
    assert f"{decided:.4f} ±" in row
    assert "shipped, as decided on held-out showers: stack" in shown


def test_learners_that_failed_are_in_the_table(composition_world: tuple[Path, Path]) -> None:
    lines = text(learner_table(*composition_world)).splitlines()
    (row,) = (line for line in lines if "lenet" in line)
    assert row.split() == ["lenet", "left", "out"]
    assert lines.index(row) < next(k for k, line in enumerate(lines) if line.strip().startswith("average"))


def test_remarks_and_failures_are_told_on_the_terminal(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run = shutil.copytree(composition_world[0], tmp_path / "run")
    manifest = read_json(run / "manifest.json")
    write_json(run / "manifest.json", manifest | {"remarks": ["rows are in order [of classes]"]})
    write_run_checksums(run)
    stream = io.StringIO()
    Console(file=stream, width=200).print(outcome(run, tmp_path).shown, soft_wrap=True)
    assert "remark: rows are in order [of classes]\n" in stream.getvalue()
    assert "learner lenet was left out, out of memory\n" in stream.getvalue()


def test_gamma_table_fits_a_terminal(gamma_world: tuple[Path, Path]) -> None:
    shown = text(learner_table(*gamma_world))
    assert "…" not in shown
    assert "at 75 % gamma efficiency" in shown


def test_lengths_that_disagree_are_refused(composition_world: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = composition_world
    other = shutil.copytree(run, tmp_path / "run")
    write_npz(other / "test" / "mlp.npz", log_proba=np.zeros((7, 5)))
    write_run_checksums(other)
    with pytest.raises(InputError, match=r"mlp.npz has 7 events, but the test set has 3000"):
        learner_table(other, data)
    with pytest.raises(InputError, match="is not a finished run folder"):
        learner_table(tmp_path, data)


def test_log_loss_of_known_posteriors() -> None:
    log_proba = np.log(np.array([[0.5, 0.5]] * 3 + [[0.25, 0.75]]))
    losses = scoring_of(GAMMA).losses(np.array([0, 1, 1, 0]), log_proba, log_proba[:, 0])
    value, interval = mean_loss(losses)
    assert value == pytest.approx((3 * np.log(2) + np.log(4)) / 4)
    assert interval.low < value < interval.high


def test_short_numbers() -> None:
    assert [short(v) for v in (0.0, 3.2e-4, 0.5, 1e-10)] == ["0", "3.2e-4", "5.0e-1", "1.0e-10"]


def test_sets_of_an_earlier_demo_in_another_world_are_not_used(tiny_composition: Path, tiny_gamma: Path) -> None:
    assert _simulated_already(tiny_composition, COMPOSITION, 2_000, 1_000, 7)
    with pytest.raises(InputError, match="in the world default, the demo asked for 2,000 of seed 7 in gammas: remove"):
        _simulated_already(tiny_gamma, GAMMA, 2_000, 1_000, 7)
