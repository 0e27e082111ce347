"""Primary energy: the posterior's mean and width in lg E."""

from __future__ import annotations

from showers.schema import ENERGY
from stacking.target_procedure import TargetProcedure


class EnergyProcedure(TargetProcedure):
    """What all targets have in common is all it needs."""

    task = ENERGY


PROCEDURE = EnergyProcedure()
