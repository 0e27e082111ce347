"""Train, predict and score from Python: names, paths or arrays in, small objects with short names out.

Nothing is computed here: these functions bring what the user has, arrays and data frames too, into the form that the
packages take.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
import polars as pl

from showerstack.runtime.context import Bars, Callback, Context, also_calling, bar, silent
from showerstack.runtime.errors import InputError, escaped, need
from showerstack.runtime.files import atomic_path, write_npz
from showerstack.runtime.frames import column_of, frame_of
from showerstack.runtime.logs import Lines, logging_to, remark
from showerstack.runtime.options import Count, Limits, Place, as_arguments, checked, made_of
from showerstack.scoring.metrics.level import LEVEL_TEXT
from showerstack.showers.nuclei import groups_asked
from showerstack.showers.schema import COMPOSITION, TASKS, TargetQuantity, Task, task_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from showerstack.report.photons_page import PhotonLimits
    from showerstack.report.spectra_page import MeasuredSpectra
    from showerstack.stacking.chain import Predictions
    from showerstack.stacking.config import StackConfig, TableConfig
    from showerstack.stacking.prediction.explain import Explanation

LOG = logging.getLogger(__name__)
LABEL = "class"
"""Column of classes in tables made from arrays."""


def write_table(run: Path, values: Any, columns: Mapping[str, Any] | None = None) -> Path:
    """Write an array (N, F) or a data frame, and columns (N,) by name, as ``{run}-{hash of the content}.parquet``.

    It lies beside the run. No file is overwritten: other content has another name.

    Raises
    ------
    showerstack.InputError
        If they cannot be converted exactly; see :func:`showerstack.runtime.frames.frame_of`.
    """
    content = io.BytesIO()
    frame_of(values, columns).write_parquet(content)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:12]
    file = run.with_name(f"{run.name}-{digest}.parquet")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            temporary.write_bytes(content.getvalue())
    return file


Row: TypeAlias = Annotated[int, Limits(0)]


@dataclass(frozen=True)
class Fitted:
    """A finished run."""

    folder: Path
    task: str
    """``composition``, ``gamma``, ``energy``, or ``table``."""
    classes: tuple[Any, ...]
    """Of a table the values of its label column, of showers names."""
    shipped: str
    """``stack``, or the learner that predicts in its place."""
    learners: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    config_hash: str | None = None
    """Of configuration, seeds and data: by it the run is known, wherever its folder is."""

    def __repr__(self) -> str:
        of = f" of {len(self.learners)} learners" if self.shipped == "stack" else ""
        return f"<{self.task} run {self.folder}: {self.shipped}{of}>"

    def _repr_html_(self) -> str:
        from showerstack.stacking.export.exported import open_run
        from showerstack.stacking.prediction.run import Run

        opened = open_run(self.folder, whole=False)
        made = opened.manifest if isinstance(opened, Run) else None
        learners = dict.fromkeys(opened.learners, (None, None)) if made is None else {
            row.name: (row.log_loss, made.pool.weights.get(row.name)) for row in made.learners
        }  # fmt: skip
        rows = [(name, *map(_number, numbers)) for name, numbers in learners.items()]
        return _html(repr(self)[1:-1], ("learner", "held-out log-loss", "weight in the stack"), rows)

    def predict(self, data: Any, **options: Any) -> Predicted:
        """Predict new events; see :func:`predict`."""
        return predict(self, data, **options)

    @checked
    def draw(self, data: Any, event: Row) -> Figure:
        """Return the picture of :meth:`explain` as a figure of matplotlib.

        Raises
        ------
        showerstack.InputError
            As :meth:`explain`.
        """
        need("report", what="a picture")
        from showerstack.report.explain import drawn_explanation

        with _as_file(data) as place:
            return drawn_explanation(self.folder, place, event)[1]

    @checked
    def explain(self, data: Any, event: Row, *, out: Place | None = None) -> Explanation:
        """Explain why the run prefers one class for one event of a dataset folder or table.

        Parameters
        ----------
        data
            As for :func:`predict`, two events or more.
        event
            Its row, from 0.
        out
            Also draw it into this file (``.png``, ``.svg`` or ``.pdf``).

        Returns
        -------
        showerstack.stacking.prediction.explain.Explanation
            What each group of features adds to ``ln p(c) / p(d)`` of the most probable class and the next (of gammas
            and hadrons), for each learner and all together; base and groups sum to the score.

        Raises
        ------
        showerstack.InputError
            For an export, a run that estimates a quantity, or an event that does not exist or cannot be used.
        """
        from showerstack.stacking.export.exported import open_run
        from showerstack.stacking.prediction.explain import explain

        with _as_file(data) as place:
            if out is None:
                return explain(open_run(self.folder), place, event)
            need("report", what="a picture")
            from showerstack.report.explain import explain_event

            return explain_event(self.folder, place, event, Path(out).expanduser())


@dataclass(frozen=True)
class Predicted:
    """Predictions of new events or rows."""

    task: str
    classes: tuple[Any, ...]
    """In the order of the columns of ``probabilities``."""
    probabilities: np.ndarray
    """(N, C) float64."""
    labels: np.ndarray
    """(N,) the decided class of each event as training labels have it: values of the label column, 0..4 of showers."""
    scores: np.ndarray | None
    """(N,) float64, higher = more gamma-like; None for other tasks."""
    config_hash: str = ""
    remarks: tuple[str, ...] = ()
    test_fingerprint: str | None = None
    """Of the events, so that nobody scores the predictions with others; None where they have none."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    """(N,) each: what ``predictions.npz`` holds of the task, such as ``lg_energy`` and ``lg_energy_error``."""
    class_labels: tuple[Any, ...] | None = None
    """What ``labels`` holds for each class; None: values of the label column, or the benchmark's numbers."""

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def _target(self) -> TargetQuantity | None:
        return TASKS[self.task].target if self.task in TASKS else None

    def _quartiles(self, name: str) -> list[str]:
        """Return 25, 50 and 75 % of an array of estimates, as text."""
        known = self.arrays[name][np.isfinite(self.arrays[name])]
        return [f"{value:.2f}" for value in np.quantile(known, (0.25, 0.5, 0.75))] if len(known) else ["–"] * 3

    def __repr__(self) -> str:
        if target := self._target:
            low, middle, high = self._quartiles(target.name)
            return f"<{len(self):,} predictions: {target.unit} {middle}, half of them {low} to {high}>"
        shares = self._shares() if len(self) else np.zeros(len(self.classes))
        named = ", ".join(f"{name} {100 * share:.0f} %" for name, share in zip(self.classes, shares, strict=True))
        return f"<{len(self):,} predictions, {self.task}: {named}>"

    def _shares(self) -> np.ndarray:
        """Return the share of events decided for each class (C,); NaN without events."""
        known = self.class_labels
        if known is None:
            known = self.classes if self.task not in TASKS else task_named(self.task).with_classes(self.classes).labels
        return np.array([np.mean(self.labels == value) if len(self) else np.nan for value in known])

    def _repr_html_(self) -> str:
        if target := self._target:
            rows = [(name, *self._quartiles(name)) for name in (target.name, f"{target.name}_error")]
            return _html(f"{len(self):,} predictions, {target.unit}", ("", "25 %", "median", "75 %"), rows)
        mean = self.probabilities.mean(axis=0) if len(self) else np.full(len(self.classes), np.nan)
        rows = [
            (name, f"{100 * share:.1f} %", _number(probability))
            for name, share, probability in zip(self.classes, self._shares(), mean, strict=True)
        ]
        return _html(f"{len(self):,} predictions, {self.task}", ("class", "decided", "mean probability"), rows)

    def plot(self) -> Figure:
        """Return a figure of matplotlib: gamma scores, estimates, or the share of each class.

        Raises
        ------
        showerstack.InputError
            If matplotlib is not installed, or there are no events.
        """
        need("report", what="a picture")
        from showerstack.report.notebook import estimates_of_events, scores_of_events, shares_of_classes

        if not len(self):
            raise InputError("there are no events to be drawn")
        if self.scores is not None:
            return scores_of_events(self.scores)
        if target := self._target:
            return estimates_of_events(self.arrays[target.name], f"{target.name}, {target.unit}")
        return shares_of_classes(self.classes, self._shares(), self.probabilities.mean(axis=0))


