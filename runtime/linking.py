"""Machine code in object files, and how it is linked and called: by llvmlite, without Numba."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

FREEING = "NRT_MemInfo_call_dtor"
"""What a function of Numba calls when nobody owns an array any longer."""
EXACT = ("sqrt", "sqrtf", "fma", "fmaf")
"""Functions of the C library that round exactly: whichever library has them, results are the same to the bit."""
_NOT_OF_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")
"""Settings of Numba that do not change the machine code."""


class Unlinkable(Exception):
    """Machine code that cannot be called without Numba on this machine, and why."""


@dataclass(frozen=True)
class MachineCode:
    """What the compiler made of a function for arguments of some types."""

    symbol: str
    """Name of the function in the object file."""
    outside: tuple[str, ...]
    """Names of functions that it calls in other libraries."""
    code: bytes
    """The object file."""

    def to_bytes(self, sources: str) -> bytes:
        """Return the file: one line of JSON, and the object file."""
        head = {"sources": sources, "symbol": self.symbol, "outside": self.outside, "sha256": self._sha256}
        return json.dumps(head).encode() + b"\n" + self.code

    @property
    def _sha256(self) -> str:
        """Of all that is linked by."""
        named = json.dumps([self.symbol, *self.outside]).encode()
        return hashlib.sha256(named + self.code).hexdigest()

    @classmethod
    def from_bytes(cls, content: bytes, sources: str) -> MachineCode | None:
        """Return what :meth:`to_bytes` wrote; None where it was made of other sources.

        A :class:`ValueError` says that the file is damaged: the linker would end the process.
        """
        head, _, code = content.partition(b"\n")
        try:
            stated = json.loads(head)
            made_of, sha256 = stated["sources"], stated["sha256"]
            found = cls(str(stated["symbol"]), tuple(map(str, stated["outside"])), code)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("it is cut or damaged") from error
        if made_of != sources:
            return None
        if found._sha256 != sha256:
            raise ValueError("it is cut or damaged")
        return found


def type_of(argument: Any) -> Any:
    """Return what the machine code depends on of an argument: an array's kind, or the types of a tuple's parts."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return argument.dtype, argument.ndim, order, flags.aligned, flags.writeable
    if isinstance(argument, tuple):
        return type(argument), tuple(map(type_of, argument))
    return type(argument)


def described(kind: Any) -> str:
    """Return a type of :func:`type_of` as text, the same in every process."""
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(kind, tuple):
        return f"({', '.join(map(described, kind))})"
    return repr(kind)


def _pass(argument: Any, values: list[Any]) -> None:
    """Add an argument as Numba's functions take it: an array is owner, parent, sizes, address, shape and strides."""
    if isinstance(argument, np.ndarray):
        place = argument.ctypes.data
        values += (None, None, argument.size, argument.itemsize, place, *argument.shape, *argument.strides)
    elif isinstance(argument, tuple):
        for one in argument:
            _pass(one, values)
    else:
        values.append(argument)


def c_types_of(kind: Any) -> list[Any]:
    """Return the C types of what :func:`_pass` adds for an argument of this type.

    Raises
    ------
    Unlinkable
        For a type that kernels are not linked with.
    """
    match kind:
        case np.dtype(), int(ndim), *_:
            return [ctypes.c_void_p] * 2 + [ctypes.c_ssize_t] * 2 + [ctypes.c_void_p] + [ctypes.c_ssize_t] * (2 * ndim)
        case type(), tuple(parts):
            return [c_type for part in parts for c_type in c_types_of(part)]
    if kind in _SCALARS:
        return [_SCALARS[kind]]
    raise Unlinkable(f"an argument is {described(kind)}")


_SCALARS: dict[Any, Any] = {
    bool: ctypes.c_bool,
    int: ctypes.c_int64,
    float: ctypes.c_double,
    np.float32: ctypes.c_float,
    np.float64: ctypes.c_double,
}


@cache
def _target() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    # From its first engine on LLVM knows the functions of this process; the first code linked may call one.
    llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine(jit=True))
    return target


@cache
def processor() -> str:
    """Return what machine code is made for: the processor with its instructions, and Numba's settings."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_")}
    kept = sorted((name, value) for name, value in settings.items() if name not in _NOT_OF_CODE)
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {kept}"


def _is_known(name: str) -> bool:
    """Return whether the linker finds a function; an exact one it is told, since it looks into no library itself."""
    if not llvm.address_of_symbol(name) and name in EXACT and hasattr(ctypes.CDLL(None), name):
        llvm.add_symbol(name, ctypes.cast(ctypes.CDLL(None)[name], ctypes.c_void_p).value)
    return bool(llvm.address_of_symbol(name))


def link(machine_code: MachineCode, kinds: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], None]:
    """Return what calls machine code with arguments of these types; Python's lock is not held meanwhile.

    Raises
    ------
    Unlinkable
        If the code calls what no library of this process has, or llvmlite refuses it.
    """
    c_types = [c_type for kind in kinds for c_type in c_types_of(kind)]
    try:
        _target()
        if FREEING in machine_code.outside and not llvm.address_of_symbol(FREEING):
            # Never called, since arrays come without an owner; Numba, when it is imported, brings its own.
            llvm.add_symbol(FREEING, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
        missing = [name for name in machine_code.outside if not _is_known(name)]
        if missing:  # the linker would end the process
            raise Unlinkable(f"no library of this process has {missing[0]}")
        machine = _target().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(machine_code.code))
        engine.finalize_object()
        place = engine.get_function_address(machine_code.symbol)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise Unlinkable(f"llvmlite: {error}") from error
    if not place:
        raise Unlinkable(f"no function {machine_code.symbol} in the object file")
    # Results are None here: where one would be, and where an error would be described.
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *c_types)(place)

    def call(arguments: tuple[Any, ...], engine: Any = engine) -> None:
        result, error = ctypes.c_void_p(), ctypes.c_void_p()
        values: list[Any] = [ctypes.byref(result), ctypes.byref(error)]
        for argument in arguments:
            _pass(argument, values)
        status = function(*values)
        if status > 0:
            raise RuntimeError(f"{machine_code.symbol} ended with status {status}")

    return call
