"""The station model (:mod:`features.lateral.station`) on arrays of any library, compiled in float32, and in C.

ln and exp in float32 that LLVM can vectorise: straight-line polynomials instead of library calls.

Both are accurate to about 1e-7 (relative for exp, absolute in units of max(1, |ln x|) for ln). Method: S. L. Moshier,
Methods and Programs for Mathematical Functions (1989).
"""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from features.lateral import elementwise, station

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


PRIMITIVES = ("exp", "log", "sqrt", "maximum", "minimum", "positive", "decay")
_C_PRIMITIVES = {"exp": "expf", "log": "logf", "sqrt": "sqrtf", "maximum": "fmaxf", "minimum": "fminf"}
_C_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def _formulas() -> list[ast.FunctionDef]:
    """Return the model's functions without docstrings, in their order."""
    tree = ast.parse(inspect.getsource(station))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in PRIMITIVES]
    for node in found:
        node.body = [line for line in node.body if not isinstance(line, ast.Expr)]
    return found


def constants() -> dict[str, float]:
    """Return the model's constants."""
    return {name: value for name, value in vars(station).items() if isinstance(value, float)}


@lru_cache
def on_arrays(xp: ModuleType) -> Any:
    """Return the model's functions for arrays of ``xp``, which broadcast."""

    def filled(value: Any, like: Any) -> Any:
        return xp.ones_like(like) * value

    names = dict(vars(station))
    names.update(
        exp=xp.exp,
        log=xp.log,
        sqrt=xp.sqrt,
        maximum=lambda a, b: xp.maximum(a, filled(b, a)),
        minimum=lambda a, b: xp.minimum(a, filled(b, a)),
        positive=lambda x: xp.astype(x > 0.0, x.dtype),
        decay=lambda x: elementwise.decay(x, xp),
    )
    for node in _formulas():
        names[node.name] = FunctionType(getattr(station, node.name).__code__, names)
    return SimpleNamespace(**{node.name: names[node.name] for node in _formulas()})


class _SinglePrecision(ast.NodeTransformer):
    """Numbers and constants of the detector as float32: Numba would compute in float64 otherwise."""

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
    return vexp(-x)


@lru_cache
def compiled() -> Any:
    """Return the model's functions compiled by Numba, to be inlined into the loops of the CPU kernel."""
    names: dict[str, Any] = {name: f32(value) for name, value in constants().items()}
    names.update(f32=f32, exp=vexp, log=vln, sqrt=np.sqrt, maximum=max, minimum=min, positive=_positive, decay=_decay)
    for node in _formulas():
        for argument in node.args.args:
            argument.annotation = None
        node.returns = None
        body = ast.fix_missing_locations(_SinglePrecision().visit(ast.Module([node], [])))
        exec(compile(body, station.__file__, "exec"), names)
        names[node.name] = njit(fastmath=FAST, error_model="numpy", forceinline=True)(names[node.name])
    return SimpleNamespace(**{node.name: names[node.name] for node in _formulas()})


def in_c() -> str:
    """Return constants (namespace ``model``) and functions as C++17 in float; ``res`` is the namespace ``response``."""
    lines = [f"constexpr float {name} = {value:.9e}f;" for name, value in constants().items()]
    return "\n".join([f"namespace model {{ {' '.join(lines)} }}", *(_function_in_c(node) for node in _formulas())])


def _function_in_c(node: ast.FunctionDef) -> str:
    arguments = ", ".join(f"float {argument.arg}" for argument in node.args.args if argument.arg != "res")
    *lines, last = node.body
    assert isinstance(last, ast.Return)
    kind, head, result = "float", "", last.value
    if isinstance(result, ast.Tuple):
        names = [_in_c(name) for name in result.elts]
        kind = f"{node.name}_result"
        head = f"struct {kind} {{ float {', '.join(names)}; }};\n"
        value = f"{{{', '.join(names)}}}"
    else:
        assert result is not None
        value = _in_c(result)
    body = "".join(f"    {_assignment_in_c(line)}\n" for line in lines)
    return f"{head}ON_DEVICE {kind} {node.name}({arguments}) {{\n{body}    return {value};\n}}"


def _assignment_in_c(line: ast.stmt) -> str:
    assert isinstance(line, ast.Assign)
    target = line.targets[0]
    if isinstance(target, ast.Tuple):
        return f"const auto [{', '.join(_in_c(name) for name in target.elts)}] = {_in_c(line.value)};"
    return f"const float {_in_c(target)} = {_in_c(line.value)};"


def _in_c(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=float(value)):
            return f"{value!r}f"
        case ast.Name(id=name):
            return f"model::{name}" if name in constants() else name
        case ast.Attribute(attr=name):
            return f"response::{name}"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{_in_c(operand)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _C_OPERATORS:
            return f"({_in_c(left)} {_C_OPERATORS[type(operator)]} {_in_c(right)})"
        case ast.Call(func=ast.Name(id="positive"), args=[x]):
            return f"({_in_c(x)} > 0.f ? 1.f : 0.f)"
        case ast.Call(func=ast.Name(id="decay"), args=[x]):
            return f"expf(-{_in_c(x)})"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_in_c(a) for a in arguments if not (isinstance(a, ast.Name) and a.id == "res")]
            return f"{_C_PRIMITIVES.get(name, name)}({', '.join(given)})"
    raise TypeError(f"{ast.unparse(node)!r} is not part of the station model's language")
