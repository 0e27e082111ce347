"""The same run on a Dask cluster gives the same bytes, whatever directory and threads its workers have."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from showerstack.runtime.errors import InputError, remedy_of
from showerstack.stacking.config import TableConfig
from showerstack.stacking.schedule import ATTEMPTS, on_cluster, refuse_unshared
from showerstack.stacking.train import stack

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
    errors = {row["name"]: row["error"] for row in there.manifest["learners"]}
    assert errors == {
        "fake_linear": None,
        "fake_oftheprocess": None,
        "fake_failing": "fold 0: RuntimeError: this learner always fails",
    }


@pytest.mark.usefixtures("fakes")
def test_threads_of_a_worker_give_the_same_predictions(
    two_gaussians: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=3, processes=False, dashboard_address=None, protocol="tcp"
    ) as local:
        _hold_to_this_machine(local.scheduler_address, *two_gaussians)


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
        with pytest.raises(InputError, match=f"ended {ATTEMPTS} times at the same fit, the last at tcp://127") as error:
            list(on_cluster(_ends, work, cluster))
        assert str(error.value).isprintable()
    _until_two(cluster)


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
