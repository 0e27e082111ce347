"""All commands: importing this module registers them; :func:`main` runs the one that the arguments name."""

from __future__ import annotations

from commands import analysis, data, measured, pretraining, results, runs, sharing
from commands.app import main

__all__ = ["analysis", "data", "main", "measured", "pretraining", "results", "runs", "sharing"]
