"""The same run on a Dask cluster gives the same bytes, whatever directory and threads its workers have."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from showerstack.features import build
from showerstack.features.build import build_table
from showerstack.models.pretraining.train import draw_ahead
from showerstack.runtime import cluster as workers
from showerstack.runtime import code
from showerstack.runtime.cluster import ATTEMPTS, on_cluster, refuse_unshared
from showerstack.runtime.code import code_of_fits
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, remedy_of
from showerstack.showers.schema import COMPOSITION
from showerstack.showers.simulation.measured import simulate_measured
from showerstack.stacking import events
from showerstack.stacking.config import TableConfig
from showerstack.stacking.events import ShowerEvents
from showerstack.stacking.export.exported import SavedGraphs
from showerstack.stacking.folder import RunFolder
from showerstack.stacking.prediction.predict import predict_fits
from showerstack.stacking.prediction.predictable import SavedFit
from showerstack.stacking.prediction.run import load
from showerstack.stacking.tables.data import FrameEvents
from showerstack.stacking.training import fits
from showerstack.stacking.training.fits import refuse_other_fit
from showerstack.stacking.training.plan import Plan
from showerstack.stacking.training.train import stack
from tests.program import call
from tests.showers.corsika_files import draw_shower, write_file
from tests.showers.test_corsika import stations

distributed = pytest.importorskip("distributed", reason="needs the extra 'cluster'")
pytestmark = pytest.mark.filterwarnings("default")  # of the cluster's own libraries


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two processes of two threads each, in working directories of their own; a worker that ends ends its task."""
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None) as local,
        distributed.Client(local) as client,
    ):
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        client.run(_move, str(elsewhere))
        yield client


def _move(parent: str) -> None:
    folder = Path(parent) / str(os.getpid())
    folder.mkdir()
    os.chdir(folder)


