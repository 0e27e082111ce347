"""What the registry says about one learner, and what it keeps of the training events in memory.

Without torch, since plans of runs read it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from showerstack.models.base.presets import PRESETS
from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE, DetectorArray


@dataclass(frozen=True)
class LearnerSpec:
    """One learner of the registry."""

    name: str
    learner: str
    """Where the class is: ``module:Class``."""
    meaning: str
    """What it is, in a line."""
    features: str | tuple[str, ...] | None
    """Named feature set or columns of its table; None for no table."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the class's defaults."""
    quick: Mapping[str, Any] = field(default_factory=dict)
    """What differs further in the preset that has to be done in minutes."""
    best: Mapping[str, Any] = field(default_factory=dict)
    """What differs further in the preset that may take its time."""
    by_rows: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """Settings by the number of training rows: those of the largest number that is not above it; rising numbers."""
    in_float32: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a network that differ where all networks are trained in float32."""
    for_tables: bool = False
    """Made for tables of any origin: a run on a table takes these and no others of the presets."""
    pretrained: bool = False
    """Starts from weights that know the features of showers: of one array or of any, and of no other table."""
    uses_truth: bool = False
    """Learns true quantities of training showers too, where the folder has them, and estimates them."""
    one_network: bool = False
    """Its fits start from the same weights, so that they may be averaged in them (``averaged`` of its class)."""
    needs_grid: bool = False
    least_grid: int = 1
    """Cells that its convolutions need on either side."""
    tasks: tuple[str, ...] = ()
    """Tasks it serves; empty for any."""
    presets: tuple[str, ...] = ()
    """Presets of a run (``quick``, ``good``, ``best``) that train it when no learner is asked for by name."""
    weights: int | None = None
    """How many a network has in the benchmark's v2 protocol; a test counts them."""
    version: int = 1
    """Raised by hand when the same settings and events give another fit: finished fits are then done again."""
    source: str = "showerstack"
    """Publication or library."""

    def obstacle(self, array: DetectorArray, known: DetectorArray | None = KASCADE) -> str | None:
        """Return why it cannot learn showers of an array, if its weights know another; None where it can.

        Weights that know any array (``known`` is None) are judged by the ranges that they have seen.
        """
        if self.pretrained and known is not None and not array.is_like(known):
            return f"starts from weights that know showers of {known.title} alone, these are of {array.title}"
        if self.needs_grid and min(array.grid_shape[:2]) < self.least_grid:
            shape = " x ".join(map(str, array.grid_shape[:2]))
            return f"needs a grid of {self.least_grid} x {self.least_grid} cells, {array.name} has {shape}"
        return None

    def float32_settings(self) -> dict[str, Any]:
        """Return what has a network trained in float32 wherever it runs; nothing for other learners."""
        return {"precision": "float32", **self.in_float32} if self.weights and self.kind != "average" else {}

    @property
    def kind(self) -> str:
        """Family: the last name of its module, such as ``lightgbm`` or ``images``."""
        return self.learner.partition(":")[0].rpartition(".")[2]

    @property
    def inputs(self) -> str:
        """What it needs, in words."""
        table = self.features if isinstance(self.features, str | None) else f"{len(self.features)} columns"
        parts = [f"table ({table})"] if table else []
        return " + ".join(parts + (["grid, scalars"] if self.needs_grid else []))

    def settings_for(self, preset: str = "good", n_rows: int | None = None) -> dict[str, Any]:
        """Return the settings of a preset (``quick``, ``good`` or ``best``) for so many training rows."""
        if preset not in PRESETS:
            raise InputError(f"unknown preset {preset!r}: choose one of {', '.join(PRESETS)}")
        changes = {"quick": self.quick, "best": self.best}.get(preset, {})
        sized: Mapping[str, Any] = {}
        for least, given in self.by_rows:
            if n_rows is None or n_rows >= least:
                sized = given
        return {**self.settings, **sized, **changes}


RESIDENT_BYTES = 1 << 30
"""Grids of a fold up to this size are held in the host's memory: a million events."""
RESIDENT_SHARE = 0.5
"""Grids are held on a GPU if they take at most this share of its free memory."""
READ_AHEAD = 4
"""Batches a background reader prepares in advance."""
