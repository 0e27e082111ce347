"""Folds are balanced, seeded, and never split a shower; their learners run on a GPU and on the CPU, side by side.

No GPU is needed: a learner that is asked for the GPU computes here.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from showerstack.models.base.spec import LearnerSpec
from showerstack.models.registry import LEARNERS
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.processes import Workers
from showerstack.stacking.config import TableConfig
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.folds import LG_ENERGY_EDGES, assign_folds, choose_holdout, early_stopping_rows
from showerstack.stacking.layout import OWN_FOLD
from showerstack.stacking.tables.data import open_table
from showerstack.stacking.training.schedule import LIBRARIES_BYTES, Processes
from showerstack.stacking.training.train import StackResult, stack
from tests.stacking.work import FullDisk, Marking, Sleeping, Unlucky, meet, slow_or_lost


def _events(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.choice(3, n, p=[0.7, 0.2, 0.1]), rng.uniform(14.5, 17.5, n)


@given(seed=st.integers(0, 10_000), n_folds=st.integers(2, 8))
@settings(max_examples=25, deadline=None)
def test_classes_and_energy_bins_are_dealt_evenly(seed: int, n_folds: int) -> None:
    labels, energy = _events(600, seed)
    folds = assign_folds(labels, n_folds, seed=seed, energy=energy)
    bins = np.digitize(energy, LG_ENERGY_EDGES)
    for k in np.unique(labels):
        assert np.ptp(np.bincount(folds[labels == k], minlength=n_folds)) <= 1
        for b in np.unique(bins[labels == k]):
            cell = np.bincount(folds[(labels == k) & (bins == b)], minlength=n_folds)
            assert np.ptp(cell) <= 1
    np.testing.assert_array_equal(folds, assign_folds(labels, n_folds, seed=seed, energy=energy))


def test_another_seed_deals_differently() -> None:
    labels, energy = _events(600, 0)
    assert (
        assign_folds(labels, 3, seed=1, energy=energy) != assign_folds(labels, 3, seed=2, energy=energy)
    ).mean() > 0.4


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_a_shower_never_spans_folds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    showers, _ = _events(200, seed)
    groups = np.repeat(np.arange(200) * 17, rng.integers(1, 6, 200))
    order = rng.permutation(len(groups))
    labels = np.repeat(showers, np.bincount(groups // 17))[order]
    groups = groups[order]
    folds = assign_folds(labels, 4, seed=seed, groups=groups)
    for group in np.unique(groups):
        assert len(np.unique(folds[groups == group])) == 1
    training = np.flatnonzero(folds != 0)
    stop = early_stopping_rows(training, labels, 0.1, seed=seed, groups=groups)
    assert not set(groups[training[stop]]) & set(groups[training[~stop]])
    assert 0.03 < stop.mean() < 0.25


def test_too_few_events_of_a_class_are_refused_by_name() -> None:
    labels = np.array([0] * 10 + [1] * 2)
    with pytest.raises(InputError, match="'iron' has 2 events, fewer than the 3 folds"):
        assign_folds(labels, 3, seed=1, classes=("proton", "iron"))
    with pytest.raises(InputError, match="'iron' has 0 events"):
        assign_folds(labels[:10], 3, seed=1, classes=("proton", "iron"))


def test_groups_count_as_one_event_each() -> None:
    labels = np.repeat([0, 1], 10)
    groups = np.concatenate([np.arange(10), np.repeat([100, 101], 5)])
    with pytest.raises(InputError, match="2 groups of events"):
        assign_folds(labels, 3, seed=1, groups=groups)


def test_a_class_of_one_shower_is_learned_and_does_not_stop() -> None:
    labels = np.repeat([0, 1, 2], [300, 300, 6])
    groups = np.concatenate([np.arange(600), np.full(6, 1_000)])
    for seed in range(20):
        stop = early_stopping_rows(np.arange(606), labels, 0.5, seed=seed, groups=groups)
        assert not stop[labels == 2].any()
        assert 0.4 < stop[labels < 2].mean() < 0.6


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 0.4, 0.499])
def test_any_share_of_the_rows_stops_training(fraction: float) -> None:
    labels = np.arange(20_000) % 2
    stop = early_stopping_rows(np.arange(20_000), labels, fraction, seed=1)
    assert stop.mean() == pytest.approx(fraction, abs=1e-4)


def test_a_group_of_several_classes_counts_for_the_rarest() -> None:
    # 300 patients of three visits, healthy at the first; every tenth is ill at the last
    groups = np.repeat(np.arange(300), 3)
    labels = np.where((groups % 10 == 0) & (np.arange(900) % 3 == 2), 1, 0)
    folds = assign_folds(labels, 5, seed=1, groups=groups, classes=("healthy", "ill"))
    assert np.bincount(folds[labels == 1]).tolist() == [6] * 5
    assert all(len(np.unique(folds[groups == g])) == 1 for g in range(300))
    with pytest.raises(InputError, match="class 'ill' has 30 groups of events, fewer than the 31 folds"):
        assign_folds(labels, 31, seed=1, groups=groups, classes=("healthy", "ill"))


def test_too_few_groups_leave_no_holdout_instead_of_failing_after_training() -> None:
    groups, labels = np.arange(6000) // 100, np.arange(6000) // 3000
    outer, remark = choose_holdout(np.ones(6000, bool), labels, 0.1, seed=1, groups=groups)
    assert not outer.any()
    assert "too few groups for an outer holdout (3 of one class, fewer than 5)" in remark


AT_ONCE = {"cuda": 1, "cpu": 1}


def test_devices_work_at_the_same_time(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with Workers(AT_ONCE, threads=1) as workers:
        assert list(workers.each(meet, {"cuda": [(a, b)], "cpu": [(b, a)]})) == [True, True]


def test_a_lost_worker_ends_every_device(tmp_path: Path) -> None:
    started = time.monotonic()
    work = {"cuda": [(True, tmp_path / "a")], "cpu": [(False, tmp_path / "b")]}
    with pytest.raises(InputError, match="a worker process was lost"), Workers(AT_ONCE, threads=1) as workers:
        list(workers.each(slow_or_lost, work))
    assert time.monotonic() - started < 30
    if (tmp_path / "b").exists():
        assert _ended(int((tmp_path / "b").read_text()))


@pytest.mark.slow
def test_no_device_works_on_while_an_error_is_told(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, where = tmp_path / "mark", {"full_disk": "cuda", "sleeping": "cpu"}
    for name, cls in (("full_disk", FullDisk), ("sleeping", Sleeping)):
        monkeypatch.setitem(LEARNERS, name, LearnerSpec(name, f"{cls.__module__}:{cls.__name__}", "", "scalars"))
    monkeypatch.setattr("showerstack.stacking.training.plan.devices_for", lambda specs, asked: where)
    with pytest.raises(InputError, match=r"full_disk fold . could not be trained: OSError") as kept:
        _stack(two_gaussians[0], tmp_path / "run", 2, tuple(where), {name: {"mark": str(mark)} for name in where})
    assert kept.traceback, "whoever keeps the error, as a notebook does, must not wait for the other device"
    assert _ended(int(mark.read_text()))


@pytest.mark.parametrize(
    ("workers", "where", "processes"),
    [(4, "cuda cuda", {"cuda": 1}), (4, "cuda cpu", {"cuda": 1, "cpu": 3}), (1, "cuda cpu", {"cuda": 1}),
     (4, "cpu cpu", {"cpu": 4})],
)  # fmt: skip
def test_one_process_trains_on_a_gpu(workers: int, where: str, processes: dict[str, int], tmp_path: Path) -> None:
    config = TableConfig(run=tmp_path / "run", table=tmp_path / "table", label="kind", workers=workers)
    devices = dict(zip("ab", where.split(), strict=True))
    assert Processes(config, devices, 1 << 30).by_device == processes


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
def test_a_gpu_that_fails_once_loses_no_learner_and_twice_is_told(
    always: bool, two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = LearnerSpec("unlucky", f"{Unlucky.__module__}:{Unlucky.__name__}", "", "scalars")
    monkeypatch.setitem(LEARNERS, "unlucky", entry)
    monkeypatch.setattr("showerstack.stacking.training.plan.devices_for", lambda specs, asked: {"unlucky": "cuda"})
    settings = {"unlucky": {"mark": str(tmp_path / "mark"), "reason": "gpu"} | ({"always": "yes"} if always else {})}
    if always:
        with pytest.raises(InputError, match=r"unlucky fold . could not be trained: .*CUDA error.*--device cpu\) and"):
            _stack(two_gaussians[0], tmp_path / "run", 2, ("unlucky",), settings)
        return
    result = _stack(two_gaussians[0], tmp_path / "run", 2, ("unlucky",), settings)
    assert [row.status for row in result.manifest.learners] == ["ok"]


def _ended(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    for _ in range(100):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def _stack(
    table: Path,
    run: Path,
    workers: int,
    learners: tuple[str, ...] = ("fake_linear", "fake_noisy", "fake_failing"),
    settings: dict[str, dict[str, str]] | None = None,
) -> StackResult:
    return stack(
        TableConfig(
            run=run, table=table, label="kind", preset="quick", folds=2, repeats=1, holdout=0.1, workers=workers,
            learners=learners, settings=settings or {}, pools=("log_pool",), race="off",
        )
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_devices_change_no_byte_and_one_failing_learner_stops_no_other(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What workers log is logged here, and in the run's folder."""
    where = {"fake_linear": "cpu", "fake_noisy": "cuda", "fake_failing": "cuda"}
    monkeypatch.setattr("showerstack.stacking.training.plan.devices_for", lambda specs, asked: where)
    one, two = _stack(two_gaussians[0], tmp_path / "one", 1), _stack(two_gaussians[0], tmp_path / "two", 2)
    for result in (one, two):
        assert {row.name: row.status for row in result.manifest.learners} == {
            "fake_linear": "ok", "fake_noisy": "ok", "fake_failing": "failed",
        }  # fmt: skip
        log = (result.run / "run.log").read_text()
        assert (log.count("fake_failing fold "), log.count("Traceback")) == (2, 2)
        assert log.count("WARNING showerstack.fakes: this learner is about to fail\n") == 2
        assert "in fit" in log
        assert "RuntimeError: this learner always fails" in log
    assert caplog.messages.count("this learner is about to fail") == 4
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 4
    for name in ("fake_linear", "fake_noisy"):
        for fold in range(2):
            files = [
                np.load(run.run / "learners" / name / f"fold-{fold}" / "held_out.npz")["log_proba"]
                for run in (one, two)
            ]
            np.testing.assert_array_equal(*files)


