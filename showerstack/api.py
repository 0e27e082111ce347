"""Train, predict and score from Python: names, paths or arrays in, small objects with short names out.

Nothing is computed here: these functions bring what the user has into the form that the packages take.

Arrays and data frames, as programs have them, written as the tables that runs are trained on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import polars as pl

LABEL = "class"
"""Column of the classes in tables made from arrays."""


def is_frame(values: Any) -> bool:
    """Return whether something is a data frame of polars or pandas."""
    return type(values).__name__ == "DataFrame" and hasattr(values, "columns")


def write_table(run: Path, values: Any, labels: Any = None) -> Path:
    """Write an array (N, F) or a data frame, and classes (N,) if given, as ``{run}.parquet`` beside the run.

    Raises
    ------
    showers.schema.InputError
        If the values are neither, or the classes are not as many.
    """
    import polars as pl

    from runtime.errors import InputError
    from runtime.files import atomic_path

    table = _frame(values)
    if labels is not None:
        if len(labels) != len(table):
            raise InputError(f"data has {len(table)} rows, labels {len(labels)}")
        if LABEL in table.columns:
            raise InputError(f"the data frame has a column {LABEL!r} already: give label={LABEL!r} instead of labels")
        table = table.with_columns(pl.Series(LABEL, np.asarray(labels)))
    file = run.with_name(f"{run.name}.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as temporary:
        table.write_parquet(temporary)
    return file


def _frame(values: Any) -> pl.DataFrame:
    import polars as pl

    from runtime.errors import InputError

    if isinstance(values, pl.DataFrame):
        return values
    if is_frame(values):
        return pl.from_pandas(values)
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise InputError(
            f"data has shape {array.shape} and type {array.dtype}, expected numbers (N, F), a data frame, or a path"
        )
    return pl.DataFrame({f"x{k}": array[:, k] for k in range(array.shape[1])})


Place: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class Fitted:
    """A finished run."""

    folder: Path
    task: str
    """``composition``, ``gamma``, or ``table``."""
    classes: tuple[str, ...]
    shipped: str
    """``stack``, or the learner that was no worse and ships instead."""
    learners: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        of = f" of {len(self.learners)} learners" if self.shipped == "stack" else ""
        return f"<{self.task} run {self.folder}: {self.shipped}{of}>"

    def predict(self, data: Any, **options: Any) -> Predicted:
        """Predict new events; see :func:`predict`."""
        return predict(self, data, **options)


@dataclass(frozen=True)
class Predicted:
    """Predictions of new events or rows."""

    task: str
    classes: tuple[str, ...]
    probabilities: np.ndarray
    """(N, C) float64."""
    labels: np.ndarray
    """(N,) int8: the decided class of each event."""
    scores: np.ndarray | None
    """(N,) float64, higher = more gamma-like; None for other tasks."""
    config_hash: str = ""
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.probabilities)

    def __repr__(self) -> str:
        shares = np.bincount(self.labels, minlength=len(self.classes)) / max(len(self), 1)
        named = ", ".join(f"{name} {100 * share:.0f} %" for name, share in zip(self.classes, shares, strict=True))
        return f"<{len(self):,} predictions, {self.task}: {named}>"


@dataclass(frozen=True)
class Scored:
    """The metric of a task, with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float
    n_events: int
    metrics: dict[str, Any] = field(default_factory=dict)
    """Everything that ``metrics_{task}.json`` holds, where a test set was given."""

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"<{self.name} {self.value:.4g} [{self.low:.4g}, {self.high:.4g}], {self.n_events:,} events>"


def fit(data: Any, labels: Any = None, *, run: Place, task: str | None = None, **options: Any) -> Fitted:
    """Train base learners and the stack, or open the finished run of the same options.

    Parameters
    ----------
    data
        Folder that holds ``{task}_train`` and ``{task}_test``; a table (CSV, Parquet, or a data frame of polars or
        pandas) with a column of classes; or an array of numbers (N, F).
    labels
        With an array or data frame: its classes, (N,) integers or words.
    run
        Run folder; a run that was interrupted is continued.
    task
        With a folder: ``composition`` (default) or ``gamma``.
    **options
        ``preset``, ``learners``, ``seed``, ``folds``, ``device``, ``workers`` and the other options of
        :class:`stacking.run.config.StackConfig`; with a table ``label`` (its column), ``group``, ``test_table``.

    Returns
    -------
    Fitted

    Raises
    ------
    showers.schema.InputError
        A ``ValueError`` in one line for data or options that cannot be used.
    """
    from runtime.errors import InputError
    from stacking.run.config import StackConfig, TableConfig
    from stacking.train import stack_table

    run = Path(run).expanduser()
    if not isinstance(data, str | os.PathLike):
        label = options.pop("label", None)
        if (labels is None) == (label is None):
            raise InputError("say what the classes are: fit(x, labels, ...), or fit(frame, label='column', ...)")
        stack_table(TableConfig(run=run, table=write_table(run, data, labels), label=label or LABEL, **options))
        return fitted(run)
    path = Path(data).expanduser()
    if labels is not None:
        raise InputError("labels go with an array; of a table, name the column: fit(table, label='class', ...)")
    if "label" in options:
        stack_table(TableConfig(run=run, table=path, **options))
        return fitted(run)
    from stacking.train import stack

    if path.is_file():
        raise InputError(f"{path} is a table: name its column of classes, fit({path.name!r}, label=...)")
    stack(StackConfig(run=run, data=path, task=task or "composition", **options))
    return fitted(run)


