"""The cuts of published analyses, one by one, and how many events pass each: the same on data and simulation.

JINST 19 (2024) P01025: zenith angle, lg Ne, lg Nmu (spectra alone), age, and a core within the disc of the exposure.
Age and core are cut where both sides know them; which were not is remarked upon.
"""

from __future__ import annotations

from showerstack.showers.kascade import AGE_MAX, AGE_MIN, CORE_RADIUS_M, LG_NE_MIN
from showerstack.showers.protocols import Cut, CutSet

AGE, CORE = "Age", "core_m"
"""Columns that a set may lack: NaN there for all events."""


def published_cuts(zenith_max_deg: float, lg_nmu_min: float | None = None, lg_ne_min: float = LG_NE_MIN) -> CutSet:
    """Return the cuts on columns Ze, Ne, Nmu, and where known Age and core_m (distance from the centre, m)."""
    cuts = [
        Cut(f"zenith < {zenith_max_deg:g} deg", "Ze", high=zenith_max_deg),
        Cut(f"lg Ne > {lg_ne_min:g}", "Ne", low=lg_ne_min),
        Cut(f"{AGE_MIN:g} < age < {AGE_MAX:g}", AGE, AGE_MIN, AGE_MAX, unknown="age"),
        Cut(f"core within {CORE_RADIUS_M:g} m", CORE, high=CORE_RADIUS_M, unknown="position of the core"),
    ]
    if lg_nmu_min is not None:
        cuts.insert(2, Cut(f"lg Nmu > {lg_nmu_min:g}", "Nmu", low=lg_nmu_min))
    return CutSet("published", tuple(cuts))


def add_flows(flows: list[dict[str, int]]) -> dict[str, int]:
    """Return cut-flows of several folders together; a cut that one folder lacks counts what it had before it."""
    cuts = list(dict.fromkeys(name for flow in flows for name in flow))
    total = dict.fromkeys(cuts, 0)
    for flow in flows:
        last = 0
        for name in cuts:
            last = flow.get(name, last)
            total[name] += last
    return total


def describe_flow(flows: list[dict[str, int]]) -> str:
    """Return a cut-flow in one line."""
    return ", ".join(f"{name} {count:,}" for name, count in add_flows(flows).items())
