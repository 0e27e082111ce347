"""The station model (:mod:`showerstack.features.lateral.station`) compiled by Numba in float32.

Binary logarithm and exponential are polynomials that LLVM can vectorise, instead of library calls. Integer parts are
written in LLVM's own 32-bit integers: Numba widens a difference of int32 to 64 bits, and half of every vector then goes
to shifts. The polynomials are minimax (E. Y. Remez, 1934): the logarithm of 1 + z is accurate to 1.5e-6 of itself, the
exponential to 2.5e-7. Imported only where kernels are compiled (:mod:`showerstack.runtime.kernels`).
"""

from __future__ import annotations

import ast
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from showerstack.features.lateral import station
from showerstack.features.lateral.translate import constants, formulas
from showerstack.runtime.kernels import FAST

f32 = np.float32


def _full_vectors(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite lists the plain attributes only; a set takes any.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


full_vectors: Any = intrinsic(_full_vectors)
"""Lets LLVM use the widest vectors of the processor in a compiled function that calls it.

By default it takes half of 512 bits, because the first processors that had them slowed down. Every function with a
loop needs it, since each is optimised before it is inlined.
"""


_INT, _FLOAT = ir.IntType(32), ir.FloatType()
_LEAST_MANTISSA = 0x3F3504F3
"""Bits of sqrt(1/2): mantissas are taken from there to sqrt(2)."""


def _above_least(builder: Any, x: Any) -> tuple[Any, Any]:
    """Return the bits of x, and how far they are above those of the least mantissa."""
    bits = builder.bitcast(x, _INT)
    return bits, builder.sub(bits, _INT(_LEAST_MANTISSA))


def _make_exponent(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, above = _above_least(builder, arguments[0])
        return builder.sitofp(builder.ashr(above, _INT(23)), _FLOAT)

    return types.float32(types.float32), generate


def _make_mantissa(typing_context: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits, above = _above_least(builder, arguments[0])
        return builder.bitcast(builder.sub(bits, builder.and_(above, _INT(0xFF800000))), _FLOAT)

    return types.float32(types.float32), generate


def _make_times_power(typing_context: Any, x: Any, n: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        exponent = builder.shl(builder.fptosi(arguments[1], _INT), _INT(23))
        return builder.bitcast(builder.add(builder.bitcast(arguments[0], _INT), exponent), _FLOAT)

    return types.float32(types.float32, types.float32), generate


_exponent: Any = intrinsic(_make_exponent)
_mantissa: Any = intrinsic(_make_mantissa)
_times_power: Any = intrinsic(_make_times_power)
"""x 2^n of a whole n."""


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def vlog2(x: Any) -> Any:
    """Return the binary logarithm of a positive, normal float32."""
    z = _mantissa(x) - f32(1.0)
    p = f32(1.76167257e-1)
    p = p * z + f32(-2.70977519e-1)
    p = p * z + f32(2.95099732e-1)
    p = p * z + f32(-3.59184792e-1)
    p = p * z + f32(4.80648705e-1)
    p = p * z + f32(-7.21367694e-1)
    p = p * z + f32(1.442696307)
    return _exponent(x) + z * p


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def vexp2(x: Any) -> Any:
    """Return 2^x of a float32 below 127; the argument is held above -86.

    The limit keeps products with the result out of the subnormal numbers, which are a hundred times slower.
    """
    x = max(x, f32(-86.0))
    n = np.rint(x)
    r = x - n
    p = f32(1.32764720e-3)
    p = p * r + f32(9.67554133e-3)
    p = p * r + f32(5.55071327e-2)
    p = p * r + f32(2.40221197e-1)
    p = p * r + f32(6.93146967e-1)
    p = p * r + f32(1.000000072)
    return _times_power(p, n)


def _make_float_of_half(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.zext(builder.and_(arguments[0], ir.IntType(16)(0x7FFF)), _INT)
        return builder.fmul(builder.bitcast(builder.shl(wide, _INT(13)), _FLOAT), _FLOAT(2.0**112))

    return types.float32(types.uint16), generate


float_of_half: Any = intrinsic(_make_float_of_half)
"""The float32 of a non-negative finite float16's bits (uint16), exactly; a negative zero gives 0.

Shifting by 13 puts exponent and mantissa where float32 has them; 2^112 corrects the exponent's offset.
"""


class _SinglePrecision(ast.NodeTransformer):
    """Numbers and constants of the detector as float32: Numba would compute in float64 otherwise.

    What is made of constants of the detector alone is computed in float64 and rounded once. A reciprocal of one would
    else become a division again at every station, as LLVM takes x (1/c) for x/c.
    """

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if all(isinstance(part, ast.Constant | ast.Attribute) for part in (node.left, node.right)):
            return _call("f32", node)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return _call("f32", node) if isinstance(node.value, float) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _call("f32", node)


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _positive(x: Any) -> Any:
    return f32(1.0) if x > f32(0.0) else f32(0.0)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _decay(x: Any) -> Any:
    return vexp2(f32(-station.LOG2_E) * x)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def _from_floor(value: Any, x: Any, floor: Any) -> Any:
    return value if x >= floor else f32(0.0)


@lru_cache
def compiled() -> Any:
    """Return the model's functions compiled by Numba, to be inlined into the loops of the CPU kernel."""
    names: dict[str, Any] = {name: f32(value) for name, value in constants().items()}
    names.update(f32=f32, exp2=vexp2, log2=vlog2, sqrt=np.sqrt, maximum=max, minimum=min)
    names.update(positive=_positive, from_floor=_from_floor, decay=_decay)
    for node in formulas():
        for argument in node.args.args:
            argument.annotation = None
        node.returns = None
        body = ast.fix_missing_locations(_SinglePrecision().visit(ast.Module([node], [])))
        exec(compile(body, station.__file__, "exec"), names)
        names[node.name] = njit(fastmath=FAST, error_model="numpy", forceinline=True)(names[node.name])
    return SimpleNamespace(**{node.name: names[node.name] for node in formulas()})
