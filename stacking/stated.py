"""What the JSON files of a run and of an export state: entries that readers use, with their types and bounds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from showerstack.runtime.cost import Cost
from showerstack.runtime.stated import Stated
from showerstack.stacking.options import TOLERANCE

Count = Annotated[int, Field(ge=0, le=10**12)]
Few = Annotated[int, Field(ge=1, le=10_000)]
"""Folds, repeats, fits of a learner: each is gone through."""
Number = float | None


class Configuration(Stated):
    """The configuration of a run (:class:`showerstack.stacking.config.RunConfig`), as far as readers ask for it."""

    table: str | None = None
    label: str | None = None
    group: str | None = None
    weight: str | None = None
    split: str | None = None
    test_table: str | None = None
    id: list[str] | None = Field(default=[])
    separator: str | None = None
    preset: str | None = None
    learners: list[str] | None = None
    folds: Few | None = None
    time_limit: str | None = None
    prune: float = TOLERANCE
    seed: int | None = None
    threads: Any = None
    """Compared with its bounds when fits are opened (:func:`showerstack.models.base.saving.check_threads`)."""
    settings: dict[str, dict[str, Any]] = Field(default={})


class Identity(Stated):
    """Everything that can change a prediction: options, task, and hashes of the inputs."""

    folds: Few
    repeats: Few
    seed: int | None = None
    holdout: float | None = None
    train_fingerprint: str | None = None
    test_fingerprint: str | None = None


class Inputs(Stated):
    """The events of a run."""

    train: str | None = None
    test: str | None = None
    train_fingerprint: str | None = None
    test_fingerprint: str | None = None
    train_source: dict[str, Any] | None = None
    """Content of ``source.json``; None for a table."""
    train_scalars: str | None = None
    """Type of the training set's scalars; None for a table."""
    train_quantities: dict[str, Any] | None = Field(default={})
    """What the reconstructed quantities were in training (:class:`showerstack.stacking.remarks.Seen`)."""
    test_source: dict[str, Any] | None = None
    n_train: Count = 0
    n_judged: Count = 0
    n_holdout: Count = 0
    n_test: Count = 0
    grouped: bool = False

    def source(self, split: str) -> dict[str, Any] | None:
        """Return the origin of the events of ``train`` or ``test``."""
        return self.train_source if split == "train" else self.test_source


class DroppedLearner(Stated):
    """A learner that the stack does without."""

    name: str
    cost: float
    """Log-loss without it and all left out before it, minus that with all learners."""
    standard_error: Number


class _Interval(Stated):
    low: float
    high: float


class OneNetwork(Stated):
    """Log-loss of one network with the mean weights of a learner's fits minus that of their averaged predictions."""

    difference: float
    interval: _Interval


class LearnerEntry(Stated):
    """What became of a learner."""

    name: str
    status: Literal["ok", "failed"] = "ok"
    error: str | None = None
    features: list[str] | None = None
    """Columns that it got."""
    needs_grid: bool = False
    source: str = ""
    """Where it comes from."""
    n_parameters: Count | None = None
    precision: list[Literal["float32", "bf16"]] = Field(default=[])
    """What its fits multiplied in while they learned, once each: they may have been done by unlike processors."""
    one_network: OneNetwork | None = None
    """None where its fits are averaged."""
    fits: Few | None = None
    left_the_race: DroppedLearner | None = None
    log_loss: Number = None
    """As it predicts new events, on judged events; None where it failed."""
    raw_log_loss: Number = None
    """The same before calibration."""
    single_fit_log_loss: Number = None
    """Of single fits, out-of-fold."""
    accuracy: Number = None


class _Bin(Stated):
    predicted: float
    observed: float
    error: float
    entries: Count


class Diagram(Stated):
    """A reliability diagram (:func:`showerstack.scoring.metrics.reliability.reliability`)."""

    bins: list[_Bin]
    expected_calibration_error: float
    of_perfect_posteriors: float


class Reliability(Stated):
    """The diagrams of a system before and after calibration."""

    raw: Diagram
    calibrated: Diagram


class JudgedOn(Stated):
    """What systems were judged on: which events, how many, and how many fits of a learner predicted each."""

    on: str
    events: Count
    fits: Few


class ChosenPool(Stated):
    """The pool, and how it was found."""

    chosen: str
    weights: dict[str, float]
    log_losses: dict[str, float]
    """Of every pool that was tried, cross-validated."""
    left_out: list[DroppedLearner] = Field(default=[])


class Gate(Stated):
    """Whether the stack predicts, whether its gain is claimed, and why."""

    shipped: bool = True
    claimed: bool = False
    """Whether the stack is shown to be better than its best learner."""
    reason: str = ""
    gain: Number = None
    """Mean log-loss of ``best_learner`` minus that of the stack, both as they predict new events."""
    standard_error: Number = None
    best_learner: str = ""
    """What predicts where the stack does not."""
    log_survival: dict[str, float] | None = None
    """For gammas, the stack's mean ln survival minus that of the best learner, and its standard error."""


class _Purity(Stated):
    interval: tuple[float, float] = Field(strict=False)


class Threshold(Stated):
    """A row of :func:`showerstack.scoring.metrics.classes.threshold_table`."""

    gamma_efficiency: float
    threshold: float
    hadron_survival: float
    hadron_survival_interval: tuple[float, float] = Field(strict=False)
    quoted: bool = True
    purity: dict[str, _Purity] = Field(default={})


class Answers(Stated):
    """How answers are made of posteriors (:class:`showerstack.stacking.answers.Decision`)."""

    chosen: str | None = None
    thresholds: list[Threshold] = Field(default=[])


