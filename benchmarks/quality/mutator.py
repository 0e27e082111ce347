"""Small changes of code: other operators, constants and functions, weights dropped, conditions turned round."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
NAMES = {
    "min": "max", "minimum": "maximum", "argmin": "argmax", "floor": "ceil", "log": "log10", "log1p": "log",
    "sum": "mean", "cos": "sin", "any": "all", "sqrt": "abs", "exp": "expm1", "median": "mean", "radians": "degrees",
}  # fmt: skip
# Arrays have no method "median".
NAMES |= {other: name for name, other in NAMES.items() if other not in NAMES} | {"mean": "sum"}
SAID = frozenset({"row", "one", "Feature", "Group", "Field", "InputError", "print"})
"""Calls whose arguments are words and ranges for people."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    """From the root, with slashes."""
    line: int
    begin: int
    """Where the changed text begins and ends in the file's bytes."""
    end: int
    text: str
    """What takes its place."""
    was: str
    context: str
    """The lines it stands on, and where on them."""

    @property
    def key(self) -> str:
        """A name that stays when other lines of the file move."""
        return hashlib.sha256(f"{self.path}\0{self.context}\0{self.text}".encode()).hexdigest()[:12]

    def of(self, source: bytes) -> bytes:
        """Return the file with the change."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a file, in its order.

    Docstrings, annotations, decorators, messages and declarations for people are left alone.
    """
    content, all_lines, starts = source.encode(), source.splitlines(), [0]
    for line in content.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    entries = []
    for node, changed in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        last = node.end_lineno or node.lineno
        end = starts[last - 1] + (node.end_col_offset or 0)
        was = content[begin:end].decode()
        lines = all_lines[node.lineno - 1 : last]
        context = f"{' '.join(line.strip() for line in lines)} @{node.col_offset - _indent(lines[0])}"
        text = f"({changed})" if " " in changed else changed
        entries.append(Mutant(path, node.lineno, begin, end, text, was, context))
    # The same change of the same line a second time is one mutant: keys would agree.
    return list({one.key: one for one in sorted(entries, key=lambda one: one.begin)}.values())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in SAID:
        return
    if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield node.test, f"not {ast.unparse(node.test)}"
    for part in _mutated(node):
        yield node, ast.unparse(part)  # type: ignore[misc]
    skipped = {"annotation", "returns", "decorator_list"}
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from _changes(child)


def _mutated(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_text(node):
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert | ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        yield ast.Constant(1.25 * node.value or 0.25)
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in NAMES:
            func = ast.Name(NAMES[name])
            if isinstance(node.func, ast.Attribute):
                func = ast.Attribute(node.func.value, NAMES[name])  # type: ignore[assignment]
            yield ast.Call(func, node.args, node.keywords)
        for k, keyword in enumerate(node.keywords):
            if keyword.arg and "weight" in keyword.arg:
                kept = [*node.keywords[:k], ast.keyword(keyword.arg, ast.Constant(None)), *node.keywords[k + 1 :]]
                yield ast.Call(node.func, node.args, kept)


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)
