"""From a predictions file to its metrics: what is read, whether it belongs to the test set, and the protocol's rules.

Predictions are refused wherever they could silently be misread. Equal lengths prove little about what belongs together;
fingerprints do. Scores are by definition the same in all protocols. The 2026 protocol counts attempts and takes the
most probable class only: rules that shift the decision between classes, tuned on balanced simulations, distort real
data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from showerstack.runtime.arrays import Header, array_names, read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE, Checksums
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, read_json, with_checksum, write_json
from showerstack.scoring.tasks import scoring_of
from showerstack.scoring.tasks.truth import DataOrigin, Truth, labelled_folder, origin_of, read_truth
from showerstack.showers.schema import (
    COMPOSITION,
    FIRST_LOOK,
    GAMMA,
    MANIFEST_FILE,
    MATRICES_FILE,
    ORDER_FILE,
    PREDICTIONS_FILE,
    TASKS,
    Task,
)

ORIGIN_KEYS = ("config_hash", "test_fingerprint")
"""Arrays beside what is scored: hashes of the run and of the events that the predictions come from."""
MAX_HASH_BYTES = 4096
"""Length of the longest hash that is read."""
SHOWN_DIGITS = 12
"""Digits of a hash in messages."""
COUNTED_PROTOCOL = "2026"
"""Protocol that counts attempts."""
MAX_ATTEMPTS = 50
"""Scored attempts that the 2026 protocol allows."""
HEADS = {
    COMPOSITION.name: "attempt\tfrac_error\taccuracy\tpredictions\tdescription",
    GAMMA.name: "attempt\tsurvival_75\tpredictions\tdescription",
}
BASELINES = {
    COMPOSITION.name: "0\t0.1073\t0.504\tbaseline/predictions.npz\t"
    "LeNet baseline (published, Kuznetsov et al. JINST 2024)",
    GAMMA.name: "0\t1.0e-02\tbaseline/predictions.npz\trandom forest baseline (published)",
}
"""First lines of the public repository's results.tsv, by task."""


@dataclass(frozen=True)
class Origin:
    """Where a predictions file comes from; None where it does not hold that."""

    config_hash: str | None
    """Hash of the configuration, seeds and data of the run that made it."""
    test_fingerprint: str | None
    """That of the events it was made for; see :meth:`showerstack.showers.dataset.Dataset.fingerprint`."""


def task_of(file: Path) -> Task:
    """Return the first task whose array a predictions file holds; composition, as in the benchmark, for none."""
    names = array_names(file)
    return next((task for task in TASKS.values() if task.output_array in names), COMPOSITION)


def read_output(file: Path, task: Task, n_events: int) -> tuple[np.ndarray, Origin]:
    """Read what a task scores from a ``predictions.npz``: (N,) int64 hard labels or float scores, and their origin."""
    file, scored = Path(file), task.output_array
    where = f"{file}, {scored}"

    def check(name: str, header: Header) -> None:
        if name != scored:
            if header.shape or header.dtype.kind not in "US" or header.dtype.itemsize > MAX_HASH_BYTES:
                raise InputError(f"{file}, {name} has shape {header.shape} and type {header.dtype}, expected a word")
        elif len(header.shape) != 1:
            raise InputError(f"{where} has shape {header.shape}, expected ({n_events},): one value an event")
        elif header.shape[0] != n_events:
            raise InputError(f"{where} has {header.shape[0]} events, but the test set has {n_events}")

    arrays = read_arrays(file, scored, *ORIGIN_KEYS, check=check)
    if scored not in arrays:
        raise InputError(f"{file} holds no array {scored!r}: task {task.name} needs it")
    origin = Origin(*(str(arrays[name]) if name in arrays else None for name in ORIGIN_KEYS))
    return scoring_of(task).check_output(arrays[scored], where), origin


def read_raw_labels(file: Path, task: Task, decided: np.ndarray) -> np.ndarray:
    """Return the most probable class (N,) by the posteriors of a predictions file; ``decided`` where it has none."""
    log_proba = read_arrays(Path(file), task.output_array, "log_proba").get("log_proba")
    if log_proba is None:
        return decided
    where = f"{file}, log_proba"
    if log_proba.shape != (len(decided), task.n_classes) or log_proba.dtype.kind != "f":
        raise InputError(f"{where} has shape {log_proba.shape}, expected ({len(decided)}, {task.n_classes}) numbers")
    if np.isnan(log_proba).any():
        raise InputError(f"{where}: {int(np.isnan(log_proba).any(axis=1).sum())} events have no number")
    return log_proba.argmax(axis=1).astype(np.int64)