@dataclass(frozen=True)
class Scored:
    """The metric of a task, with its confidence interval."""

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

    def _repr_html_(self) -> str:
        row = (self.name, f"{self.value:.4g}", f"[{self.low:.4g}, {self.high:.4g}]", f"{self.n_events:,}")
        return _html("", ("metric", "value", f"{LEVEL_TEXT} interval", "events"), [row])


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4f}"


def _html(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table for a notebook; all text is escaped."""

    def cells(values: Sequence[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(escaped(str(value)))}</{tag}>" for value in values) + "</tr>"

    body = "".join(cells(row, "td") for row in rows)
    return f"<table><caption>{escape(escaped(caption))}</caption>{cells(heads, 'th')}{body}</table>"


@checked
def display(data: Place, event: Row) -> Figure:
    """Return the picture that the command ``display`` draws of one event, as a figure of matplotlib.

    Raises
    ------
    showerstack.InputError
        If matplotlib is not installed, the folder cannot be read, or the event does not exist.
    """
    need("report", what="a picture")
    from showerstack.report.display import event_picture, read_showers
    from showerstack.showers.dataset import Dataset

    opened = Dataset.open(Path(data).expanduser(), labels=False)
    (shower,) = read_showers(opened, [event])
    return event_picture(shower, f"event {event} of {opened.path.name}")


@contextmanager
def _as_file(data: Any) -> Iterator[Path]:
    """Yield the path of a dataset folder or table; arrays and data frames are written into a temporary folder."""
    if isinstance(data, str | os.PathLike):
        yield Path(data).expanduser()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield write_table(Path(folder) / "new", data)


@contextmanager
def _shown(verbose: bool, callback: Callback | None) -> Iterator[Bars]:
    """Yield progress bars that call ``callback``; ``verbose`` draws them and prints what is logged meanwhile."""
    bars = bar if verbose else silent
    with logging_to(Lines(), level="INFO") if verbose else nullcontext():
        yield bars if callback is None else also_calling(callback, bars)


@checked
def fit(
    data: Any,
    labels: Any = None,
    *,
    run: Place,
    task: str | None = None,
    verbose: bool = False,
    callback: Callback | None = None,
    **options: Any,
) -> Fitted:
    """Train base learners and the stack, or open the finished run of the same options.

    Remarks on the data and the run are logged as warnings, below the logger ``showerstack``.

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
        With a folder: ``composition`` (default), ``gamma`` or ``energy``.
    verbose
        Draw progress bars, in a terminal or a notebook, and print what is logged.
    callback
        Called in this process as ``callback(step, done, total, note, values)`` while work goes on: the name of the
        step, how much of it is done, how much there is, a short remark, and its numbers by name, such as the
        ``log_loss`` of a fit on the fold that it did not learn from. What it raises ends the run, which can be
        continued.
    **options
        ``preset``,
        ``learners``,
        ``seed``, ``folds``, ``device``, ``workers`` and the other options of
        :class:`showerstack.stacking.config.StackConfig`; with a table ``label`` (its column), ``group``,
        ``test_table``.

    Returns
    -------
    Fitted

    Raises
    ------
    showerstack.InputError
        A ``ValueError`` in one line for data or options that cannot be used.

    Examples
    --------
    Showers in ``data/composition_train`` and ``data/composition_test``:

    >>> import showerstack
    >>> options = {"preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "device": "cpu"}
    >>> run = showerstack.fit("data", run="runs/composition", **options)
    >>> run.classes
    ('proton', 'helium', 'carbon', 'silicon', 'iron')
    """
    from showerstack.stacking.options import RunOptions, ShowerOptions, TableOptions
    from showerstack.stacking.training.train import stack

    need("train", what="training")
    with as_arguments(RunOptions, ShowerOptions, TableOptions), _shown(verbose, callback) as bars:
        config = _configured(data, labels, Path(run).expanduser(), task, options)
        stack(config, Context(bars=bars))
    return fitted(config.run)


def _configured(
    data: Any, labels: Any, run: Path, task: str | None, options: dict[str, Any]
) -> StackConfig | TableConfig:
    """Return the configuration that the arguments of :func:`fit` mean; arrays are written beside the run."""
    from showerstack.stacking.config import StackConfig, TableConfig

    if not isinstance(data, str | os.PathLike):
        label = options.pop("label", None)
        if (labels is None) == (label is None):
            raise InputError("say what the classes are: fit(x, labels, ...), or fit(frame, label='column', ...)")
        columns = {} if labels is None else {LABEL: labels}
        return TableConfig(run=run, table=write_table(run, data, columns), label=label or LABEL, **options)
    path = Path(data).expanduser()
    if labels is not None:
        raise InputError("labels go with an array; of a table, name the column: fit(table, label='class', ...)")
    if "label" in options:
        return TableConfig(run=run, table=path, **options)
    if path.is_file():
        raise InputError(f"{path} is a table: name its column of classes, fit({path.name!r}, label=...)")
    return StackConfig(run=run, data=path, task=task or "composition", **options)


@checked
def fitted(run: Place) -> Fitted:
    """Open a finished run, or an export of one.

    Raises
    ------
    showerstack.InputError
        If it is none.
    """
    from showerstack.stacking.export.exported import open_run

    folder = Path(run).expanduser()
    opened = open_run(folder, whole=False)
    folder = folder.absolute()  # another working folder changes nothing
    known = opened.remarks, opened.trained.config_hash
    return Fitted(folder, opened.task.name, opened.class_values, opened.shipped, opened.learners, *known)


@checked
def predict(
    run: Fitted | Place,
    data: Any,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: Count | None = None,
    no_table: bool = False,
    verbose: bool = False,
    callback: Callback | None = None,
) -> Predicted:
    """Predict new events with a finished run, or an export of one; labels are neither needed nor looked at.

    Parameters
    ----------
    run
        What :func:`fit` returned, or the run's folder.
    data
        Dataset folder, table (CSV, Parquet, data frame), or array (N, F), with the columns that were trained on.
    device, workers
        Where features of showers are computed, and how many threads work; one a core if None.
    no_table
        Of showers: compute the features in memory, write no feature table.
    verbose, callback
        As for :func:`fit`.

    Raises
    ------
    showerstack.InputError
        For a run or data that cannot be used.

    Examples
    --------
    >>> import showerstack
    >>> predicted = showerstack.predict("runs/composition", "data/composition_test")
    >>> predicted
    <1,000 predictions, composition: proton ... %, helium ... %, carbon ... %, silicon ... %, iron ... %>
    >>> predicted.probabilities.shape
    (1000, 5)
    """
    from showerstack.stacking.export.exported import open_run
    from showerstack.stacking.prediction.predict import predict as predict_events

    run = run if isinstance(run, Fitted) else fitted(run)
    if run.task in TASKS and not isinstance(data, str | os.PathLike):
        raise InputError(f"a {run.task} run predicts dataset folders: give a path, not {type(data).__name__}")
    if run.task not in TASKS and (no_table or device != "auto"):
        raise InputError("no_table and device are for runs on showers: leave them out for a table")
    with _as_file(data) as place, _shown(verbose, callback) as bars:
        ctx = Context(bars=bars, device=device, workers=workers)
        opened = open_run(run.folder)
        if run.config_hash not in (None, opened.trained.config_hash):
            raise InputError(f"{run.folder} holds another run than when it was opened: fit or open it again")
        with tempfile.TemporaryDirectory(prefix="showerstack-") as scratch:
            elsewhere = Path(scratch, "features")  # where nothing can be written beside the data
            predicted = predict_events(opened, place, ctx, no_table=no_table, elsewhere=elsewhere).concatenated()
    if run.task in TASKS:
        return _predicted(opened.task, predicted)
    return _predicted(replace(opened.task, name=run.task), predicted, run.classes)


@checked
def first_look(
    data: Place, *, task: str, groups: Sequence[str] | None = None, weights: str = "any-array",
    anyway: bool = False, workers: Count | None = None, verbose: bool = False,
) -> Predicted:  # fmt: skip
    """Score showers of any array by pretrained weights alone, without any training; labels are not looked at.

    Nothing was compared with showers of that array: the remarks say so.

    Parameters
    ----------
    data
        Dataset folder.
    task
        ``composition`` or ``gamma``.
    groups
        Of composition: the mass groups that there are, such as ``("proton", "iron")``; all five by default.
    weights
        ``any-array`` or, at KASCADE, ``shipped``.
    anyway
        Whether showers unlike all that the weights have seen are scored too; a remark then says so.
    workers, verbose
        As for :func:`predict`.

    Raises
    ------
    showerstack.InputError
        For another task, an array or showers far outside of what the weights have seen, or a folder that cannot be
        used.
    """
    from showerstack.stacking.prediction.first_look import first_look as look_at

    chosen = task_named(task)
    if groups is not None:
        if chosen != COMPOSITION:
            raise InputError(f"groups: task {task} has no mass groups")
        chosen = groups_asked(",".join(groups))
    with _shown(verbose, None) as bars, tempfile.TemporaryDirectory(prefix="showerstack-") as scratch:
        ctx = Context(bars=bars, workers=workers)
        stream = look_at(
            Path(data).expanduser(), chosen, ctx, weights=weights, elsewhere=Path(scratch, "features"), anyway=anyway
        )
        found = stream.concatenated()
    return _predicted(chosen, found)


def _predicted(task: Task, found: Predictions, values: tuple[Any, ...] | None = None) -> Predicted:
    """Return predictions with the decided classes (N,) as training labels have them: numbers, or a table's values."""
    numbers = np.asarray(found.labels)
    labels = task.decoded(numbers) if values is None else np.asarray(values)[numbers]
    return Predicted(
        task.name, values or task.classes, np.exp(found.log_proba), labels, found.scores, found.config_hash,
        found.remarks, found.test_fingerprint, found.arrays, task.labels if values is None else values,
    )  # fmt: skip


@checked
def score(predictions: Any, truth: Any, *, task: str | None = None, groups: Any = None) -> Scored:
    """Score predictions as the benchmark does, with a confidence interval.

    Parameters
    ----------
    predictions
        What :func:`predict` returned; a ``predictions.npz``; or an array (N,) of labels or gamma scores.
    truth
        Test set with its labels, or the folder that holds it as ``{task}_test``; or an array (N,) of true classes as
        training labels have them: values of the label column, numbers for showers.
    task
        ``composition``, ``gamma`` or ``energy``; by default what the predictions are of.
    groups
        (N,) with true classes as an array: events of one value are one observation in the interval. A folder has its
        own.

    Raises
    ------
    showerstack.InputError
        For anything that cannot be scored: predictions of other events, true classes that training did not have.

    Examples
    --------
    >>> import showerstack
    >>> scored = showerstack.score("runs/composition/predictions.npz", "data")
    >>> scored
    <fraction error 0.1... [0..., 0...], 1,000 events>
    >>> scored.low < float(scored) < scored.high
    True
    """
    from showerstack.scoring.score import check_events, score_arrays, score_file, task_of
    from showerstack.scoring.tasks import metric_for, scoring_of
    from showerstack.scoring.tasks.truth import read_truth
    from showerstack.showers.archives.formats import labels_of

    if isinstance(predictions, str | os.PathLike):
        file = Path(predictions).expanduser()
        of_file = task_named(task) if task else task_of(file)
        return _scored(of_file, score_file(file, Path(truth).expanduser(), of_file, write=False))
    output, fingerprint = predictions, None
    if isinstance(predictions, Predicted):
        if task not in (None, predictions.task):
            raise InputError(f"the predictions are of task {predictions.task}, not {task}")
        task, fingerprint = predictions.task, predictions.test_fingerprint
        output = predictions.labels if predictions.scores is None else predictions.scores
        if task in TASKS:
            output = predictions.arrays.get(task_named(task).output_array, output)
    if task is None:
        raise InputError("say what the predictions are of: task='composition', 'gamma' or 'energy'")
    scored_task = task_named(task) if task in TASKS else Task(task, ("0", "1"))
    if isinstance(truth, str | os.PathLike):
        test = read_truth(Path(truth).expanduser(), scored_task)
        scored_task = test.task
        of_run = isinstance(predictions, Predicted) and predictions.class_labels is not None
        if of_run and predictions.classes != scored_task.classes:  # numbers alone may agree
            raise InputError(
                f"the predictions are of {', '.join(predictions.classes)}, but {test.folder} has "
                f"{', '.join(scored_task.classes)}"
            )
        remarks = check_events("the prediction", fingerprint, test.folder) if fingerprint else []
        answers = scoring_of(scored_task).check_output(_complete(output, "predictions"), "predictions")
        if len(answers) != len(test.labels):
            raise InputError(f"{len(answers)} predictions, but the test set has {len(test.labels)} events")
        metrics = score_arrays(test, answers, scored_task)
        metrics["warnings"] += remarks
        return _scored(scored_task, metrics)
    labels, answers = _complete(truth, "true classes"), _complete(output, "predictions")
    if labels.shape != answers.shape:
        raise InputError(f"predictions have shape {answers.shape}, true classes {labels.shape}")
    if task in TASKS:
        labels = labels_of(labels, scored_task, "true classes", 0)
        scored_task = scored_task.among(labels)
        labels = labels if scored_task.target else scored_task.encoded(labels)
        answers = scoring_of(scored_task).check_output(answers, "predictions")
    elif isinstance(predictions, Predicted):
        labels, answers = (_class_numbers(values, predictions.classes) for values in (labels, answers))
    else:
        labels, answers = _comparable(labels, answers)
    metric = metric_for(scored_task)
    interval = metric.interval(labels, answers, None if groups is None else _checked_groups(groups, len(labels)))
    return Scored(metric.name, metric.value(labels, answers), interval.low, interval.high, len(labels))


@checked
def save_predictions(file: Place, values: Any, data: Place, *, task: str) -> Path:
    """Write predictions of any origin as ``predictions.npz``, with the fingerprint of the events they are for.

    ``verify.py``, ``compare`` and ``leaderboard`` take the file.

    Parameters
    ----------
    file
        Its name ends in ``.npz``.
    values
        (N,) class numbers, gamma scores (higher = more gamma-like), or energies, in the order of the test set's rows.
    data
        Test set, or the folder that holds it as ``{task}_test``; its labels are not looked at.
    task
        ``composition``, ``gamma`` or ``energy``.

    Raises
    ------
    showerstack.InputError
        For values that cannot be scored, or not one for each event.
    """
    from showerstack.scoring.tasks import scoring_of
    from showerstack.showers.dataset import Dataset

    path, folder, scored_task = Path(file).expanduser(), Path(data).expanduser(), task_named(task)
    inside = folder / f"{task}_test"
    test = Dataset.open(inside if inside.is_dir() else folder, labels=False)
    scored_task = test.files.with_groups(scored_task)
    scoring = scoring_of(scored_task)
    output = scoring.check_output(_complete(values, "predictions"), "predictions")
    if output.shape != (len(test),):
        raise InputError(f"predictions have shape {output.shape}, but {test.path} has {len(test)} events")
    if path.suffix != ".npz":
        raise InputError(f"{path}: name a file that ends in .npz")
    arrays = {scored_task.output_array: output.astype(scoring.dtype), "test_fingerprint": np.array(test.fingerprint())}
    write_npz(path, **arrays)
    return path


@checked
def feature_table(data: Place, *, out: Place | None = None, workers: Count | None = None) -> Any:
    """Return the feature table of a dataset folder as a frame of Polars: ``event``, then one column a feature.

    It is computed where it is not there yet, and kept beside the dataset, or in the folder ``out``.

    Raises
    ------
    showerstack.InputError
        If the folder cannot be used.
    """
    from showerstack.features.build import build_table
    from showerstack.features.table import FeatureTable

    place = None if out is None else Path(out).expanduser()
    folder = build_table(Path(data).expanduser(), place, ctx=Context(workers=workers)).folder
    return FeatureTable.open(folder).frame().collect()


@checked
def spectra(
    run: Fitted | Place,
    data: Place | Sequence[Place],
    *,
    out: Place,
    simulation: Place | Sequence[Place] = (),
    exposure: str | float | None = None,
    workers: Count | None = None,
    verbose: bool = False,
    callback: Callback | None = None,
    **options: Any,
) -> MeasuredSpectra:
    """Measure fluxes and shares of mass groups by energy, as the command ``spectra`` does.

    Parameters
    ----------
    run
        A composition run.
    data
        Measured events: a dataset folder, a folder of runs, or several of them.
    out
        Folder for the tables and the page ``spectra.html``.
    simulation
        Labelled simulated sets, not trained on; by default the run's held-out events.
    exposure
        m2 sr s, or with its unit such as ``"0.2 km2 sr yr"``; by default that of the runs' own live time.
    workers, verbose, callback
        As for :func:`fit`.
    **options
        Others of :class:`showerstack.analysis.options.SpectraOptions`, such as ``edges``, ``zenith_max_deg``.

    Returns
    -------
    showerstack.report.spectra_page.MeasuredSpectra
        ``table()`` has a row for each energy bin and group, with units in the names of the columns; ``plot()`` returns
        the page's picture as a figure of matplotlib, and notebooks show the table of shares.

    Raises
    ------
    showerstack.InputError
        For a run, data or an exposure that cannot be used.
    """
    from showerstack.analysis.options import SpectraOptions

    need("train", "report", "physics", what="spectra")
    from showerstack.analysis.spectra.files import write_spectra
    from showerstack.analysis.spectra.run import measure_spectra
    from showerstack.report.spectra_page import MeasuredSpectra, write_spectra_page
    from showerstack.runtime.files import check_out_folder

    options |= _analysis_options(run, data, out, exposure)
    with as_arguments(SpectraOptions), _shown(verbose, callback) as bars:
        spectra_options = made_of(SpectraOptions, options | {"simulation": _paths(simulation) or None})
        check_out_folder(spectra_options.out)
        result = measure_spectra(spectra_options, Context(bars=bars, workers=workers))
        write_spectra(result, spectra_options.out)
        write_spectra_page(result, spectra_options.out)
    return MeasuredSpectra.of(result)


@checked
def gamma_limit(
    run: Fitted | Place,
    data: Place | Sequence[Place],
    *,
    out: Place,
    simulation: Place | None = None,
    exposure: str | float | None = None,
    workers: Count | None = None,
    verbose: bool = False,
    callback: Callback | None = None,
    **options: Any,
) -> PhotonLimits:
    """Look for photons among measured events, as the command ``gamma-limit`` does.

    Parameters
    ----------
    run
        A gamma run.
    data, exposure, workers, verbose, callback
        As for :func:`spectra`.
    out
        Folder for the tables, the models for pyhf, and the page ``gamma_limit.html``.
    simulation
        Labelled simulated set, not trained on; by default the run's held-out events.
    **options
        Others of :class:`showerstack.analysis.options.SearchOptions`, such as ``edges``, ``level``, ``toys``.

    Returns
    -------
    showerstack.report.photons_page.PhotonLimits
        ``limits()`` has a row for each range of energy, ``candidates()`` one for each event above the threshold;
        ``plot()`` returns the page's picture as a figure of matplotlib, and notebooks show the table of limits.

    Raises
    ------
    showerstack.InputError
        For a run, data or an exposure that cannot be used.
    """
    from showerstack.analysis.options import SearchOptions

    need("train", "report", what="gamma_limit")
    from showerstack.analysis.photons.files import write_limits
    from showerstack.analysis.photons.search import search_photons
    from showerstack.report.photons_page import PhotonLimits, write_photon_page
    from showerstack.runtime.files import check_out_folder

    options |= _analysis_options(run, data, out, exposure)
    simulated = None if simulation is None else Path(simulation).expanduser()
    with as_arguments(SearchOptions), _shown(verbose, callback) as bars:
        search_options = made_of(SearchOptions, options | {"simulation": simulated})
        check_out_folder(search_options.out)
        result = PhotonLimits(search_photons(search_options, Context(bars=bars, workers=workers)))
        write_limits(result, search_options.out)
        write_photon_page(result, search_options.out)
    return result


def _analysis_options(
    run: Fitted | Place, data: Place | Sequence[Place], out: Place, exposure: str | float | None
) -> dict[str, Any]:
    """Return the options that both analyses of measured events have."""
    return {
        "run": run.folder if isinstance(run, Fitted) else Path(run).expanduser(),
        "data": _paths(data),
        "out": Path(out).expanduser(),
        "exposure": None if exposure is None else str(exposure),
    }


def _paths(places: Place | Sequence[Place]) -> list[Path]:
    each = [places] if isinstance(places, str | os.PathLike) else places
    return [Path(one).expanduser() for one in each]


def _class_numbers(values: np.ndarray, classes: tuple[Any, ...]) -> np.ndarray:
    """Return the position of each label (N,) among the classes, or refuse one that is none."""
    from showerstack.stacking.tables.columns import as_text
    from showerstack.stacking.tables.data import class_positions

    names = tuple(as_text(column_of(list(classes), "class")).to_list())
    texts = (as_text(column_of([value], "class")).item() for value in values.tolist())
    numbers = class_positions(pl.Series(texts, dtype=pl.String), names)
    if (numbers < 0).any():
        row = int(np.flatnonzero(numbers < 0)[0])
        raise InputError(
            f"{int((numbers < 0).sum())} true classes are none of the run's, the first in row {row} "
            f"({values[row]!r}): classes are {', '.join(map(repr, classes[:10]))}; leave such rows out"
        )
    return numbers


def _comparable(labels: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers that are equal where two columns of labels (N,) are, as text; whole numbers of any size."""
    from showerstack.stacking.tables.columns import as_text

    columns = column_of(labels, "true classes"), column_of(predicted, "predictions")
    kinds = {"numbers" if column.dtype.is_numeric() else str(column.dtype) for column in columns}
    if len(kinds) > 1:
        raise InputError(
            f"predictions are {predicted.dtype}, true classes {labels.dtype}: give both as words or numbers"
        )
    numbers = pl.concat([as_text(column).alias("class") for column in columns]).rank("dense").to_numpy()
    return numbers[: len(labels)], numbers[len(labels) :]


def _complete(values: Any, name: str) -> np.ndarray:
    """Return values of any library as an array, or refuse those that are missing or masked."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{name} have shape {array.shape}, expected one for each event, (N,)")
    missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else array != array
    if array.dtype.kind == "O":
        missing = np.array([value is None or value != value for value in array.ravel().tolist()], dtype=bool)
    if missing.any():
        raise InputError(f"{name}: row {int(missing.ravel().argmax())} is missing ({int(missing.sum())} of them)")
    return array


def _checked_groups(groups: Any, n_events: int) -> np.ndarray:
    complete = _complete(groups, "groups")
    if complete.shape != (n_events,):
        raise InputError(f"groups have shape {complete.shape}, expected ({n_events},)")
    return complete


def _scored(task: Task, metrics: dict[str, Any]) -> Scored:
    from showerstack.scoring.tasks import scoring_of

    scoring = scoring_of(task)
    remark(LOG, metrics["warnings"])
    value, interval = scoring.headline(metrics)
    low, high = (interval.low, interval.high) if interval else (float("nan"), float("nan"))
    return Scored(scoring.metric.name, value, low, high, int(metrics["n_events"]), metrics)
