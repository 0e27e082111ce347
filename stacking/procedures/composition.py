"""Mass composition: hard labels by the rule that serves the fraction error best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from showers.execution.progress import Progress
from showers.schema import COMPOSITION
from stacking.combine.judges import CompositionJudge
from stacking.decide.decision import RULES, Rule, choose_rule
from stacking.decide.response import write_response
from stacking.procedure import HeldOut, SavedRule
from stacking.procedures.classes import ClassesProcedure
from stacking.tasks.folds import LG_ENERGY_EDGES


class CompositionProcedure(ClassesProcedure):
    """Class numbers by a rule on posteriors."""

    name = COMPOSITION.name
    judge = CompositionJudge()

    def decide(
        self, held_out: HeldOut, run: Path, progress: Progress
    ) -> tuple[dict[str, Any], Mapping[str, SavedRule]]:
        """Choose the kind of rule, make it for every system, and write the response of what ships."""
        shipped = held_out.systems[held_out.shipped]
        decision = choose_rule(shipped, held_out.labels, held_out.folds)
        write_response(run, held_out.labels, decision.decided, held_out.energy, LG_ENERGY_EDGES, COMPOSITION.n_classes)
        rules: dict[str, Rule] = {}
        for number, (name, log_proba) in enumerate(held_out.systems.items()):
            rules[name] = decision.rule if name == held_out.shipped else RULES[decision.chosen](log_proba)
            progress(number + 1, len(held_out.systems), name)
        return decision.as_json(), rules

    def rule_from_json(self, content: Mapping[str, Any]) -> Rule:
        """Read a rule."""
        return Rule.from_json(content)

    def labels(self, rule: SavedRule | None, log_proba: np.ndarray) -> np.ndarray:
        """Return (N,) int8 labels by the rule."""
        assert isinstance(rule, Rule)
        return rule(log_proba)


PROCEDURE = CompositionProcedure()
