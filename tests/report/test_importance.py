"""Feature importance by group, on a learner that is known to use one group only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from features.build import build_table
from models.base.learner import Batch
from models.registry import create, spec
from report.run_sections import group_of, importances, shuffle
from report.shared.subject import EvaluatedRun
from runtime.files import write_json, write_npz
from showers.dataset import Dataset
from showers.schema import COMPOSITION
from stacking.run.folder import write_run_checksums

COLUMNS = ("fit_lg_nmu", "fit_lg_ne", "prof_e_r50_m")


@pytest.fixture(scope="module")
def world(tiny_composition: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose only learner was trained on labels that depend on the muon fit alone."""
    table = build_table(tiny_composition / "composition_test", workers=1)
    matrix = table.matrix(COLUMNS)
    cuts = np.nanquantile(matrix[:, 0], [0.2, 0.4, 0.6, 0.8])
    labels = np.digitize(np.nan_to_num(matrix[:, 0], nan=-9.0), cuts).astype(np.int64)
    batch = Batch(np.arange(len(labels)), table=matrix, columns=COLUMNS, labels=labels)
    learner = create(spec("lightgbm"), COMPOSITION.classes, preset="quick")
    learner.fit(batch.take(np.arange(0, 800)), batch.take(np.arange(800, 1000)), seed=1)
    run = tmp_path_factory.mktemp("run")
    learner.save(run / "learners" / "lightgbm" / "fold-0")
    log_proba = learner.predict_log_proba(batch)
    guessed = log_proba.argmax(axis=1).astype(np.int8)
    for name in ("lightgbm", "average", "stack"):
        write_npz(run / "test" / f"{name}.npz", log_proba=log_proba, argmax=guessed)
    row = {"name": "lightgbm", "status": "ok", "features": list(COLUMNS), "needs_grid": False, "log_loss": 0.1}
    # a data folder whose labels are the ones that were learnt
    data = tmp_path_factory.mktemp("data")
    source = tiny_composition / "composition_test"
    (data / "composition_test").mkdir()
    for file in source.iterdir():
        (data / "composition_test" / file.name).symlink_to(file)
    (data / "composition_test" / "labels_composition.npy").unlink()
    np.save(data / "composition_test" / "labels_composition.npy", labels.astype(np.int8))
    (data / "composition_test" / "checksums.json").unlink()
    (data / "composition_test.features").symlink_to(source.with_name("composition_test.features"))
    opened = Dataset.open(data / "composition_test", COMPOSITION)
    assert len(opened) == 1000
    origin = {"config_hash": "c0ffee", "test_fingerprint": opened.fingerprint()}
    write_npz(run / "predictions.npz", predictions=guessed, **{name: np.array(value) for name, value in origin.items()})
    known = {"config_hash": origin["config_hash"], "data": {"test_fingerprint": origin["test_fingerprint"]}}
    write_json(run / "manifest.json", {"task": "composition", "learners": [row], **known})
    write_run_checksums(run)
    return run, data


def test_the_group_that_decides_is_found(world: tuple[Path, Path]) -> None:
    (found,) = importances(EvaluatedRun.read(*world))
    assert found.gain is not None
    assert sum(found.gain.values()) == pytest.approx(1.0)
    assert found.gain[group_of("fit_lg_nmu")] > 0.8
    assert set(found.shuffled) == {group_of(column) for column in COLUMNS}
    muon = found.shuffled[group_of("fit_lg_nmu")]
    assert muon.interval.low > 0.5, "shuffling what decides costs dearly"
    assert all(muon.difference > 5 * other.difference for group, other in found.shuffled.items() if other is not muon)


def test_shuffling_touches_one_group_only() -> None:
    table = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    batch = Batch(np.arange(4), table=table, columns=COLUMNS)
    shuffled = shuffle(batch, group_of("fit_lg_ne"), np.array([3, 2, 1, 0])).table
    assert shuffled is not None
    assert shuffled[:, 1].tolist() == table[::-1, 1].tolist()
    assert (shuffled[:, [0, 2]] == table[:, [0, 2]]).all()
    assert (batch.table == np.arange(12).reshape(4, 3)).all()
