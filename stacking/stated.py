"""What the JSON files of a run and of an export state: entries that readers use, with their types and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from showerstack.runtime.stated import Stated

Count = Annotated[int, Field(ge=0, le=10**12)]
Few = Annotated[int, Field(ge=1, le=10_000)]
"""Folds, repeats, fits of a learner: each is gone through."""
Number = float | None


class _Config(Stated):
    settings: dict[str, dict[str, Any]] = Field(default={})
    id: list[str] | None = Field(default=[])
    label: str | None = None
    group: str | None = None
    weight: str | None = None
    split: str | None = None
    separator: str | None = None
    table: str | None = None
    test_table: str | None = None
    prune: float = 0.0


class _Identity(Stated):
    folds: Few = 1
    repeats: Few = 1
    test_fingerprint: str | None = None


class _Data(Stated):
    train: str | None = None
    test: str | None = None
    train_fingerprint: str | None = None
    test_fingerprint: str | None = None
    train_source: dict[str, Any] | None = None
    test_source: dict[str, Any] | None = None
    train_scalars: str | None = None
    train_quantities: dict[str, Any] | None = Field(default={})
    n_train: Count = 0
    n_test: Count = 0
    n_holdout: Count = 0


class _Learner(Stated):
    name: str
    status: Literal["ok", "failed"] = "ok"
    error: str | None = None
    features: list[str] | None = None
    source: str = ""
    n_parameters: Count | None = None
    fits: Few | None = None
    log_loss: Number = None
    raw_log_loss: Number = None
    single_fit_log_loss: Number = None
    accuracy: Number = None


class _Bin(Stated):
    predicted: float
    observed: float
    error: float
    entries: Count


class _Reliability(Stated):
    bins: list[_Bin]
    expected_calibration_error: float
    of_perfect_posteriors: float


class _Judged(Stated):
    on: str
    events: Count
    fits: Few


class _LeftOut(Stated):
    name: str
    cost: float
    standard_error: Number


class _Pool(Stated):
    chosen: str
    weights: dict[str, float]
    log_losses: dict[str, Number]
    left_out: list[_LeftOut] = Field(default=[])


class _Gate(Stated):
    shipped: bool = True
    claimed: bool = False
    reason: str = ""
    gain: Number = None
    standard_error: Number = None
    best_learner: str = ""
    log_survival: dict[str, float] | None = None


class _Purity(Stated):
    interval: tuple[float, float] = Field(strict=False)


class _Threshold(Stated):
    gamma_efficiency: float
    threshold: float
    hadron_survival_interval: tuple[float, float] = Field(strict=False)
    purity: dict[str, _Purity] = Field(default={})


class _Decision(Stated):
    thresholds: list[_Threshold] = Field(default=[])


class _Step(Stated):
    step: str
    learner: str | None
    wall_s: float
    cpu_s: float
    peak_mb: float


class Manifest(Stated):
    """``manifest.json`` of a finished run. An entry that an earlier version did not write is refused when needed."""

    task: str
    classes: list[str] = Field(default=[])
    config: _Config = _Config()
    identity: _Identity = _Identity()
    config_hash: str = ""
    data: _Data = _Data()
    remarks: list[str] = Field(default=[])
    versions: dict[str, str] = Field(default={})
    started: str = ""
    machine: str | None = None
    command: str | None = None
    git_revision: str | None = None
    device: str = ""
    learners: list[_Learner] = Field(default=[])
    reliability: dict[str, dict[str, _Reliability]] = Field(default={})
    # May be missing, but not null.
    judged: _Judged = Field(default=None)  # type: ignore[assignment]
    pool: _Pool = Field(default=None)  # type: ignore[assignment]
    gate: _Gate = _Gate()
    decision: _Decision = _Decision()
    steps: list[_Step] = Field(default=[])
    label_type: Literal["bool", "int", "float", "str"] = "str"

    @model_validator(mode="after")
    def _classes_are_labels(self) -> Self:
        made = {"int": int, "float": float}.get(self.label_type, str)
        for name in self.classes:
            made(name)
        return self


class FitRecord(Stated):
    """``task.json`` of a fit."""

    importances: dict[str, float] | None
    n_parameters: Count | None = None


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


class _Graph(Stated):
    file: str
    columns: list[str]


class _Fit(Stated):
    average: str
    files: list[_Graph]


class _Exported(Stated):
    name: str
    fits: list[_Fit]


class Export(Stated):
    """``export.json``."""

    format: int
    task: str
    classes: list[str]
    config: _Config
    data: _Data
    systems: list[str]
    shipped: str
    config_hash: str
    versions: dict[str, str] | None
    learners: list[_Exported]
    label_type: str = "str"


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
