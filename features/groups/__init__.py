"""Feature groups: one file each, which declares ``GROUPS`` and ``FEATURES`` and computes them.

A file put here is found by itself. ``compute(seen)``, if it has one, takes :class:`features.fitted.FittedEvents` and
returns columns, each (n,) float32.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

ORDER = ("reconstruction", "deposits", "moments", "published", "lateral", "muons", "profile", "asymmetry")
"""Groups in the order of their columns in a table; others follow by name."""


def modules() -> tuple[ModuleType, ...]:
    """Return the modules of all groups."""
    found = sorted(
        (module.name for module in pkgutil.iter_modules(__path__)),
        key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name),
    )
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in found)
