"""Every feature, declared once; the groups; and the named sets that learners ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from math import isfinite
from typing import Any

from showerstack.features import groups
from showerstack.features.groups import FITS, Feature, Group
from showerstack.features.groups.times import AZIMUTH
from showerstack.runtime.errors import InputError

MODULES = groups.modules()
CATALOGUE: dict[str, Feature] = {feature.name: feature for module in MODULES for feature in module.FEATURES}
"""All features by name, in table order."""

_GROUPS: tuple[Group, ...] = tuple(group for module in MODULES for group in module.GROUPS)
GROUPS: dict[str, str] = {group.name: group.meaning for group in _GROUPS}
"""Groups that can be switched on and off, with what they hold."""

FIT_GROUPS: frozenset[str] = frozenset(group.name for group in _GROUPS if group.needs_fits)
"""Groups that need the lateral fits."""
PARTS: dict[str, str] = {group.name: group.sums for group in _GROUPS if group.sums}
"""Part of the sums over stations that a group needs beside the plain ones."""

_SINGLE_COLUMNS = {
    **dict.fromkeys(FITS, ("e_hits",)),
    "published-grid": ("e_hits", "mu_hits", "e_centroid_r_m", "mu_centroid_r_m"),
}
"""Columns of other groups that belong to a set."""
SETS: dict[str, tuple[str, ...]] = {
    name: (*(group.name for group in _GROUPS if name in group.sets), *_SINGLE_COLUMNS.get(name, ()))
    for name in ("scalars", "published-grid", *FITS, "all")
}
"""Named sets as groups and single columns; the azimuth is left out (see :data:`NOT_LEARNED`)."""
NOT_LEARNED: frozenset[str] = frozenset({"Az", AZIMUTH})
"""Columns that carry no physics by themselves: the array looks the same in all directions."""


def feature_set(name: str, available: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a named set (or of one group, or one column) that a table has, in catalogue order.

    Parameters
    ----------
    name
        One of :data:`SETS`, :data:`GROUPS` or :data:`CATALOGUE`.
    """
    members = SETS.get(name) or ((name,) if name in GROUPS or name in CATALOGUE else None)
    if members is None:
        raise InputError(f"unknown feature set {name!r}: choose one of {', '.join([*SETS, *GROUPS])}")
    present = set(available)
    wanted = (f.name for f in CATALOGUE.values() if f.group in members or f.name in members)
    columns = tuple(column for column in wanted if column in present - NOT_LEARNED)
    if not columns:
        raise InputError(f"the table has no column of feature set {name!r}: was it made without its groups?")
    return columns


def check_groups(groups: Iterable[str]) -> frozenset[str]:
    """Return the groups as a set."""
    chosen = frozenset(groups)
    unknown = sorted(chosen - set(GROUPS))
    if unknown:
        raise InputError(f"unknown feature group {unknown[0]!r}: choose among {', '.join(GROUPS)}")
    return chosen


def listing(group: str | None = None, format: str = "table") -> str:
    """Return the catalogue as text.

    Parameters
    ----------
    group
        Only this group.
    format
        ``"table"`` for a terminal, ``"md"`` for the documentation.
    """
    if format not in ("table", "md"):
        raise InputError(f"unknown format {format!r}: choose table or md")
    groups = [group] if group else list(GROUPS)
    check_groups(groups)
    pieces = [(_markdown if format == "md" else _plain)(name) for name in groups]
    if format == "md" and group is None:
        pieces.insert(0, _markdown_head())
    return "\n".join(pieces)


def as_records(group: str | None = None) -> list[dict[str, Any]]:
    """Return name, unit, meaning, formula, range and source of every feature (of a group); open ends are None."""
    if group is not None:
        check_groups([group])
    chosen = [asdict(f) for f in CATALOGUE.values() if group in (None, f.group)]
    return [
        {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in one.items()}
        for one in chosen
    ]


def _markdown_head() -> str:
    rows = [
        f"| `{name}` | {len(feature_set(name, CATALOGUE))} | {', '.join(groups)} |" for name, groups in SETS.items()
    ]
    return "\n".join(
        [
            "# Feature catalogue",
            "",
            "Made by `python cli.py features --list --format md`. Radii are distances from the fitted core in the",
            "shower plane; signals are counted in particles: deposit times cos(zenith) over the mean deposit of one",
            "particle. A value is NaN where it is undefined. [How features are made](features.md)",
            "",
            "| set | columns | groups and single columns |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _plain(group: str) -> str:
    chosen = [f for f in CATALOGUE.values() if f.group == group]
    width = max(len(f.name) for f in chosen)
    unit = max(len(f.unit) for f in chosen)
    rows = [f"  {f.name:<{width}}  {f.unit:<{unit}}  {f.meaning}" for f in chosen]
    return "\n".join([f"{group}: {GROUPS[group]} ({len(chosen)})", *rows, ""])


def _markdown(group: str) -> str:
    rows = [
        f"| `{f.name}` | {f.unit} | {f.meaning} | {_escaped(f.formula)} | {f.low:g} .. {f.high:g} | {f.source} |"
        for f in CATALOGUE.values()
        if f.group == group
    ]
    head = ["| name | unit | meaning | formula | range | source |", "|---|---|---|---|---|---|"]
    return "\n".join([f"## {group}", "", f"{GROUPS[group].capitalize()}.", "", *head, *rows, ""])


def _escaped(text: str) -> str:
    """Return text in which bars do not end a cell of a Markdown table."""
    return text.replace("|", "\\|")
