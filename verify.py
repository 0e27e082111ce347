"""Score predictions against the test labels, as the public benchmark does, with intervals.

    python verify.py predictions.npz
    python verify.py --data data runs/gamma/predictions.npz

    python verify.py --protocol 2026 --log results.tsv --description "stack, seed 1" predictions.npz

Composition needs the array ``predictions`` (integers 0..4), gamma ``gamma_scores`` (numbers, higher = more gamma-like);
--task chooses where a file holds both (default: composition).
Predictions that say for which events they were made are scored on those alone. Writes metrics_{task}.json beside the
predictions. The rules are those of the test set's protocol: 2026 scores the most probable class. --protocol insists on
one.
Exit code 2 and one line on input that cannot be scored.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from showerstack.runtime.packages import libraries

with libraries():
    from showerstack.report.public.rules import score_by_protocol
    from showerstack.runtime.errors import reporting_errors
    from showerstack.scoring.score import metrics_path, task_of
    from showerstack.showers.protocols import PROTOCOLS
    from showerstack.showers.schema import TASKS, task_named


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=_path, metavar="PREDICTIONS", help="predictions.npz")
    parser.add_argument("--task", choices=list(TASKS), help="default: the one whose array the file holds")
    parser.add_argument(
        "--data", type=_path, default=Path("data"), help="test set, or folder with {task}_test (default: data)"
    )
    parser.add_argument("--protocol", choices=PROTOCOLS, help="the test set must be of it")
    parser.add_argument("--log", type=_path, metavar="results.tsv", help="append to this list of attempts (2026)")
    parser.add_argument("--description", help="with --log: what was tried")
    parser.add_argument(
        "--published-order",
        action="store_true",
        help="rows are those of the published files, though convert shuffled the folder's",
    )
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="print nothing; only write the metrics file")
    parser.add_argument("--no-intervals", action="store_true", help="leave the confidence intervals out")
    return parser.parse_args()


def main() -> int:
    """Parse, score, print; return the exit code."""
    arguments = _arguments()
    try:
        with reporting_errors(lambda: "interrupted: nothing was written"):
            _score(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _score(arguments: argparse.Namespace) -> None:
    task = task_named(arguments.task) if arguments.task else task_of(arguments.predictions)
    metrics = score_by_protocol(
        arguments.predictions,
        arguments.data,
        task,
        protocol=arguments.protocol,
        log=arguments.log,
        description=arguments.description,
        intervals=not arguments.no_intervals,
        published_order=arguments.published_order,
    )
    if arguments.quiet:
        return
    if arguments.json:
        print(json.dumps(metrics, indent=2, allow_nan=False))
        return
    from showerstack.report.tasks.target import summarise
    from showerstack.runtime.context import PlainConsole

    console = PlainConsole()
    for part in summarise(metrics, task):
        console.print(part)
    console.print(f"written: {metrics_path(arguments.predictions, task)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
