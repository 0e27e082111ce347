"""What ``manifest.json`` of a run holds: the source of its JSON Schema, ``docs/manifest.schema.json``.

python -m showerstack.stacking.manifest > docs/manifest.schema.json
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from showerstack.runtime.cost import Cost
from showerstack.stacking.gate import Gate
from showerstack.stacking.pools import DroppedLearner


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _note(text: str) -> Any:
    return Field(description=text)


class DataEntry(_Part):
    """What the run was trained on and what it predicted."""

    train: Annotated[str, _note("Dataset folder or table")]
    test: Annotated[str | None, _note("The same of the test events; null without any")]
    train_fingerprint: Annotated[str, _note("SHA-256 of training events and labels")]
    test_fingerprint: Annotated[str | None, _note("SHA-256 of the test events, without labels")]
    train_source: Annotated[dict[str, Any] | None, _note("source.json of the training folder")]
    train_scalars: Annotated[str | None, _note("Type in which its quantities are stored")]
    test_source: Annotated[dict[str, Any] | None, _note("source.json of the test folder")]
    n_train: Annotated[int, _note("Training events")]
    train_quantities: Annotated[
        dict[str, dict[str, float]], _note("Of showers under the evaluation cuts: range, width, gaps, by quantity")
    ]
    n_judged: Annotated[int, _note("Those under the evaluation cuts, outer holdout included")]
    n_holdout: Annotated[int, _note("Those in the outer holdout; 0 without one")]
    n_test: Annotated[int, _note("Test events")]
    grouped: Annotated[bool, _note("Whether several events come from one simulated shower")]


class LearnerEntry(_Part):
    """One base learner; log-losses are means over events."""

    name: str
    status: Annotated[str, _note("ok, failed, or why it was given up")]
    error: Annotated[str | None, _note("Last line of the traceback that run.log holds")]
    features: Annotated[list[str], _note("Columns that it learned from")]
    needs_grid: Annotated[bool, _note("Whether it also reads detector grids")]
    source: Annotated[str, _note("Distribution that it came with")]
    n_parameters: int | None
    one_network: Annotated[dict[str, Any] | bool | None, _note("Whether the mean of its fits' weights predicts")]
    log_loss: Annotated[float | None, _note("On the judged events, calibrated")]
    raw_log_loss: Annotated[float | None, _note("The same before calibration")]
    single_fit_log_loss: Annotated[float | None, _note("Out-of-fold, by single fits")]
    accuracy: Annotated[float | None, _note("On the judged events")]


class JudgedEntry(_Part):
    """Events on which what predicts is chosen and scored."""

    on: Annotated[str, _note("outer holdout, or out-of-fold")]
    events: int
    fits: Annotated[int, _note("Fits of a learner whose average is scored")]


class PoolEntry(_Part):
    """The pool of the learners."""

    chosen: Annotated[str, _note("average, log_pool or calibrated_pool")]
    weights: Annotated[dict[str, float], _note("By learner, its share")]
    log_losses: Annotated[dict[str, float], _note("By pool, cross-validated, mean over events")]
    left_out: Annotated[list[DroppedLearner], _note("Learners without which the pool is as good")]


class Diagram(_Part):
    """A reliability diagram."""

    bins: Annotated[list[dict[str, float]], _note("Mean predicted probability, observed frequency, its error, entries")]
    expected_calibration_error: float
    of_perfect_posteriors: Annotated[float, _note("The same, expected of right posteriors for so many events")]


class ReliabilityEntry(_Part):
    """A system's posteriors on the judged events."""

    raw: Diagram
    calibrated: Diagram


class Manifest(_Part):
    """``manifest.json`` of a run folder. A run that is not finished has no entry from ``learners`` on."""

    complete: bool
    task: Annotated[str, _note("composition, gamma, energy, or table")]
    classes: list[str]
    config: Annotated[dict[str, Any], _note("Every option, paths included, as config.toml has them")]
    identity: Annotated[dict[str, Any], _note("What of options and data can change a prediction")]
    config_hash: Annotated[str, _note("SHA-256 of identity; predictions.npz carries it")]
    stacking_version: int
    features_version: Annotated[int | None, _note("null for a table")]
    learner_versions: dict[str, int]
    seed: int
    data: DataEntry
    remarks: Annotated[list[str], _note("What the user should know about data and learners")]
    versions: Annotated[dict[str, str], _note("Of Python and libraries")]
    started: Annotated[str, _note("UTC")]
    machine: str
    command: Annotated[str | None, _note("Command line; null from Python")]
    git_revision: Annotated[str | None, _note("Of the checkout; + where it was changed")]
    device: Annotated[str, _note("cpu or cuda")]
    learners: list[LearnerEntry] | None = None
    reliability: Annotated[dict[str, ReliabilityEntry] | None, _note("By learner, average and stack")] = None
    judged: JudgedEntry | None = None
    pool: PoolEntry | None = None
    gate: Gate | None = None
    decision: Annotated[dict[str, Any] | None, _note("How posteriors become answers; thresholds of gamma scores")] = (
        None
    )
    truth: Annotated[dict[str, Any] | None, _note("How good estimates of energy and core are")] = None
    steps: Annotated[list[Cost] | None, _note("Seconds and peak memory of every step")] = None
    label_type: Annotated[str | None, _note("Of a table's labels: bool, int, float or str")] = None


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a manifest."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Manifest.model_json_schema()


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