def check_predictions(file: Path, origin: Origin, folder: Path) -> list[str]:
    """Refuse a predictions file that was made for other events than a test set's, or that replaces another run's file.

    Where a run's manifest lies beside ``predictions.npz``, the file must be that run's. Remarks about what could not be
    checked are returned.
    """
    manifest = file.parent / MANIFEST_FILE
    if (origin.config_hash or "").startswith(FIRST_LOOK):
        remarks = [f"{file.name} is a first look: pretrained weights without training at this array"]
        return remarks + check_events(str(file), str(origin.test_fingerprint), folder)
    if file.name == PREDICTIONS_FILE and manifest.is_file():
        stated = read_json(manifest)
        check_run(file, origin, Origin(stated.get("config_hash"), (stated.get("data") or {}).get("test_fingerprint")))
        if (file.parent / CHECKSUMS_FILE).is_file():
            Checksums.open(file.parent).path(PREDICTIONS_FILE)
    if origin.test_fingerprint is None:
        remarks = [f"{file.name} does not say for which events it was made: only their number could be checked"]
        if (folder / ORDER_FILE).is_file():
            remarks.append(
                f"rows of {folder.name} were shuffled on conversion: if these are not, give --published-order"
            )
        return remarks
    return check_events(str(file), origin.test_fingerprint, folder)


def check_run(file: Path, origin: Origin, of_run: Origin) -> None:
    """Refuse predictions in a run folder that are not those of its manifest."""
    if origin != of_run:
        what = "configuration" if origin.config_hash != of_run.config_hash else "test events"
        raise InputError(
            f"{file} is not what {MANIFEST_FILE} beside it describes (another {what}): restore the run's own file, "
            "or make a new one outside the run folder with python cli.py predict"
        )


def check_events(what: str, fingerprint: str, folder: Path) -> list[str]:
    """Refuse a test set that is not the one predictions were made for; return a remark where that is not known."""
    of_folder = events_fingerprint(folder)
    if of_folder is None:
        return [f"{folder.name} holds no {MATRICES_FILE}: whether the predictions are of its events was not checked"]
    if of_folder != fingerprint:
        shown = f"{fingerprint[:SHOWN_DIGITS]} and {of_folder[:SHOWN_DIGITS]}"
        raise InputError(
            f"{what} was made for other events than those of {folder} (fingerprints {shown}): give the test set it was "
            "made for, or predict this one with python cli.py predict"
        )
    return []


def events_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of a test set's events, without its labels; None where it holds no grids."""
    if not (folder / MATRICES_FILE).exists():
        return None
    from showerstack.showers.dataset import Dataset  # a set of labels alone is scored without what opens grids

    return Dataset.open(folder, labels=False).fingerprint()


