"""The same run on a Dask cluster gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stacking.run.config import TableConfig
from stacking.train import stack_table

distributed = pytest.importorskip("distributed", reason="needs the extra 'cluster'")


@pytest.mark.usefixtures("fakes")
@pytest.mark.filterwarnings("default")  # of the cluster's own libraries
def test_cluster_gives_the_same_predictions(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    options = {"table": train, "label": "kind", "test_table": test, "preset": "quick", "folds": 3, "workers": 1}
    options |= {"device": "cpu", "fast": False, "learners": ("fake_linear", "fake_failing")}
    here = stack_table(TableConfig(repeats=1, holdout=0.1, run=tmp_path / "here", **options))
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    )
    with cluster:
        there = stack_table(
            TableConfig(repeats=1, holdout=0.1, run=tmp_path / "there", scheduler=cluster.scheduler_address, **options)
        )
    expected = (here.run / "predictions.npz").read_bytes()
    assert (there.run / "predictions.npz").read_bytes() == expected, "the address is no part of the configuration"
    rows = {row["name"]: row["error"] for row in there.manifest["learners"]}
    assert rows["fake_failing"] == "fold 0: RuntimeError: this learner always fails"
