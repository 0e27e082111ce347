"""Mass composition and gamma/hadron separation of air showers: train, predict and score from Python.

    import showerstack

    run = showerstack.fit("data", task="gamma", run="runs/gamma", preset="quick")
    predicted = showerstack.predict(run, "data/gamma_test")
    print(showerstack.score(predicted, "data"))

The same as estimators of scikit-learn: :class:`ShowerClassifier`, :class:`StackClassifier`, :class:`EnergyRegressor`.
Any table works too, given by path or as arrays: ``fit("wine.csv", label="quality", run="runs/wine")``,
``fit(x, y, run="runs/mine")``. The command line is ``showerstack --help``.

The packages behind it (``showers``, ``features``, ``models``, ``stacking``, ``scoring``, ``analysis``, ``report``,
``commands``) import each other by these short names, in a checkout as in an installation. An installation keeps them
inside of this one, so that nothing else is put beside other people's packages, and their folder is added to Python's
search path when ``showerstack`` is imported; through the search path worker processes find them too. A program that has
a module called, for instance, ``models`` of its own is told so at once: the two cannot live in one process.
"""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE / "packages" if (_HERE / "packages").is_dir() else _HERE.parent
_PACKAGES = runpy.run_path(str(_ROOT / "runtime" / "packages.py"))["OWN"]


def _make_importable() -> None:
    for name in _PACKAGES:
        loaded = sys.modules.get(name)
        others = [place for place in sys.path if Path(place or ".").resolve() != _ROOT]
        spec = None if loaded else PathFinder.find_spec(name, others)
        where = getattr(loaded, "__file__", None) if loaded else spec and spec.origin
        if where and Path(where).resolve().parent.parent != _ROOT:
            raise ImportError(
                f"showerstack has a package {name!r}, and so have you ({where}): rename yours, start from another "
                "folder, or use the command showerstack, which runs in a process of its own"
            )
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))


_make_importable()

from showerstack.api import Fitted, Predicted, Scored, fit, predict, score  # noqa: E402

_ESTIMATORS = ("EnergyRegressor", "ShowerClassifier", "StackClassifier")


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:  # imported when asked for: scikit-learn takes a second
        from runtime.errors import need

        need("sklearn", what=name)
        import showerstack.estimators

        return getattr(showerstack.estimators, name)
    if name == "__version__":
        from importlib.metadata import version

        return version("showerstack")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EnergyRegressor",
    "Fitted",
    "Predicted",
    "Scored",
    "ShowerClassifier",
    "StackClassifier",
    "fit",
    "predict",
    "score",
]
