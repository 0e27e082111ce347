"""The rules of a protocol where a score is to stand beside published ones: what may be scored, and the log of attempts.

Scores are by definition the same in all protocols. The 2026 protocol counts attempts and takes the most probable class
only: rules that shift the decision between classes, tuned on balanced simulations, distort real data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.scoring.belonging import check_predictions
from showerstack.scoring.score import score_file
from showerstack.scoring.tasks.published import origin_of
from showerstack.scoring.tasks.truth import labelled_folder
from showerstack.showers.schema import COMPOSITION, GAMMA, Task

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


def score_by_protocol(
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
    """Score a predictions file by the rules of its test set's protocol.

    Parameters
    ----------
    predictions, data, task, intervals, published_order, write
        As for :func:`showerstack.scoring.score.score_file`.
    protocol
        ``v2``, ``matched`` or ``2026``: the test set must be of it; None takes what it is.
    log
        Table of attempts to append to, in the form of the public repository's ``results.tsv``.
    description
        What was tried; needed with ``log``.

    Raises
    ------
    InputError
        For anything that cannot be scored, a test set of another protocol, or a log that cannot take the attempt.
    """
    if log is None and description is not None:
        raise InputError("--description has no effect without --log: leave it out")
    if log is not None:
        if task.name not in HEADS or protocol != "2026":
            raise InputError("--log is the 2026 protocol's list of attempts: add --protocol 2026")
        if not (description or "").strip():
            raise InputError("--log needs --description: what was tried, in a few words")
        next_attempt(log, task)
    folder = labelled_folder(data, task)
    origin = origin_of(folder, task)
    if protocol not in (None, origin.base):
        raise InputError(f"{folder} is a test set of {origin.protocol}, not of protocol {protocol}")
    metrics = score_file(
        predictions, data, task, intervals=intervals, check=check_predictions, published_order=published_order,
        write=write, raw=origin.takes_raw_labels(task),
    )  # fmt: skip
    if log is not None:
        log_attempt(log, metrics, predictions, str(description), task)
    return metrics


def next_attempt(log: Path, task: Task = COMPOSITION) -> int:
    """Return the number of the next attempt.

    Raises
    ------
    InputError
        If the file is no such table, or all attempts are used.
    """
    lines, head = _lines(log, task), HEADS[task.name]
    if lines[0] != head:
        raise InputError(
            f"{log} is no list of attempts at {task.name}: its first line should be {head.replace(chr(9), ' ')!r}"
        )
    used = sum(not line.startswith("0\t") for line in lines[1:])
    if used >= MAX_ATTEMPTS:
        raise InputError(f"{log} holds {used} attempts, all that the 2026 protocol allows")
    return used + 1


def log_attempt(
    log: Path, metrics: dict[str, Any], predictions: Path, description: str, task: Task = COMPOSITION
) -> None:
    """Append one attempt; a new table begins with the published baseline."""
    if task == GAMMA:
        scores = [f"{metrics['survival_rates']['75%']['hadron_survival']:.1e}"]
    else:
        scores = [f"{metrics[name]:.4f}" for name in ("mean_fraction_error", "accuracy")]
    values = (str(next_attempt(log, task)), *scores, str(predictions), description)
    row = "\t".join(" ".join(value.split()) for value in values)
    with atomic_path(log) as temporary:
        temporary.write_text("\n".join([*_lines(log, task), row, ""]), encoding="utf-8")


def _lines(log: Path, task: Task) -> list[str]:
    first = [HEADS[task.name], BASELINES[task.name]]
    if not log.exists():
        return first
    try:
        return [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()] or first
    except UnicodeDecodeError:
        raise InputError(f"{log} is no list of attempts: it is not text") from None
