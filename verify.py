"""Score predictions against the test labels, as the public benchmark does, with intervals.

    python verify.py predictions.npz
    python verify.py --data data runs/gamma/predictions.npz

Composition needs the array ``predictions`` (integers 0..4), gamma ``gamma_scores`` (numbers, higher = more gamma-like);
--task chooses where a file holds both (default: composition).
Predictions that say for which events they were made are scored on those alone. Writes metrics_{task}.json beside the
predictions. Exit code 2 and one line on input that cannot be scored.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from report.belonging import check_predictions
from scoring.read import task_of
from scoring.score import metrics_path, score_file
from showers.execution.failures import told
from showers.schema import TASKS, task_named


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=_path, metavar="PREDICTIONS", help="predictions.npz")
    parser.add_argument("--task", choices=list(TASKS), help="default: the one whose array the file holds")
    parser.add_argument("--data", type=_path, default=Path("data"), help="folder with {task}_test (default: data)")
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="print nothing; only write the metrics file")
    parser.add_argument("--no-intervals", action="store_true", help="leave the 95 %% intervals out")
    return parser.parse_args()


def main() -> int:
    """Parse, score, print; return the exit code."""
    arguments = _arguments()
    try:
        with told(lambda: "interrupted: nothing was written"):
            _score(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _score(arguments: argparse.Namespace) -> None:
    task = task_named(arguments.task) if arguments.task else task_of(arguments.predictions)
    metrics = score_file(
        arguments.predictions,
        arguments.data,
        task,
        intervals=not arguments.no_intervals,
        check=check_predictions,
    )
    if arguments.quiet:
        return
    if arguments.json:
        print(json.dumps(metrics, indent=2, allow_nan=False))
        return
    from report.metrics import summarise
    from showers.execution.terminal import PlainConsole

    console = PlainConsole()
    for part in summarise(metrics, task):
        console.print(part)
    console.print(f"written: {metrics_path(arguments.predictions, task)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
