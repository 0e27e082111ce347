"""Functions compiled by Numba to object files that :mod:`showerstack.runtime.kernels` links without it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import njit, typeof, types
from numba.core import entrypoints
from numba.core.compiler import Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from showerstack.runtime.linking import FREEING, MachineCode, Unlinkable, c_types_of, type_of

_RUNTIME = "NRT_"
"""How the functions of Numba's own memory management begin."""
_C_TYPES: dict[Any, str] = {
    ctypes.c_void_p: "pointer",
    ctypes.c_ssize_t: "i64",
    ctypes.c_int64: "i64",
    ctypes.c_bool: "i8",
    ctypes.c_double: "double",
    ctypes.c_float: "float",
}


@contextmanager
def _without_extensions() -> Iterator[None]:
    """Let Numba compile without the extensions that installed packages declare for it.

    They teach it types that our kernels do not have; importing them (awkward) takes longer than loading a kernel. They
    are still there for others in this process.
    """
    before, entrypoints._already_initialized = entrypoints._already_initialized, True
    try:
        yield
    finally:
        entrypoints._already_initialized = before


def compile_function(function: Callable[..., None], options: dict[str, Any], arguments: tuple[Any, ...]) -> MachineCode:
    """Compile a function without result for the types of these arguments, as :func:`numba.njit` does.

    Without the wrapper through which Python calls Numba's functions, which needs Numba.

    Raises
    ------
    Unlinkable
        If Numba passes the arguments in another way than :func:`showerstack.runtime.linking.link`, or the function
        needs Numba's memory management: arrays that it makes itself.
    numba.core.errors.NumbaError
        If the function cannot be compiled.
    """
    with global_compiler_lock, _without_extensions():
        typing, target = cpu_target.typing_context, cpu_target.target_context
        flags: Any = Flags()
        cpu_target.options.parse_as_flags(flags, {"nopython": True, "boundscheck": False, **options})
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        library = target.codegen().create_library(function.__name__)
        library.enable_object_caching()
        kinds = tuple(map(typeof, arguments))
        made = compile_extra(typing, target, function, kinds, types.none, flags, {}, library=library)
        library._ensure_finalized()
        expected = [_C_TYPES[c_type] for argument in arguments for c_type in c_types_of(type_of(argument))]
        passed = target.call_conv.get_function_type(made.fndesc.restype, made.fndesc.argtypes).args[2:]
        if [_named(one) for one in passed] != expected:
            raise Unlinkable("this version of Numba passes arguments in another way")
        declared = [one.name for one in library._final_module.functions if one.is_declaration]
        outside = tuple(name for name in declared if not name.startswith("llvm."))
        if any(name.startswith(_RUNTIME) and name != FREEING for name in outside):
            raise Unlinkable(f"it makes arrays with Numba's memory management ({', '.join(outside)})")
        return MachineCode(made.fndesc.llvm_func_name, outside, library._get_compiled_object())


def _named(kind: Any) -> str:
    return "pointer" if isinstance(kind, ir.PointerType) else str(kind)


def dispatcher(function: Callable[..., None], options: dict[str, Any]) -> Callable[..., None]:
    """Return the function compiled by Numba in this process, for itself alone."""
    compiled = njit(**{"nogil": True, **options})(function)

    def call(*arguments: Any) -> None:
        with _without_extensions():
            compiled(*arguments)

    return call
