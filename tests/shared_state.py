"""Finds in the sources what all threads of a process share: caches, objects that change, switches of libraries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from showerstack.runtime.packages import OWN

ROOT = Path(__file__).resolve().parents[1]
CACHES = frozenset({"cache", "lru_cache", "cached_table", "kernel"})
"""Decorators that keep what a function returned or was compiled to."""
STATEFUL = frozenset(
    {"Lock", "RLock", "Condition", "Event", "Setting", "ContextVar", "_Router", "PlainConsole", "Typer", "kernel_of"}
)
"""Classes whose objects change although nobody assigns to them."""
WRITES = frozenset(
    {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "insert", "remove", "extend", "discard"}
)
SWITCHES = re.compile(
    r"os\.(environ|chdir|umask|nice)\b|warnings\.(filters|filterwarnings|simplefilter|catch_warnings|resetwarnings|showwarning)|signal\.signal|atexit\.|gc\.|logging\.(disable|basicConfig|capture\w+)"
    r"|sys\.(path|stdout|stderr|set\w+|excepthook)\b|locale\.setlocale|(np|random|numpy)\.random\.seed|random\.seed"
    r"|np\.seterr|torch\.(set_\w+|manual_seed|random\.fork_rng|backends\.\S+|use_\w+)|matplotlib\.rcParams|matplotlib\.use"
    r"|rc_context|resource\.setrlimit|socket\.setdefaulttimeout|pl\.Config|faulthandler\.|entrypoints\._\w+"
    r"|\w+\.(setLevel|handlers|propagate|reconfigure|fill_uninitialized_memory|set_num_threads)\b|conf\.set_temp"
    r"|getcontext|tempfile\.tempdir|multiprocessing\.set\w+"
)
"""What changes something for the whole process, where it is assigned to, changed or called."""
READ_ONLY = re.compile(
    r"warnings\.(warn|warn_explicit)|sys\.(stdout|stderr)\.(write|flush|isatty|encoding)|os\.environ\.get"
)


def found() -> set[str]:
    """Return ``file:name`` of every shared object, and ``file:switch`` of every place that turns a switch."""
    result = set()
    for package in OWN:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "scripts" not in file.parts:
                name, tree = file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))
                result |= {f"{name}:{what}" for what in (*_objects(tree), *_switches(tree))}
    return result


def _objects(tree: ast.Module) -> Iterator[str]:
    written = _written(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and CACHES & {_last(one) for one in node.decorator_list}:
            yield node.name
    for node in tree.body:
        annotated = [node.target] if isinstance(node, ast.AnnAssign) else []
        targets = node.targets if isinstance(node, ast.Assign) else annotated
        for target in targets:
            value = node.value  # type: ignore[attr-defined]
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and value is not None:
                    calls = [call for call in ast.walk(value) if isinstance(call, ast.Call)]
                    made = calls if isinstance(target, ast.Tuple) else [value]
                    if name.id in written or STATEFUL & {_last(one) for one in made}:
                        yield name.id


def _written(tree: ast.Module) -> set[str]:
    """Return names of the module that functions write to."""
    names: set[str] = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = list(ast.walk(function))
        own = {argument.arg for argument in inside if isinstance(argument, ast.arg)}
        own |= {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        for node in inside:
            if isinstance(node, ast.Global):
                names |= set(node.names)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                names |= {_first(node.value)} - own
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
                names |= {_first(node.func.value)} - own
    return names


def _switches(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            changed = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            changed = [one for two in changed for one in (two.elts if isinstance(two, ast.Tuple) else [two])]
        elif isinstance(node, ast.Call):
            changed = [node.func]
        for one in changed:
            text = _text(one.value if isinstance(one, ast.Subscript) else one)
            match = SWITCHES.match(text) if isinstance(one, ast.Attribute | ast.Subscript) else None
            if match and not READ_ONLY.match(text):
                yield match[0].rstrip(".")


def _text(node: ast.expr) -> str:
    """Return the source of an expression; that of dotted names, which nearly all are, without taking its time."""
    names: list[str] = []
    part = node
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(names)]) if isinstance(part, ast.Name) else ast.unparse(node)


def _first(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
