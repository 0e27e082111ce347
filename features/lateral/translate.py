"""The station model (:mod:`showerstack.features.lateral.station`) on arrays of any library, and in C.

Its compiled functions are in :mod:`showerstack.features.lateral.native`.
"""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from showerstack.features.lateral import elementwise, station

PRIMITIVES = ("exp2", "log2", "sqrt", "maximum", "minimum", "positive", "from_floor", "decay")
_C_PRIMITIVES = {"exp2": "exp2f", "log2": "log2f", "sqrt": "sqrtf", "maximum": "fmaxf", "minimum": "fminf"}
_C_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def formulas() -> list[ast.FunctionDef]:
    """Return the model's functions without docstrings, in their order."""
    tree = ast.parse(inspect.getsource(station))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name not in PRIMITIVES]
    for node in functions:
        node.body = [line for line in node.body if not isinstance(line, ast.Expr)]
    return functions


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
        exp2=lambda x: xp.exp(x * station.LN_2),
        log2=xp.log2,
        sqrt=xp.sqrt,
        maximum=lambda a, b: xp.maximum(a, filled(b, a)),
        minimum=lambda a, b: xp.minimum(a, filled(b, a)),
        positive=lambda x: xp.astype(x > 0.0, x.dtype),
        from_floor=lambda value, x, floor: value * xp.astype(x >= floor, x.dtype),
        decay=lambda x: elementwise.decay(x, xp),
    )
    for node in formulas():
        names[node.name] = FunctionType(getattr(station, node.name).__code__, names)
    return SimpleNamespace(**{node.name: names[node.name] for node in formulas()})


def in_c() -> str:
    """Return constants (namespace ``model``) and functions as C++17 in float; ``res`` is the namespace ``response``."""
    lines = [f"constexpr float {name} = {value:.9e}f;" for name, value in constants().items()]
    return "\n".join([f"namespace model {{ {' '.join(lines)} }}", *(_function_in_c(node) for node in formulas())])


def _function_in_c(node: ast.FunctionDef) -> str:
    arguments = ", ".join(f"float {argument.arg}" for argument in node.args.args if argument.arg != "res")
    *lines, last = node.body
    assert isinstance(last, ast.Return)
    kind, head, returned = "float", "", last.value
    if isinstance(returned, ast.Tuple):
        names = [_in_c(name) for name in returned.elts]
        kind = f"{node.name}_result"
        head = f"struct {kind} {{ float {', '.join(names)}; }};\n"
        value = f"{{{', '.join(names)}}}"
    else:
        assert returned is not None
        value = _in_c(returned)
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
        case ast.Call(func=ast.Name(id="from_floor"), args=[value, x, floor]):
            return f"({_in_c(x)} >= {_in_c(floor)} ? {_in_c(value)} : 0.f)"
        case ast.Call(func=ast.Name(id="decay"), args=[x]):
            return f"expf(-{_in_c(x)})"
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_in_c(a) for a in arguments if not (isinstance(a, ast.Name) and a.id == "res")]
            return f"{_C_PRIMITIVES.get(name, name)}({', '.join(given)})"
    raise TypeError(f"{ast.unparse(node)!r} is not part of the station model's language")
