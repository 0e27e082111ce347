"""Command line of showerstack: ``python cli.py --help``.

The commands are in ``commands/``. Each imports the packages it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

from showerstack.__main__ import main

if __name__ == "__main__":
    main()