class Step(Stated):
    """What a step cost (:class:`showerstack.runtime.cost.Cost`)."""

    step: str
    learner: str | None = None
    fold: int | None = None
    wall_s: float
    cpu_s: float
    peak_mb: float

    @classmethod
    def of(cls, cost: Cost) -> Self:
        """Return the entry of a step that has ended."""
        return cls(**asdict(cost))


class Trained(Stated):
    """What a run and its export say of how they were made."""

    task: str
    classes: list[str]
    config: Configuration
    config_hash: str
    stacking_version: int = 0
    features_version: int | None = 0
    data: Inputs
    versions: dict[str, str]
    label_type: Literal["bool", "int", "float", "str"] = "str"
    """Type of the labels in a training table."""
    groups: dict[str, list[int]] | None = None
    """Mass numbers of mass groups that are not the benchmark's."""

    @model_validator(mode="after")
    def _classes_are_labels(self) -> Self:
        made = {"int": int, "float": float}.get(self.label_type, str)
        for name in self.classes:
            made(name)
        return self


class Begun(Trained):
    """``manifest.json`` of a run before its fits."""

    complete: bool = False
    identity: Identity
    learner_versions: dict[str, int] = Field(default={})
    seed: int
    remarks: list[str]
    started: str
    machine: str | None = None
    command: str | None = None
    git_revision: str | None = None
    device: str

    def ended(self, remarks: list[str]) -> dict[str, Any]:
        """Return these entries as they are when the fits are done; ``remarks`` are those that came about."""
        entries = {name: getattr(self, name) for name in self.model_fields_set}
        return {**entries, "complete": True, "remarks": [*self.remarks, *remarks]}


class Manifest(Begun):
    """``manifest.json`` of a finished run."""

    learners: list[LearnerEntry]
    reliability: dict[str, Reliability] = Field(default={})
    judged: JudgedOn
    pool: ChosenPool
    gate: Gate
    decision: Answers
    truth: dict[str, Any] | None = None
    """Of energy and core: the learner, units, and errors on judged events."""
    steps: list[Step]

    @property
    def shipped(self) -> str:
        """The system that predicts new events: ``stack``, or the best learner where the gate is closed."""
        return "stack" if self.gate.shipped else self.gate.best_learner

    @property
    def finished(self) -> tuple[str, ...]:
        """Learners that have all their fits, or as many as the race left them."""
        return tuple(row.name for row in self.learners if row.status == "ok")


class FitRecord(Stated):
    """``task.json`` of a fit: how it came about."""

    key: str = ""
    """Hash of everything that decides the outcome."""
    learner: str = ""
    fold: int = 0
    columns: list[str] = Field(default=[])
    n_train: Count = 0
    n_valid: Count = 0
    n_parameters: Count | None = None
    precision: Literal["float32", "bf16"] | None = None
    """What a network multiplied in while it learned."""
    importances: dict[str, float] | None
    """Share of the gain by column, of learners that count it."""
    cost: Step | None = None
    ended_early: bool = False
    """Whether the time limit ended it."""


class FitHistory(Stated):
    """``history.json`` of a fit."""

    valid_log_loss: list[float]


class _Value(Stated):
    value: float
    low: Number
    high: Number

    @model_validator(mode="after")
    def _has_both_ends(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("both ends of an interval, or none")
        return self


class _System(Stated):
    accuracy: _Value
    log_loss: _Value
    auc: _Value | None
    auc_by_class: dict[str, _Value | None]
    confusion: list[list[Count]]


class TableMetrics(Stated):
    """``metrics_table.json`` and ``metrics_table_test.json`` of a run on a table."""

    judged_on: str
    shipped: str
    systems: dict[str, _System]
    remarks: list[str] = Field(default=[])

    @model_validator(mode="after")
    def _has_shipped(self) -> Self:
        if self.shipped not in self.systems:
            raise ValueError(f"no scores of {self.shipped!r}, which predicts")
        if any(len(row) != len(system.confusion) for system in self.systems.values() for row in system.confusion):
            raise ValueError("as many rows as columns of confused classes")
        return self


class Graph(Stated):
    """A file of an export; columns and grid are what it takes of an event."""

    file: str
    sha256: str
    columns: list[str]
    grid: list[int] | None = None


class ExportedFit(Stated):
    """One fit: its files, and the space in which their log-probabilities are averaged."""

    fold: int = 0
    average: str
    files: list[Graph]


class ExportedLearner(Stated):
    """The fits of a learner."""

    name: str
    fits: list[ExportedFit]


class Export(Trained):
    """``export.json``."""

    format: int
    how: list[str] = Field(default=[])
    systems: list[str]
    shipped: str
    opsets: dict[str, int] = Field(default={})
    columns: dict[str, dict[str, str]] = Field(default={})
    """Units and meanings."""
    learners: list[ExportedLearner]
    combination: dict[str, Any] | None = None
    """The file of all after the learners, its inputs and outputs."""
    refused: dict[str, str] = Field(default={})
    """What has no ONNX form, and why."""
    largest_difference_in_probability: Number = None
    tolerance: float = 0.0


class _Seen(Stated):
    low: float
    high: float
    width: float
    missing: float
    common: float


class _Column(Stated):
    name: str
    kind: str
    offset: float = 0.0
    scale: Annotated[float, Field(gt=0)] = 1.0
    levels: list[str] = Field(default=[])
    seen: _Seen | None = None


class Columns(Stated):
    """``columns.json`` of a run on a table."""

    columns: list[_Column]
    label: str
    label_type: str
    classes: list[str]
    gaps: list[str]
