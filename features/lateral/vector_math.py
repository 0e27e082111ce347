"""ln and exp in float32 that LLVM can vectorise: straight-line polynomials instead of library calls.

Both are accurate to about 1e-7 (relative for exp, absolute in units of max(1, |ln x|) for ln). Method: S. L. Moshier,
Methods and Programs for Mathematical Functions (1989).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

f32, i32 = np.float32, np.int32

FAST: set[str] = {"reassoc", "contract", "nsz"}
"""Sums may be reordered (that is what vectorising them means); infinities and NaN keep their meaning."""


def _reinterpret(source: Any, target: Any, llvm_type: Any) -> Any:
    @intrinsic
    def reinterpret(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm_type)

        return target(source), generate

    return reinterpret


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


_bits_of = _reinterpret(types.float32, types.int32, ir.IntType(32))
_float_of = _reinterpret(types.int32, types.float32, ir.FloatType())


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def vln(x: Any) -> Any:
    """Return ln x of a positive, normal float32."""
    bits = _bits_of(x)
    exponent = (bits - i32(0x3F3504F3)) >> i32(23)
    m = _float_of(i32(bits - (exponent << i32(23)))) - f32(1.0)
    p = f32(7.0376836292e-2)
    p = p * m + f32(-1.1514610310e-1)
    p = p * m + f32(1.1676998740e-1)
    p = p * m + f32(-1.2420140846e-1)
    p = p * m + f32(1.4249322787e-1)
    p = p * m + f32(-1.6668057665e-1)
    p = p * m + f32(2.0000714765e-1)
    p = p * m + f32(-2.4999993993e-1)
    p = p * m + f32(3.3333331174e-1)
    return f32(exponent) * f32(0.693147180559945) + (m - f32(0.5) * m * m + m * m * m * p)


@njit(fastmath=FAST, error_model="numpy", forceinline=True)
def vexp(x: Any) -> Any:
    """Return exp x of a float32; the argument is held within -60..80.

    The limits keep products with the result out of the subnormal numbers, which are a hundred times slower.
    """
    x = min(max(x, f32(-60.0)), f32(80.0))
    n = np.floor(x * f32(1.4426950408889634) + f32(0.5))
    r = x - n * f32(0.693359375)
    r = r + n * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    return (p * r * r + r + f32(1.0)) * _float_of(i32((i32(n) + i32(127)) << i32(23)))