def _hold_to_this_machine(scheduler: str, train: Path, test: Path) -> None:
    """Compare runs on a cluster and in a process of this machine, byte by byte."""
    options = {"table": train, "label": "kind", "test_table": test, "preset": "quick", "folds": 3, "workers": 1}
    options |= {"device": "cpu", "learners": ("fake_linear", "fake_oftheprocess", "fake_failing")}
    here = stack(TableConfig(repeats=1, holdout=0.1, run=Path("here"), **options))
    there = stack(TableConfig(repeats=1, holdout=0.1, run=Path("there"), scheduler=scheduler, **options))
    for name in ("predictions.npz", "test/fake_linear.npz", "test/fake_oftheprocess.npz"):
        assert (there.run / name).read_bytes() == (here.run / name).read_bytes(), name
    errors = {row.name: row.error for row in there.manifest.learners}
    assert errors == {
        "fake_linear": None,
        "fake_oftheprocess": None,
        "fake_failing": "fold 0: RuntimeError: this learner always fails",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_threads_of_a_worker_give_the_same_predictions(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=3, processes=False, dashboard_address=None, protocol="tcp"
    ) as local:
        _hold_to_this_machine(local.scheduler_address, *two_gaussians)


@pytest.fixture
def small() -> Iterator[Any]:
    """One worker in this process."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client


@pytest.mark.slow
def test_without_workers_it_ends_with_a_line(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(workers, "NO_WORKERS_S", 1.0)
    results = on_cluster(_wait, [(None,), (tmp_path / "go on",)], small)
    assert next(results) is None
    small.cluster.scale(0)
    began = time.monotonic()
    try:
        with pytest.raises(
            InputError, match=r"the Dask scheduler at \S+ has had no worker for 1 s: what is finished is"
        ):
            next(results)
    finally:
        (tmp_path / "go on").touch()  # the worker's thread is one of this process
    assert time.monotonic() - began < 60


def _wait(file: Path | None) -> None:
    # The folder of a test that has passed is removed at once, with the file in it.
    while file is not None and file.parent.exists() and not file.exists():
        time.sleep(0.05)


def test_a_scheduler_that_ends_is_told(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(small, "ncores", _ended)
    with pytest.raises(InputError, match=r"the Dask scheduler at \S+ no longer answers \(Connection reset by peer\)"):
        list(on_cluster(time.sleep, [(2.0,)], small))


def _ended() -> None:
    raise ConnectionResetError("Connection reset by peer")


def test_workers_with_other_code_or_libraries_are_refused(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.refuse_other_code(small)
    there = code_of_fits()
    for name, value in (("lightgbm", "0.1"), ("code of showerstack", "000000000000"), ("learners from", "mine==2")):
        monkeypatch.setattr(workers, "code_of_fits", lambda name=name, value=value: there | {name: value})
        with pytest.raises(InputError, match=rf"the worker tcp://\S+ has {name} {there[name]} \(here {value}\)"):
            workers.refuse_other_code(small)
    monkeypatch.delattr(code, "code_of_fits")  # as where there is no package, or one of an earlier version
    with pytest.raises(InputError, match=r"the worker tcp://\S+ has showerstack missing or older \(cannot import"):
        workers.refuse_other_code(small)


def test_a_worker_that_comes_later_is_looked_at_as_well(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    there = code_of_fits()
    monkeypatch.setattr(workers, "_code_of_this_process", lambda: there | {"lightgbm": "0.1"})
    with pytest.raises(InputError, match=r"the worker tcp://\S+ has lightgbm 0\.1 \(here"):
        list(on_cluster(time.sleep, [(0.0,)], small))


def test_a_worker_of_another_python_is_refused_before_it_gets_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def get_versions(self) -> dict[str, Any]:
            return {"workers": {"tcp://a:1": {"host": {"python": "3.9.2.final.0"}}}}

    with pytest.raises(InputError, match=r"the worker tcp://a:1 has Python 3\.9 \(here 3"):
        workers.refuse_other_code(Other())


class Slow:
    """A result that arrives late."""

    def __init__(self, arrived: Path) -> None:
        self.arrived = arrived

    def result(self) -> int:
        _wait(self.arrived)
        return 7


def test_a_result_that_nobody_can_send_any_more_ends_the_wait(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(workers, "NO_WORKERS_S", 0.3)
    monkeypatch.setattr(small, "ncores", dict)
    with pytest.raises(InputError, match="has had no worker"):
        workers._fetched(Slow(tmp_path / "go on"), small)
    (tmp_path / "go on").touch()
    assert workers._fetched(Slow(tmp_path / "go on"), small) == 7


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_a_fit_of_another_start_is_thrown_away(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"table": two_gaussians[0], "label": "kind", "preset": "quick", "folds": 3, "workers": 1}
    config = TableConfig(run=tmp_path / "run", learners=("fake_linear",), device="cpu", **options)
    stack(config)
    task = Plan.of(config, Context()).tasks()[1]
    before = (task.saved.path / "task.json").read_bytes()
    monkeypatch.setattr(fits, "SEEN_WITHIN_S", 0.0)
    monkeypatch.setattr(fits, "LOOK_EVERY_S", 0.0)
    with RunFolder(config.run).started() as start:
        fits.do_task(replace(task, start=start))
        with pytest.raises(fits.Abandoned):
            fits.do_task(replace(task, start="another"))
        watch = fits.WhileWanted(replace(task, start=start))
        watch(0, 1)
    with pytest.raises(fits.Abandoned):
        watch(0, 1)
    assert (task.saved.path / "task.json").read_bytes() != before, "only the time of the fit"
    shutil.rmtree(config.run)
    with pytest.raises(fits.Abandoned):
        fits.do_task(replace(task, start=start))
    assert not config.run.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_a_fit_that_was_put_there_by_others_is_not_collected(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    options = {"table": two_gaussians[0], "label": "kind", "preset": "quick", "folds": 3, "workers": 1}
    runs = [
        stack(TableConfig(run=tmp_path / f"{seed}", seed=seed, learners=("fake_linear",), device="cpu", **options)).run
        for seed in (1, 2)
    ]
    config = TableConfig(run=runs[1], seed=2, learners=("fake_linear",), device="cpu", **options)
    task = Plan.of(config, Context()).tasks()[0]
    refuse_other_fit(task)
    shutil.rmtree(task.saved.path)
    shutil.copytree(runs[0] / "learners" / "fake_linear" / "fold-0", task.saved.path)
    with pytest.raises(InputError, match=r"fold-0 holds the fit of another run, put there meanwhile: start the same"):
        refuse_other_fit(task)


@pytest.mark.faults
@pytest.mark.usefixtures("fakes")
def test_relative_paths_and_workers_elsewhere_give_the_same_predictions(
    cluster: Any, two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _hold_to_this_machine(cluster.scheduler.address, *(Path(path.name) for path in two_gaussians))


def _ends(times: int, folder: Path) -> str:
    """End the worker the first times."""
    mark = folder / f"{len(list(folder.iterdir()))}"
    if int(mark.name) < times:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


@pytest.mark.faults
@pytest.mark.parametrize("times", [1, ATTEMPTS])
def test_work_of_a_lost_worker_is_tried_again(cluster: Any, tmp_path: Path, times: int) -> None:
    work = [(times, tmp_path), (0, Path("/"))]
    if times < ATTEMPTS:
        assert list(on_cluster(_ends, work, cluster)) == ["done", "done"]
    else:
        with pytest.raises(
            InputError, match=f"ended {ATTEMPTS} times at the same task, the last at tcp://127"
        ) as error:
            list(on_cluster(_ends, work, cluster))
        assert str(error.value).isprintable()
    _until_two(cluster)


@pytest.mark.slow
def test_showers_of_a_pretraining_are_drawn_in_order_by_a_cluster(cluster: Any) -> None:
    address = cluster.scheduler.address
    drawn = draw_ahead(4, range(30), 1, _slow_at_first, address)
    entries = [portion for portion, seconds in drawn if seconds >= 0]
    assert [(seed, number) for seed, number, _ in entries] == [(4, number) for number in range(30)]
    assert len({process for *_, process in entries}) == 2
    begun = list[int]()
    few = on_cluster(_is, ((begun.append(k) or k,) for k in range(30)), cluster, ahead=3)
    assert next(few) in range(5)
    few.close()
    assert len(begun) <= 2 + 3 + 1, "what nobody takes is not begun"


def _slow_at_first(seed: int, number: int) -> tuple[int, int, int]:
    time.sleep(0.3 if number == 0 else 0.01)
    return seed, number, os.getpid()


def _is(number: int) -> int:
    return number


def _until_two(cluster: Any) -> None:
    """Wait until the workers that were ended have been started anew."""
    over = time.monotonic() + 600
    while len(cluster.ncores()) < 2 and time.monotonic() < over:
        time.sleep(0.05)


@pytest.mark.faults
def test_a_cluster_without_the_files_is_refused(cluster: Any, tmp_path: Path) -> None:
    refuse_unshared(cluster, [tmp_path])
    with pytest.raises(InputError, match=r"the worker tcp://\S+ does not see run: a cluster must have the same files"):
        refuse_unshared(cluster, [Path("run")])


def test_a_missing_file_is_no_lack_of_memory() -> None:
    error = FileNotFoundError(2, "No such file or directory", "/data/train.parquet")
    assert remedy_of(error) == "see that the file is there, for every worker of a cluster under the same path,"
    assert remedy_of(OSError(28, "No space left on device")) == "free memory or disk space"


def test_a_cluster_makes_the_same_table_as_this_machine(
    small: Any, tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SHARD_EVENTS", 500)  # several tasks
    dataset, ctx = tiny_composition / "composition_train", Context(scheduler=small.scheduler.address)
    groups = ["size", "electron-fit"]
    monkeypatch.chdir(tmp_path)  # the workers' folder is another one
    tables = [build_table(dataset, tmp_path / name, groups=groups, ctx=one)
              for name, one in (("there", ctx), ("here", Context(workers=1)))]  # fmt: skip
    parts = [sorted(table.folder.glob("*.parquet")) for table in tables]
    assert len(parts[0]) > 2
    assert [file.read_bytes() for file in parts[0]] == [file.read_bytes() for file in parts[1]]
    with pytest.raises(InputError, match="on CPUs: leave --device out"):
        build_table(dataset, tmp_path / "gpu", ctx=Context(device="cuda", scheduler=small.scheduler.address))


def test_a_cluster_predicts_the_same(
    small: Any, composition_run: Path, tiny_composition: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PIECE_EVENTS", 100)  # several tasks
    data, run = tiny_composition / "composition_test", os.path.relpath(composition_run, tmp_path)
    monkeypatch.chdir(tmp_path)  # the workers' folder is another one
    out = ("--run", run, "--data", data, "--features", tmp_path / "features")
    call("cli.py", "predict", *out, "--out", "here.npz")
    call("cli.py", "predict", *out, "--out", "there.npz", "--scheduler", small.scheduler.address)
    assert Path("there.npz").read_bytes() == Path("here.npz").read_bytes()
    for one in (SavedFit(Path("a")), SavedGraphs(Path("a/b"), ("x", "y"), ((Path("a/b"), ("c",)),), "log")):
        assert {path.is_absolute() for path in (one.absolute().place, *dict(getattr(one.absolute(), "files", ())))} == {
            True
        }
    frame = FrameEvents(np.zeros((3, 1), np.float32), ("x",), "")
    with pytest.raises(InputError, match="option scheduler: a cluster predicts showers from their feature table"):
        list(predict_fits(frame, [], Context(scheduler=small.scheduler.address), print))


SKY = "runs = 3\nlive_time_h = 0.02\nflux_1_pev = 6e-21\ndead_stations = 6\n"


@pytest.mark.slow
def test_a_cluster_converts_the_same_runs(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sky.toml").write_text(SKY)
    simulate_measured(tmp_path / "sky.toml", tmp_path / "raw", seed=3, workers=1)
    monkeypatch.chdir(tmp_path)
    address = cluster.scheduler.address
    here, there = (call("cli.py", "convert", "raw", "--times", "--out", name, *more).stdout.replace(name, "OUT")
                   for name, more in (("here", ()), ("there", ("--scheduler", address))))  # fmt: skip
    assert here == there
    files = sorted(file.relative_to("here") for file in Path("here").rglob("*") if file.is_file())
    assert len(files) > 3 * 5
    for file in files:
        assert (Path("here") / file).read_bytes() == (Path("there") / file).read_bytes(), file
    error = call("cli.py", "convert", "raw", "--out", "other", "--scheduler", address, "--delete-raw", code=2).stderr
    assert "--delete-raw: with --scheduler" in error


def test_a_cluster_throws_the_same_showers(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    rng = np.random.default_rng(1)
    for k, mass in enumerate((1, 56)):
        write_file(tmp_path / "runs" / f"DAT00000{k + 1}", [draw_shower(rng, mass=mass, share=0.03)])
    stations(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, more in (("here", ()), ("there", ("--scheduler", cluster.scheduler.address))):
        call("cli.py", "convert", "runs", "--array", "mine/stations.parquet", "--uses", "2", "--out", name, *more)
    for file in sorted(Path("here", "runs").iterdir()):
        assert file.read_bytes() == Path("there", "runs", file.name).read_bytes(), file


def test_pieces_of_workers_come_in_order(
    composition_run: Path, tiny_composition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they end."""
    monkeypatch.setattr(events, "PIECE_EVENTS", 100)
    test = tiny_composition / "composition_test"
    showers = ShowerEvents(test, build_table(test).folder, COMPOSITION)
    learners = [load(composition_run).fits("quadratic_logit")]
    monkeypatch.setattr(
        "showerstack.stacking.prediction.predict.spread_over",
        lambda _, function, tasks, places: [function(*task) for task in reversed(tasks)],
    )
    said: list[float] = []
    found = list(predict_fits(showers, learners, Context(scheduler="tcp://no:1"), lambda done, *_: said.append(done)))
    expected = list(predict_fits(showers, learners, Context(workers=1), lambda *_: None))
    assert [piece.start for piece, _ in found] == [piece.start for piece, _ in expected] != []
    for (_, one), (_, other) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one["quadratic_logit"].log_proba, other["quadratic_logit"].log_proba)
    assert said == sorted(said)
    assert said[-1] == len(showers) * len(learners[0].fits)