@pytest.mark.slow
def test_a_process_fits_one_learner_of_a_large_table_and_gives_the_same_bytes(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, runs = ("marking_a", "marking_b"), []
    for name in names:
        monkeypatch.setitem(LEARNERS, name, LearnerSpec(name, f"{Marking.__module__}:Marking", "", "scalars"))
    for is_large, workers in ((False, 1), (True, 1), (True, 2)):
        monkeypatch.setattr("showerstack.stacking.training.schedule.LARGE_BYTES", -1 if is_large else 1 << 40)
        folder = tmp_path / f"{is_large}-{workers}"
        marks = {name: folder.with_name(f"{folder.name}-{name}") for name in names}
        runs.append(_stack(two_gaussians[0], folder, workers, names, {k: {"mark": str(v)} for k, v in marks.items()}))
        a, b = (set(map(int, marks[name].read_text().split())) for name in names)
        if is_large:
            assert not a & b
            assert os.getpid() not in a | b
            assert max(len(a), len(b)) <= workers
        else:
            assert a == b == {os.getpid()}
    for name in names:
        fits = [[RunFolder(run.run).fit(name, fold).read(OWN_FOLD) for fold in range(2)] for run in runs]
        np.testing.assert_array_equal(fits[0], fits[1])
        np.testing.assert_array_equal(fits[0], fits[2])


@pytest.mark.usefixtures("fakes")
def test_as_many_processes_are_at_work_as_the_memory_allows(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TableConfig(run=tmp_path / "run", table=two_gaussians[0], label="kind", learners=("fake_linear",))
    data = open_table(config, Context(), strict=False)
    data.write()
    processes = Processes.of(data.config, data.task, data.train, {"fake_linear": "cpu"})
    assert processes.bytes_each == pytest.approx(LIBRARIES_BYTES, rel=0.01)
    monkeypatch.setattr("showerstack.stacking.training.schedule.cores", lambda: 16)
    monkeypatch.setattr("showerstack.stacking.training.schedule.memory_bytes", lambda: int(5.5 * processes.bytes_each))
    assert (processes.number, processes.remarks()) == (5, [])
    asked = replace(processes, config=config.model_copy(update={"workers": 6}))
    assert asked.number == 6
    (line,) = asked.remarks()
    assert "6 processes may take 4.4 GB of memory, and this job was given 4.0 GB: give --workers 5" in line
    monkeypatch.setattr("showerstack.stacking.training.schedule.memory_bytes", lambda: 1 << 28)
    assert processes.number == 1
    (line,) = processes.remarks()
    assert "a process may take 0.7 GB of memory, and this job was given 0.3 GB: give fewer training events" in line
    assert replace(processes, config=config.model_copy(update={"scheduler": "tcp://a:1"})).remarks() == []


@pytest.mark.parametrize("least", [50, 51])
def test_an_outer_holdout_needs_its_least_number_and_no_more(least: int) -> None:
    outer, remark = choose_holdout(np.ones(200, bool), np.arange(200) % 2, 0.5, seed=1, least=least)
    assert outer.sum() == (100 if least == 50 else 0)
    assert bool(remark) == (least == 51)
