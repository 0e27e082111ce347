"""The chain on disk: calibration, meta-learner and decision rules as JSON in a run's ``meta`` folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from showers.schema import TASKS, Task
from showers.storage.checksums import Seal
from showers.storage.files import read_json, write_json
from stacking.combine.calibration import Calibrator
from stacking.combine.meta_registry import meta_from_json, meta_to_json
from stacking.predict.chain import Chain
from stacking.predict.truth import ESTIMATES_FILE, Estimator
from stacking.procedure_registry import procedure_of

CALIBRATION_FILE = "calibration.json"
META_FILE = "stack.json"
DECISION_FILE = "decision.json"


def save_chain(run: Path, chain: Chain) -> None:
    """Write ``meta/*.json``."""
    calibrators = {name: calibrator.as_json() for name, calibrator in chain.calibrators.items()}
    write_json(run / "meta" / CALIBRATION_FILE, calibrators)
    stack = {**meta_to_json(chain.meta), "shipped": chain.shipped, "n_fits": chain.n_fits}
    write_json(run / "meta" / META_FILE, stack)
    if chain.estimator:
        write_json(run / "meta" / ESTIMATES_FILE, chain.estimator.as_json())
    write_json(run / "meta" / DECISION_FILE, {name: rule.as_json() for name, rule in chain.rules.items()})


def load_chain(sealed: Seal, manifest: Mapping[str, Any]) -> Chain:
    """Read what :func:`save_chain` wrote, each file compared with its checksum."""
    stack = read_json(sealed.path(f"meta/{META_FILE}"))
    calibrators = read_json(sealed.path(f"meta/{CALIBRATION_FILE}"))
    rules = read_json(sealed.path(f"meta/{DECISION_FILE}"))
    estimates = f"meta/{ESTIMATES_FILE}"
    estimator = Estimator.from_json(read_json(sealed.path(estimates))) if estimates in sealed.files else None
    name = str(manifest["task"])
    task = TASKS[name] if name in TASKS else Task(name, tuple(manifest["classes"]))
    return Chain(
        task=task,
        calibrators={name: Calibrator.from_json(one) for name, one in calibrators.items()},
        meta=meta_from_json(stack),
        rules={name: procedure_of(task).rule_from_json(rule) for name, rule in rules.items()},
        shipped=str(stack["shipped"]),
        n_fits=int(stack["n_fits"]),
        config_hash=str(manifest["config_hash"]),
        estimator=estimator,
    )
