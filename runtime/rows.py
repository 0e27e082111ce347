"""Records of events: dataclasses whose arrays all hold the same events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np


class Rows:
    """Base of dataclasses whose arrays have an entry an event; what is no array belongs to all events together."""

    EVENTS_AXIS: ClassVar[int] = 0
    """The axis of events: the first, or -1 for the last."""

    def take(self, rows: np.ndarray | slice) -> Self:
        """Return the events at these positions, or where a mask (N,) is true."""

        def part(value: Any) -> Any:
            if isinstance(value, Rows):
                return value.take(rows)
            return value[(..., rows) if self.EVENTS_AXIS else rows] if isinstance(value, np.ndarray) else value

        return replace(self, **{name: part(value) for name, value in self._values().items()})  # type: ignore[type-var]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the events of all parts, at least one, in their order; an array that one part lacks none has."""

        def whole(values: Sequence[Any]) -> Any:
            if any(value is None for value in values):
                return None
            if isinstance(values[0], Rows):
                return type(values[0]).joined(values)
            return np.concatenate(values, axis=cls.EVENTS_AXIS) if isinstance(values[0], np.ndarray) else values[0]

        columns = [part._values() for part in parts]
        return cls(**{name: whole([one[name] for one in columns]) for name in columns[0]})

    def _values(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
