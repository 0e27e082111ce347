"""Mass groups by the names and mass numbers of their nuclei, as people have them: the five groups are one case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from showerstack.runtime.errors import InputError, most_similar
from showerstack.showers.schema import COMPOSITION, OWN_LABELS_FILE, Task

MASS_OF = {
    "H": 1, "He": 4, "Li": 7, "Be": 9, "B": 11, "C": 12, "N": 14, "O": 16, "F": 19, "Ne": 20, "Na": 23, "Mg": 24,
    "Al": 27, "Si": 28, "S": 32, "Cl": 35, "Ar": 40, "K": 39, "Ca": 40, "Sc": 45, "Ti": 48, "V": 51, "Cr": 52,
    "Mn": 55, "Fe": 56,
    "p": 1, "proton": 1, "helium": 4, "lithium": 7, "beryllium": 9, "boron": 11, "carbon": 12, "nitrogen": 14,
    "oxygen": 16, "CNO": 14, "neon": 20, "sodium": 23, "magnesium": 24, "aluminium": 27, "silicon": 28, "sulphur": 32,
    "argon": 40, "calcium": 40, "manganese": 55, "iron": 56,
}  # fmt: skip
"""Mass numbers by what the field calls nuclei: those of the most abundant isotopes in cosmic rays."""
_FIVE = dict(zip(COMPOSITION.classes, COMPOSITION.masses, strict=True))
HEAVIEST = 60
"""No mass number of a primary is above this."""
OWN_OUTPUT = "mass_groups"
"""Array of ``predictions.npz`` with class numbers of own groups, which must not be taken for the benchmark's."""
GROUPS = "groups"
"""Entry of ``source.json``: a table of names with lists of mass numbers, or a list of names of the five groups."""


def groups_asked(words: str) -> Task:
    """Return the composition task of groups as they are asked for: ``proton,iron`` or ``light=H+He,CNO=C+N+O,iron=Fe``.

    A name alone is a nucleus, and where it is that of one of the five groups, this group.
    """
    groups: dict[str, list[int]] = {}
    for word in words.split(","):
        name, has_nuclei, nuclei = (part.strip() for part in word.partition("="))
        masses = [_mass_of(one.strip()) for one in (nuclei if has_nuclei else name).split("+")]
        if not has_nuclei:
            name = next((five for five, of in _FIVE.items() if of == tuple(masses)), name)
        if name in groups:
            raise InputError(f"groups {words!r}: {name} stands twice")
        groups[name] = masses
    return composition_of(groups, f"groups {words!r}")


def composition_of(groups: Any, where: str) -> Task:
    """Return the composition task of an entry ``groups``: names with mass numbers, or names of the five groups.

    Groups that are the benchmark's, by name and nucleus, are the benchmark's task or a part of it; others have a label
    file of their own. They are put in the order of their mean ln A.
    """
    if isinstance(groups, list) and all(isinstance(name, str) for name in groups):
        return COMPOSITION.with_classes(groups)
    if not isinstance(groups, Mapping) or not all(
        isinstance(masses, list) and masses and all(type(mass) is int and 1 <= mass <= HEAVIEST for mass in masses)
        for masses in groups.values()
    ):
        raise InputError(f"{where}: expected names of groups, each with mass numbers from 1 to {HEAVIEST}")
    if len(groups) < 2:
        raise InputError(f"{where}: expected two or more groups")
    wrong = next((name for name in groups if not re.fullmatch(r"\w[\w.-]*", name) or name == "all"), None)
    if wrong is not None:
        raise InputError(f"{where}: a group cannot be called {wrong!r}: give it a word of letters and digits")
    flat = [mass for masses in groups.values() for mass in masses]
    twice = next((mass for mass in flat if flat.count(mass) > 1), None)
    if twice is not None:
        raise InputError(f"{where}: mass number {twice} is in two groups, or in one twice")
    if all(_FIVE.get(name) == tuple(masses) for name, masses in groups.items()):
        return COMPOSITION.with_classes(groups)
    names, masses = tuple(groups), tuple(map(tuple, groups.values()))
    own = replace(COMPOSITION, classes=names, masses=masses, label_file=OWN_LABELS_FILE, class_output=OWN_OUTPUT)
    order = own.ln_masses.argsort(kind="stable")
    return replace(own, classes=tuple(own.classes[k] for k in order), masses=tuple(own.masses[k] for k in order))


def groups_entry(task: Task) -> dict[str, Any]:
    """Return the entry ``groups`` of ``source.json``, nothing for other tasks and for all five groups."""
    if task.has_own_groups:
        return {GROUPS: {name: list(masses) for name, masses in zip(task.classes, task.masses, strict=True)}}
    return {GROUPS: list(task.classes)} if task.numbers else {}


def nearest_of_five(masses: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return, for each group's mass numbers, which of the five groups its nuclei are nearest to."""
    return [sorted({int(k) for k in COMPOSITION.class_of_mass(of_group)}) for of_group in masses]


def _mass_of(name: str) -> int:
    if name in MASS_OF:
        return MASS_OF[name]
    if name.isdecimal() and 1 <= int(name) <= HEAVIEST:
        return int(name)
    similar = most_similar(name, MASS_OF)
    hint = f" (did you mean {similar}?)" if similar else ""
    raise InputError(f"{name!r} is no nucleus{hint}: give names such as He and oxygen, or mass numbers")
