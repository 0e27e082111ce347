"""Primary energy: bias and resolution of lg E, by true energy."""

from __future__ import annotations

from scoring.target import TargetScoring
from showers.schema import ENERGY


class EnergyScoring(TargetScoring):
    """lg(E/eV)."""

    task = ENERGY
    edges = (14.0, 14.5, 14.75, 15.0, 15.25, 15.5, 15.75, 16.0, 16.5, 17.0, 18.0)


SCORING = EnergyScoring()
