"""Command line of showerstack: ``python cli.py --help``.

The commands are in ``commands/``. Each imports the packages it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from runtime.packages import libraries

with libraries():
    from commands import data, physics, results, runs
    from commands.app import main

__all__ = ["data", "main", "physics", "results", "runs"]

if __name__ == "__main__":
    main()