def score_file(
    predictions: Path,
    data: Path,
    task: Task,
    *,
    protocol: str | None = None,
    log: Path | None = None,
    description: str | None = None,
    intervals: bool = True,
    published_order: bool = False,
    write: bool = True,
) -> dict[str, Any]:
    """Score ``predictions`` against the labels of ``data/{task}_test`` by the rules of the test set's protocol.

    Parameters
    ----------
    predictions
        ``predictions.npz``.
    data
        Folder that holds ``{task}_test``.
    task
        One of :data:`showerstack.showers.schema.TASKS`.
    protocol
        ``v2``, ``matched`` or ``2026``: the test set must be of it; None takes what it is. Where it allows raw labels
        alone the most probable class is scored, if the file holds posteriors.
    log
        Table of attempts to append to, in the form of the public repository's ``results.tsv``.
    description
        What was tried; needed with ``log``.
    intervals
        Add confidence intervals (and ``too_few_events`` to bins that cannot carry a number).
    published_order
        The predictions' rows are those of the published files, though the folder's were shuffled on conversion.
    write
        Write ``metrics_{task}.json`` beside the predictions, atomically, after everything succeeded.

    Returns
    -------
    The benchmark's keys; beside them ``n_events``, ``warnings``, the intervals, a ``checksum`` of all of it, and
    ``config_hash`` and ``test_fingerprint`` where the predictions carry them.

    Raises
    ------
    InputError
        For anything that cannot be scored, predictions of other events, a test set of another protocol, a log that
        cannot take the attempt, and for ``published_order`` where the folder's rows were not shuffled; no metrics file
        is then written or changed.
    """
    if log is None and description is not None:
        raise InputError("--description has no effect without --log: leave it out")
    if log is not None:
        if protocol != COUNTED_PROTOCOL:
            raise InputError(f"--log is the 2026 protocol's list of attempts: add --protocol {COUNTED_PROTOCOL}")
        check_attempt(log, description, task)
    scoring_of(task)  # refuses a task of the user's own
    data_origin = _origin_by_protocol(data, task, protocol)
    truth = read_truth(data, task)
    if log is not None and truth.task != task:
        raise InputError(
            f"--log lists attempts at {task.n_classes} classes, but {truth.folder} has {truth.task.n_classes}"
        )
    task = truth.task
    output, origin = read_output(predictions, task, len(truth.labels))
    remarks = check_predictions(Path(predictions), origin, truth.folder)
    if data_origin.takes_raw_labels(task):
        decided, output = output, read_raw_labels(predictions, task, output)
        changed = int(np.count_nonzero(decided != output))
        remarks += [f"{changed:,} decided labels were replaced by the most probable class"] if changed else []
    if published_order:
        if truth.order is None:
            raise InputError(f"{truth.folder} has its rows in the published order already: leave --published-order out")
        output = truth.ours(output)
    metrics = score_arrays(truth, output, task, intervals=intervals)
    metrics["warnings"] += remarks
    metrics |= {key: value for key, value in asdict(origin).items() if value is not None}
    metrics = with_checksum(metrics)
    if write:
        write_json(metrics_path(predictions, task), metrics)
        if (own_path := own_metrics_path(predictions, task)) is not None:
            write_json(own_path, metrics)
    if log is not None:
        log_attempt(log, metrics, predictions, described(str(description), data_origin), task)
    return metrics


def score_attempt(
    predictions: ArrayLike, description: str, *, name: str, data: Path, log: Path
) -> tuple[dict[str, Any], Task]:
    """Score an array by the rules of the 2026 protocol and log the attempt.

    Parameters
    ----------
    predictions
        (N,) class numbers (integers: composition) or gamma scores (floats), in the order of the test set.
    name
        What the log calls the predictions.
    data
        Folder that holds ``{task}_test``.
    log
        Table of attempts, in the form of the public repository's ``results.tsv``.

    Returns
    -------
    The metrics as :func:`score_arrays` returns them, and the task.

    Raises
    ------
    InputError
        As :func:`score_file`; nothing is logged then.
    """
    output = np.asarray(predictions)
    task = GAMMA if output.dtype.kind == "f" else COMPOSITION
    check_attempt(log, description, task)
    data_origin = _origin_by_protocol(data, task, COUNTED_PROTOCOL)
    truth = read_truth(data, task)
    if truth.task != task:
        raise InputError(f"attempts are at {task.n_classes} classes, but {truth.folder} has {truth.task.n_classes}")
    if output.shape != truth.labels.shape:
        raise InputError(f"predictions have shape {output.shape}, expected ({len(truth.labels)},): one value an event")
    metrics = score_arrays(truth, scoring_of(task).check_output(output, "predictions"), task)
    log_attempt(log, metrics, name, described(description, data_origin), task)
    return metrics, task


def key_metric(metrics: Mapping[str, Any], task: Task) -> float:
    """Return what the benchmark ranks by."""
    if task == GAMMA:
        return float(metrics["survival_rates"]["75%"]["hadron_survival"])
    return float(metrics["mean_fraction_error"])


def check_attempt(log: Path, description: str | None, task: Task) -> None:
    """Refuse an attempt that cannot be logged: without a description, beyond the last, or of a task without a log."""
    if task.name not in HEADS:
        raise InputError(f"--log lists attempts at {' and '.join(HEADS)}, not at {task.name}: leave it out")
    if not (description or "").strip():
        raise InputError("--log needs --description: what was tried, in a few words")
    next_attempt(log, task)


