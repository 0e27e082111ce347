"""What a run on a table reached: on held-out rows, and on the test table where that has labels.

Test labels are read here alone, after predictions and models are on disk and sealed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from scoring.metrics.table import table_metrics
from showers.schema import TASKS, InputError
from showers.storage.checksums import Seal
from showers.storage.files import hash_file, read_json, write_json
from stacking.run.sealing import TABLE_TEST_FILE, open_sealed
from stacking.tables.reading import read_table, scan_table
from stacking.tables.train import METRICS_FILE


@dataclass(frozen=True)
class TableRun:
    """A finished run on a table; see :meth:`open`."""

    folder: Path
    manifest: Mapping[str, Any]
    sealed: Seal

    @classmethod
    def open(cls, folder: Path) -> TableRun:
        """Open a run.

        Raises
        ------
        InputError
            If it is not finished, damaged, or was trained on showers.
        """
        sealed, manifest = open_sealed(Path(folder))
        if manifest["task"] in TASKS:
            raise InputError(f"{folder} was trained on showers, not on a table")
        return cls(Path(folder), manifest, sealed)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in label order."""
        return tuple(self.manifest["classes"])

    @property
    def shipped(self) -> str:
        """What predicts new rows: ``stack`` or the best learner."""
        gate = self.manifest["gate"]
        return "stack" if gate["shipped"] else str(gate["best_learner"])

    @cached_property
    def systems(self) -> list[str]:
        """Learners that finished, average and stack."""
        learners = [str(row["name"]) for row in self.manifest["learners"] if row["status"] == "ok"]
        return [*learners, "average", "stack"]

    @cached_property
    def held_out(self) -> dict[str, Any]:
        """Metrics on held-out rows of the training table."""
        content: dict[str, Any] = read_json(self.sealed.path(METRICS_FILE))
        return content

    def out_of_fold(self, system: str) -> tuple[np.ndarray, np.ndarray]:
        """Return true classes and log-probabilities of the rows that what ships was judged on."""
        frame = pl.read_parquet(self.sealed.path(f"oof/{system}.parquet"), glob=False)
        stack = pl.read_parquet(self.sealed.path("oof/stack.parquet"), glob=False)
        labels = pl.read_parquet(self.sealed.path("table/train-labels.parquet"), glob=False)["label"].to_numpy()
        judged = stack[:, -1].is_not_nan() & ((stack["fold"] < 0) | (not self.manifest["data"]["n_holdout"]))
        rows = judged.to_numpy()
        return labels[rows].astype(np.int64), frame.select(f"logp_{c}" for c in self.classes).to_numpy()[rows]

    def test_rows(self) -> tuple[np.ndarray, np.ndarray, list[str]] | None:
        """Return which rows of the test table have a known label, their classes, and remarks.

        None where there is no test table, it is no longer the one that was predicted, or has no labels.
        """
        config, identity = self.manifest["config"], self.manifest["identity"]
        file = Path(config["test_table"]) if config["test_table"] else None
        if file is None or not file.is_file() or hash_file(file) != identity["test_fingerprint"]:
            return None
        if config["label"] not in scan_table(file, config["separator"]).collect_schema().names():
            return None
        values = read_table(file, [config["label"]], config["separator"])[config["label"]]
        names = [None if value is None else str(value) for value in values.to_list()]
        position = {name: k for k, name in enumerate(self.classes)}
        known = np.array([name in position for name in names])
        strange = sorted({name for name in names if name is not None and name not in position})
        remarks = []
        if strange:
            remarks.append(f"{file}: labels {', '.join(strange[:5])} are in no training row: rows not scored")
        if not known.any():
            return None
        return np.flatnonzero(known), np.array([position[name] for name in names if name in position]), remarks

    def test_log_proba(self, system: str) -> np.ndarray:
        """Return a system's (N, C) log-probabilities of the test rows."""
        with np.load(self.sealed.path(f"test/{system}.npz"), allow_pickle=False) as stored:
            return np.asarray(stored["log_proba"])

    def scored(self) -> dict[str, Any] | None:
        """Score the test table where it has labels, and write ``metrics_table_test.json`` beside the run's files."""
        found = self.test_rows()
        if found is None:
            return None
        rows, labels, remarks = found
        metrics = {
            "judged_on": f"{len(rows)} labelled rows of the test table",
            "shipped": self.shipped,
            "remarks": remarks,
            "systems": {
                name: table_metrics(labels, self.test_log_proba(name)[rows], self.classes) for name in self.systems
            },
        }
        write_json(self.folder / TABLE_TEST_FILE, metrics)
        return metrics
