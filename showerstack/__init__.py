"""Mass composition, gamma/hadron scores and energies of air showers: train, predict and score from Python.

    import showerstack

    run = showerstack.fit("data", task="gamma", run="runs/gamma", preset="quick")
    predicted = showerstack.predict(run, "data/gamma_test")
    print(showerstack.score(predicted, "data"))

The same as estimators of scikit-learn: :class:`ShowerClassifier`, :class:`StackClassifier`, :class:`EnergyRegressor`.
Any table works too, given by path or as arrays: ``fit("wine.csv", label="quality", run="runs/wine")``,
``fit(x, y, run="runs/mine")``. The command line is ``showerstack --help``.

All packages are inside of this one (``showerstack.showers``, ``showerstack.features``, ...). In a checkout their
folders stand at the top level, and this folder has a link to each.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if not Path(__file__).with_name("runtime").is_dir():
    # Git writes links as text files where it may not make them, and some programs that unpack archives drop them.
    raise ImportError(
        f"{Path(__file__).parent} lacks its links to the folders of this checkout: make them (git -c "
        "core.symlinks=true checkout -- showerstack; Windows: in developer mode), or unpack with what keeps links",
        name="showerstack",
    )

if TYPE_CHECKING:
    from showerstack.api import (
        Fitted,
        Predicted,
        Scored,
        display,
        feature_table,
        first_look,
        fit,
        fitted,
        gamma_limit,
        predict,
        save_predictions,
        score,
        spectra,
    )
    from showerstack.runtime.errors import InputError

_API = (
    "Fitted", "Predicted", "Scored", "display", "feature_table", "first_look", "fit", "fitted", "gamma_limit",
    "predict", "save_predictions", "score", "spectra",
)  # fmt: skip
_ESTIMATORS = ("EnergyRegressor", "ShowerClassifier", "StackClassifier")


def __getattr__(name: str) -> Any:
    # Imported when asked for: NumPy and scikit-learn take their time, and the command line begins here too.
    if name in _API:
        from showerstack import api

        return getattr(api, name)
    if name in _ESTIMATORS:
        from showerstack.runtime.errors import need

        need("sklearn", what=name)
        from showerstack import estimators

        return getattr(estimators, name)
    if name == "InputError":
        from showerstack.runtime.errors import InputError

        return InputError
    if name == "__version__":
        from importlib.metadata import version

        return version("showerstack")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EnergyRegressor",
    "Fitted",
    "InputError",
    "Predicted",
    "Scored",
    "ShowerClassifier",
    "StackClassifier",
    "display",
    "feature_table",
    "first_look",
    "fit",
    "fitted",
    "gamma_limit",
    "predict",
    "save_predictions",
    "score",
    "spectra",
]
