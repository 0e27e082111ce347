"""Command line of showerstack: ``python cli.py --help``.

The commands are in ``commands/``. Each imports the packages it needs when it runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys

try:
    from showerstack.__main__ import main
except ImportError as error:
    if error.name != "showerstack":
        raise
    sys.exit(f"error: {error}")  # a checkout without its links

if __name__ == "__main__":
    main()
