"""NumPy in the place of CuPy: counts what a GPU would be given to do, and refuses what would wait for it.

Each operation on a :class:`DeviceArray` is a launch, but for views. The host must not look into one: a ``bool()``, a
``float()``, a mask as an index or a number of elements that depends on values stops until the GPU has done everything
before.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any, ClassVar

import array_api_compat.numpy
import numpy as np

VIEWS = {"reshape", "permute_dims", "expand_dims", "squeeze", "broadcast_to", "empty", "asarray"}
"""What starts nothing: other shapes of the same memory, new memory, a copy from the host."""
WAITING = {"clip", "flatnonzero", "nonzero", "argwhere", "unique_values", "unique_all", "repeat", "any", "all"}
"""What looks at values to know a shape; CuPy's ``clip`` through array-api-compat sets elements by a mask."""


class WaitsForTheGpu(AssertionError):
    """The host would stand still until the GPU has done what it was given."""


class DeviceArray(np.ndarray):
    """An array as if in a GPU's memory."""

    launches: ClassVar[Counter[str]] = Counter()
    """Operations since the counter was cleared."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        """Count an operation."""
        self.launches[ufunc.__name__] += 1
        return on_device(getattr(ufunc, method)(*on_host(inputs), **on_host(more)))

    def __array_function__(self, function: Any, types: Any, arguments: Any, more: Any) -> Any:
        """Refuse what reaches NumPy and not the namespace: CuPy's arrays would not take it."""
        raise AssertionError(f"{function.__name__} of NumPy on an array of the GPU")

    def __getitem__(self, key: Any) -> Any:
        """Return a view, or gather elements in a launch."""
        keys = key if isinstance(key, tuple) else (key,)
        arrays = [one for one in keys if isinstance(one, np.ndarray | list)]
        if any(np.asarray(on_host(one)).dtype == bool for one in arrays):
            raise WaitsForTheGpu("a mask as an index")
        self.launches["take"] += bool(arrays)
        return on_device(on_host(self)[on_host(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set elements in a launch."""
        self.launches["set"] += 1
        on_host(self)[on_host(key)] = on_host(value)

    def _look(self, *arguments: Any) -> Any:
        raise WaitsForTheGpu("the host looks at a value")

    __bool__ = __int__ = __float__ = __index__ = __iter__ = tolist = item = _look  # type: ignore[assignment]

    def get(self) -> np.ndarray:
        """Return the array on the host: the one wait that has to be, at the end."""
        self.launches["get"] += 1
        return np.array(on_host(self))


def on_device(value: Any) -> Any:
    """Return arrays as if on a GPU."""
    if isinstance(value, tuple):
        return tuple(on_device(one) for one in value)
    return np.asarray(value).view(DeviceArray) if isinstance(value, np.ndarray | np.generic) else value


def on_host(value: Any) -> Any:
    """Return arrays, in lists too, as NumPy's."""
    if isinstance(value, tuple | list):
        return type(value)(on_host(one) for one in value)
    if isinstance(value, dict):
        return {name: on_host(one) for name, one in value.items()}
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


class DeviceNamespace(ModuleType):
    """The namespace whose arrays are :class:`DeviceArray`."""

    def __getattr__(self, name: str) -> Any:
        """Return a function of NumPy that counts its calls."""
        function = getattr(array_api_compat.numpy, name)
        if not callable(function) or isinstance(function, type):
            return function

        def counted(*arguments: Any, **more: Any) -> Any:
            if name in WAITING:
                raise WaitsForTheGpu(name)
            free = name in VIEWS or (name == "ascontiguousarray" and arguments[0].flags.c_contiguous)
            DeviceArray.launches[name] += not free
            return on_device(function(*on_host(arguments), **on_host(more)))

        return counted