def _origin_by_protocol(data: Path, task: Task, protocol: str | None) -> DataOrigin:
    """Return what a test set is; refuse one of another protocol."""
    folder = labelled_folder(data, task)
    data_origin = origin_of(folder, task)
    if protocol not in (None, data_origin.base):
        raise InputError(f"{folder} is a test set of {data_origin.protocol}, not of protocol {protocol}")
    return data_origin


def metrics_path(predictions: Path, task: Task) -> Path:
    """Return where the metrics of a predictions file are written, the last ones of a folder."""
    return Path(predictions).parent / f"metrics_{task.name}.json"


def own_metrics_path(predictions: Path, task: Task) -> Path | None:
    """Return where a file's metrics are kept too, under its name, where other predictions lie beside it; else None."""
    predictions = Path(predictions)
    alone = predictions.stem == "predictions" or len(list(predictions.parent.glob("*.npz"))) < 2
    return None if alone else predictions.parent / f"{predictions.stem}_metrics_{task.name}.json"


def score_arrays(truth: Truth, output: np.ndarray, task: Task, *, intervals: bool = True) -> dict[str, Any]:
    """Return the metrics of the array (N,) that :func:`showerstack.scoring.score.read_output` has checked."""
    scoring = scoring_of(task)
    # The benchmark's draws depend on the order of rows: its own order gives its own value to the last digit.
    output, truth = truth.published(output), truth.in_published_order()
    metrics = scoring.metrics(truth, output, intervals=intervals)
    return metrics | {"n_events": len(truth.labels), "warnings": scoring.warnings(truth, output)}


def next_attempt(log: Path, task: Task = COMPOSITION) -> int:
    """Return the number of the next attempt."""
    lines, head = _read_lines(log, task), HEADS[task.name]
    if lines[0] != head:
        raise InputError(
            f"{log} is no list of attempts at {task.name}: its first line should be {head.replace(chr(9), ' ')!r}"
        )
    n_attempts = sum(not line.startswith("0\t") for line in lines[1:])
    if n_attempts >= MAX_ATTEMPTS:
        raise InputError(f"{log} holds {n_attempts} attempts, all that the 2026 protocol allows")
    return n_attempts + 1


NOT_PUBLIC = "(not the public test set)"
"""Behind the description of attempts that compare with no published one."""


def described(description: str, origin: DataOrigin) -> str:
    """Return the description of an attempt, marked where its test set is not the public one."""
    return description if origin.public else f"{description} {NOT_PUBLIC}"


def log_attempt(
    log: Path, metrics: Mapping[str, Any], predictions: str | Path, description: str, task: Task = COMPOSITION
) -> None:
    """Append one attempt; a new table begins with the published baseline."""
    score = key_metric(metrics, task)
    scores = [f"{score:.1e}"] if task == GAMMA else [f"{score:.4f}", f"{metrics['accuracy']:.4f}"]
    values = (str(next_attempt(log, task)), *scores, str(predictions), description)
    row = "\t".join(" ".join(value.split()) for value in values)
    with atomic_path(log) as temporary:
        temporary.write_text("\n".join([*_read_lines(log, task), row, ""]), encoding="utf-8")


@dataclass(frozen=True)
class AttemptRow:
    """A row of a table of attempts."""

    number: int
    """0 for the published baseline."""
    score: float
    public: bool
    """Whether it is one at the public test set."""


def attempts(log: Path, task: Task) -> list[AttemptRow]:
    """Return the rows of a table of attempts, the published baseline first."""
    rows = []
    for line in _read_lines(log, task)[1:]:
        number, score, *_ = line.split("\t")
        try:
            rows.append(AttemptRow(int(number), float(score), not line.endswith(NOT_PUBLIC)))
        except ValueError:
            raise InputError(f"{log}: row {line!r} does not begin with a number and a score") from None
    return rows


def _read_lines(log: Path, task: Task) -> list[str]:
    """Return the lines of a table of attempts, those of a new one where there is none."""
    new = [HEADS[task.name], BASELINES[task.name]]
    if not log.exists():
        return new
    try:
        return [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()] or new
    except UnicodeDecodeError:
        raise InputError(f"{log} is no list of attempts: it is not text") from None
