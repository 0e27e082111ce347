"""Why a fit ended: for a reason of its learner, or because the machine had no memory or disk left."""

from __future__ import annotations

import re

from showers.schema import InputError

# Libraries have exceptions of their own for it: torch RuntimeError, LightGBMError, XGBoostError, CatBoostError, polars.
_NO_ROOM = re.compile(
    r"out of memory|bad.?alloc(ation)?|(can.?t|cannot|could not|unable to|failed to) allocate|not enough memory"
    r"|memory allocation|no space left|disk quota exceeded|too many open files|os error (12|23|24|28|122)\b"
    r"|cannot fork|resource temporarily unavailable|can.?t start new thread",
    re.IGNORECASE,
)


def is_of_the_machine(error: BaseException) -> bool:
    """Return whether an error says nothing about the learner: no memory, no space, a file that cannot be had.

    Such a task is tried again at the next start; every other error drops its learner.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError | MemoryError) or _NO_ROOM.search(str(cause)):
            return True
        # What was refused in our own words counts with what it was refused for, not with what was tried before.
        cause = cause.__cause__ or (None if isinstance(cause, InputError) else cause.__context__)
    return False
