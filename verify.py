"""Score predictions against the test labels, as the public benchmark does, with intervals.

    python verify.py predictions.npz
    python verify.py --data data runs/gamma/predictions.npz
    python verify.py predictions.npz "stack, seed 1"

The last form is that of the public benchmark's newest scripts, as is ``from verify import evaluate``: an attempt of the
2026 protocol, one of 50 in results.tsv; --protocol 2026 --log FILE --description TEXT is the same with another file.
It is the command ``python cli.py verify``. Composition needs the array ``predictions`` (integers 0..4), gamma
``gamma_scores`` (numbers, higher = more gamma-like). Writes metrics_{task}.json beside the predictions. Exit code 2 and
one line on input that cannot be scored.
"""

from __future__ import annotations

import sys

try:
    from showerstack.runtime.packages import libraries
except ImportError as error:
    if error.name != "showerstack":
        raise
    sys.exit(f"error: {error}")  # a checkout without its links

with libraries():
    from showerstack.commands import verify
    from showerstack.commands.app import main as run_command
    from showerstack.commands.verify import evaluate

__all__ = ["evaluate", "main", "verify"]


def main() -> int:
    """Score the file that the arguments name; return the exit code."""
    try:
        run_command(["verify", *sys.argv[1:]])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
