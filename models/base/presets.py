"""The presets of a run: how long it may take. Imports nothing, so that help costs nothing."""

from typing import Literal, get_args

Preset = Literal["quick", "good", "best"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