def fitted(run: Place) -> Fitted:
    """Open a finished run.

    Raises
    ------
    showers.schema.InputError
        If it is none.
    """
    from stacking.run.folder import open_finished

    folder = Path(run).expanduser()
    _, manifest = open_finished(folder)
    gate = manifest.get("gate", {})
    names = tuple(row["name"] for row in manifest["learners"] if row["status"] == "ok")
    shipped = "stack" if gate.get("shipped") is True else str(gate.get("best_learner"))
    remarks = tuple(manifest.get("remarks", ()))
    return Fitted(folder, manifest["task"], tuple(manifest["classes"]), shipped, names, remarks)


def predict(run: Fitted | Place, data: Any, *, device: str = "auto", workers: int | None = None) -> Predicted:
    """Predict new events with a finished run; labels are neither needed nor looked at.

    Parameters
    ----------
    run
        What :func:`fit` returned, or the run's folder.
    data
        Dataset folder, table (CSV, Parquet, data frame), or array (N, F), with the columns that were trained on.

    Raises
    ------
    showers.schema.InputError
        For a run or data that cannot be used.
    """
    import tempfile

    from runtime.errors import InputError
    from showers.schema import TASKS
    from stacking import load
    from stacking.predict import predict_table

    if not isinstance(run, str | os.PathLike | Fitted):
        raise InputError(f"run is {type(run).__name__}, expected what fit returned, or a run folder")
    run = run if isinstance(run, Fitted) else fitted(run)
    if run.task in TASKS and not isinstance(data, str | os.PathLike):
        raise InputError(f"a {run.task} run predicts dataset folders: give a path, not {type(data).__name__}")
    bundle = load(run.folder, trusted=True)
    if run.task in TASKS:
        found = bundle.predict(Path(data).expanduser(), device=device, workers=workers)
    elif isinstance(data, str | os.PathLike):
        found, _ = predict_table(bundle, Path(data).expanduser())
    else:
        with tempfile.TemporaryDirectory() as folder:
            found, _ = predict_table(bundle, write_table(Path(folder) / "new", data))
    return Predicted(
        run.task, run.classes, np.exp(found.log_proba), found.labels, found.scores, found.config_hash, found.remarks
    )


def score(predictions: Any, truth: Any, *, task: str | None = None) -> Scored:
    """Judge predictions as the benchmark does, with a 95 % interval.

    Parameters
    ----------
    predictions
        What :func:`predict` returned; a ``predictions.npz``; or an array (N,) of labels or gamma scores.
    truth
        Folder that holds ``{task}_test`` with its labels; or an array (N,) of true classes (numbers).
    task
        ``composition`` or ``gamma``; by default what the predictions are of.

    Raises
    ------
    showers.schema.InputError
        For anything that cannot be scored.
    """
    from runtime.errors import InputError
    from scoring import metric_for
    from scoring.score import score_arrays, score_file, task_of
    from scoring.tasks.base import scoring_of, scorings
    from scoring.tasks.truth import read_truth
    from showers.schema import Task, task_named

    if isinstance(predictions, str | os.PathLike):
        file = Path(predictions).expanduser()
        chosen = task_named(task) if task else task_of(file)
        return _scored(chosen, score_file(file, Path(truth).expanduser(), chosen, write=False))
    output = predictions
    if isinstance(predictions, Predicted):
        task = task or predictions.task
        output = predictions.labels if predictions.scores is None else predictions.scores
    if task is None:
        raise InputError("say what the predictions are of: task='composition' or task='gamma'")
    known = task_named(task) if task in scorings() else Task(task, ("0", "1"))
    if isinstance(truth, str | os.PathLike):
        test = read_truth(Path(truth).expanduser(), known)
        checked = scoring_of(known).checked(np.asarray(output), "predictions")
        if len(checked) != len(test.labels):
            raise InputError(f"{len(checked)} predictions, but the test set has {len(test.labels)} events")
        return _scored(known, score_arrays(test, checked, known))
    labels = np.asarray(truth)
    checked = scoring_of(known).checked(np.asarray(output), "predictions") if task in scorings() else np.asarray(output)
    if labels.shape != checked.shape:
        raise InputError(f"predictions have shape {checked.shape}, true classes {labels.shape}")
    metric = metric_for(known)
    interval = metric.interval(labels, checked)
    return Scored(metric.name, metric.value(labels, checked), interval.low, interval.high, len(labels))


def _scored(task: Any, metrics: dict[str, Any]) -> Scored:
    from scoring.tasks.base import scoring_of

    value, interval = scoring_of(task).headline(metrics)
    low, high = (interval.low, interval.high) if interval else (float("nan"), float("nan"))
    return Scored(scoring_of(task).metric.name, value, low, high, int(metrics["n_events"]), metrics)
