"""Command line of showerstack: ``python cli.py --help``.

The commands are in ``commands/``. Each imports the packages it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from showers.execution.dependencies import libraries

with libraries():
    from commands.every import analysis, data, main, measured, pretraining, results, runs, sharing

__all__ = ["analysis", "data", "main", "measured", "pretraining", "results", "runs", "sharing"]

if __name__ == "__main__":
    main()
