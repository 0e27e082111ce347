"""From learners to predictions: folds, out-of-fold fits, pool, calibration, gate, finished runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from showerstack.stacking.chain import Predictions
    from showerstack.stacking.run import Run, load

__all__ = ["Predictions", "Run", "load"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: a finished run is answered without the libraries that trained it.
    if name == "Predictions":
        from showerstack.stacking.chain import Predictions

        return Predictions
    if name in __all__:
        from showerstack.stacking import run as read

        return getattr(read, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
