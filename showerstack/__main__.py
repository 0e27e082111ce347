"""The command line of an installation: ``showerstack``, or ``python -m showerstack``."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command that the arguments name."""
    # A console script and -m put the folder they start from first on the search path: the user's modules are not ours.
    here = {str(Path(sys.argv[0]).resolve().parent), str(Path.cwd()), ""}
    root = str(Path(__file__).resolve().parent.parent)
    sys.path[:] = [place for place in sys.path if place not in here or place == root]
    import showerstack  # noqa: F401
    from cli import main as run

    run()


if __name__ == "__main__":
    main()
