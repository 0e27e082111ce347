"""How fast features are made: ``python benchmarks/features.py --help``; the work is done in ``feature_speed.py``.

Python puts this folder in front of its search path when a script in it runs, so ``import features`` finds this file and
not the package; the path below makes it stand for the package.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[1] / "features")]

if __name__ == "__main__":
    from feature_speed import main

    main()
