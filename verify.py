"""Score predictions against the test labels, as the public benchmark does, with intervals.

    python verify.py predictions.npz
    python verify.py --task gamma --data data runs/gamma/predictions.npz

Composition needs the array ``predictions`` (integers 0..4), gamma ``gamma_scores`` (numbers, higher = more gamma-like).
Predictions that say for which events they were made are scored on those alone. Writes metrics_{task}.json beside the
predictions. Exit code 2 and one line on input that cannot be scored.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from report.belonging import check_predictions
from scoring.score import metrics_path, score_file
from showers.schema import TASKS, InputError, task_named


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="predictions.npz")
    parser.add_argument("--task", default="composition", choices=list(TASKS), help="default: composition")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with {task}_test (default: data)")
    parser.add_argument("--json", action="store_true", help="print the metrics as JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="print nothing; only write the metrics file")
    parser.add_argument("--no-intervals", action="store_true", help="leave the 95 %% intervals out")
    return parser.parse_args()


def main() -> int:
    """Parse, score, print; return the exit code."""
    arguments = _arguments()
    task = task_named(arguments.task)
    try:
        metrics = score_file(
            arguments.predictions,
            arguments.data,
            task,
            intervals=not arguments.no_intervals,
            check=check_predictions,
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.quiet:
        return 0
    if arguments.json:
        print(json.dumps(metrics, indent=2, allow_nan=False))
        return 0
    from rich.console import Console

    from report.metrics import summarise

    console = Console()
    for part in summarise(metrics, task):
        console.print(part)
    console.print(f"written: {metrics_path(arguments.predictions, task)}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
