"""Blind analyses: a share of the runs is open, chosen by their names alone; the rest is looked at once, on purpose.

The choice depends on nothing that was measured, and is the same for every analysis and machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from showerstack.runtime.errors import InputError
from showerstack.runtime.options import Limits, OptionGroup


@dataclass(frozen=True)
class Blinding(OptionGroup):
    """Which runs are looked at."""

    open_share: Annotated[float, Limits(gt=0, le=1)] = 1.0
    """Analyse only this share of the runs, chosen by their names; the others stay blinded."""
    unblind: Annotated[bool, "--unblind"] = False
    """Also analyse the blinded runs; the output records it."""

    def is_open(self, name: str) -> bool:
        """Tell whether a run of this name is among the open ones."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2.0**64
        return number < self.open_share

    def open_folders(self, folders: Sequence[Path]) -> list[Path]:
        """Return the folders that may be looked at."""
        if self.unblind:
            return list(folders)
        open_ones = [folder for folder in folders if self.is_open(folder.name)]
        if not open_ones:
            raise InputError(
                f"--open-share {self.open_share:g}: none of {len(folders)} runs is open by its name: give more runs "
                "or a larger share"
            )
        return open_ones

    def as_json(self, folders: Sequence[Path]) -> dict[str, Any]:
        """Return what provenance keeps of the runs that were looked at."""
        return {
            "open_share": self.open_share,
            "unblind": self.unblind,
            "open_runs": sum(self.is_open(folder.name) for folder in folders),
            "runs_looked_at": len(folders),
        }
