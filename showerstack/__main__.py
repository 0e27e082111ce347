"""The command line of an installation: ``showerstack``, or ``python -m showerstack``."""

from __future__ import annotations

from showerstack.runtime.packages import libraries

with libraries():
    from showerstack.commands import data, measured, physics, results, stack, verify
    from showerstack.commands.app import main

__all__ = ["data", "main", "measured", "physics", "results", "stack", "verify"]

if __name__ == "__main__":
    main()
