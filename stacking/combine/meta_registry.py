"""Every meta-learner under its name: what the modules of :mod:`stacking.combine.metas` hold, the simplest first."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

from stacking.combine import metas
from stacking.combine.meta import MetaLearner


def _found() -> dict[str, type[MetaLearner]]:
    """Return the meta-learners by name, the simplest first; names must differ."""
    found: dict[str, type[MetaLearner]] = {}
    for entry in pkgutil.iter_modules(metas.__path__, f"{metas.__name__}."):
        module = importlib.import_module(entry.name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if not issubclass(kind, MetaLearner) or kind.__module__ != module.__name__:
                continue  # what a module imports is no second meta-learner
            if kind.name in found:
                raise ValueError(f"{module.__name__} holds meta-learner {kind.name!r}, which exists already")
            found[kind.name] = kind
    return dict(sorted(found.items(), key=lambda item: item[1].complexity))


META_LEARNERS: dict[str, type[MetaLearner]] = _found()
"""All meta-learners by name."""


def metas_of(preset: str) -> tuple[str, ...]:
    """Return the names of the meta-learners that a preset chooses from."""
    return tuple(name for name, kind in META_LEARNERS.items() if preset in kind.presets)


def meta_to_json(meta: MetaLearner) -> dict[str, Any]:
    """Return a meta-learner with its name and learners as JSON content."""
    return {"meta": meta.name, "learners": list(meta.learners), "learned": meta.as_json()}


def meta_from_json(content: Mapping[str, Any]) -> MetaLearner:
    """Read what :func:`meta_to_json` returned."""
    meta = META_LEARNERS[content["meta"]](tuple(content["learners"]))
    meta.restore(content["learned"])
    return meta
