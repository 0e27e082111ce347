"""What the modules of a package declare under one name: how tasks find their parts without a list of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any


def declared(package: ModuleType, attribute: str, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return the object that each module of a package holds as ``attribute``, by its name.

    Raises
    ------
    ValueError
        If two modules declare the same name.
    """
    found: dict[str, Any] = {}
    for entry in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        one = getattr(importlib.import_module(entry.name), attribute)
        if name_of(one) in found:
            raise ValueError(f"{entry.name} declares {name_of(one)!r}, which another module declares already")
        found[name_of(one)] = one
    return found
