"""What others counted in the public data, to hold a first real download against.

In the whole archive of measured runs the benchmark's own scripts read every run in order of its name and cut on
reconstructed quantities; their counts stand in ``paper/`` of its repository at commit 1949fdf. Rows of its simulated
sets are those of its files and of the splits of its scripts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from showerstack.showers.dataset import Dataset
from showerstack.showers.kascade import LG_NMU_MIN
from showerstack.showers.protocols import TEST_WITH_AGE, Cut, CutSet, scalar_frame
from showerstack.showers.schema import AGE_FILE

RUNS = 1308
"""Of the archive. Fewer than :data:`WHOLE` of it are a part, whose counts are nobody's."""
WHOLE = 0.95


@dataclass(frozen=True)
class Control:
    """A number of events that was published."""

    cuts: CutSet
    lg_energy_min: float | None
    events: int

    @property
    def words(self) -> str:
        """The cuts, as they are told."""
        named = " and ".join(cut.name for cut in self.cuts.cuts)
        return named if self.lg_energy_min is None else f"{named}, lg(E/eV) >= {self.lg_energy_min:g}"


_VERTICAL = CutSet(
    "vertical",
    (Cut("Ze < 18", "Ze", high=18.0), *TEST_WITH_AGE.cuts[1:], Cut(f"Nmu > {LG_NMU_MIN:g}", "Nmu", low=LG_NMU_MIN)),
)
CONTROLS = (
    Control(_VERTICAL, None, 1_572_349),
    Control(TEST_WITH_AGE, 14.5, 3_337_366),
    Control(TEST_WITH_AGE, 15.0, 2_400_321),
    Control(TEST_WITH_AGE, 15.5, 383_241),
    Control(TEST_WITH_AGE, 16.0, 38_299),
    Control(TEST_WITH_AGE, 16.5, 4_176),
)
"""Of the composition study and of the search for photons."""


def counted(folders: Sequence[Path]) -> dict[Control, int]:
    """Return how many events of converted runs pass each control's cuts; those that cannot be used count as well."""
    counts = dict.fromkeys(CONTROLS, 0)
    for folder in folders:
        data = Dataset.open(folder, labels=False)
        if not len(data):
            continue
        # Kept beside the grids where the protocol has none for learners.
        age = data.files.optional(AGE_FILE, np.float32, len(data)) if data.age is None else data.age
        columns = scalar_frame(data.scalars, age)
        energy = columns["E"].to_numpy()
        passed = {cuts: cuts.mask(columns) for cuts in {control.cuts for control in CONTROLS}}
        for control in CONTROLS:
            here = passed[control.cuts]
            if control.lg_energy_min is not None:
                here = here & (energy >= control.lg_energy_min)
            counts[control] += int(np.count_nonzero(here))
    return counts


def control_lines(folders: Sequence[Path]) -> list[str]:
    """Return a line for each published count, with what is counted here; none for a part of the archive."""
    if len(folders) < WHOLE * RUNS:
        return []
    lines = [f"runs: {len(folders):,}, published {RUNS:,}"]
    for control, here in counted(folders).items():
        difference = here - control.events
        words = "agrees" if not difference else f"{difference:+,} ({100 * difference / control.events:+.3f} %)"
        lines.append(f"{control.words}: {here:,} events, published {control.events:,}: {words}")
    if any(line.endswith("%)") for line in lines):
        lines.append(
            "differences below 0.1 % may come of scalars that protocol v2 rounds to float16 (--protocol 2026: not); "
            "one in all counts, of runs that are missing; one in the first alone, of the cuts on Nmu or Ze < 18"
        )
    return lines


ROWS = {
    ("composition", "v2", "train"): 5_561_523,
    ("composition", "v2", "test"): 119_027,
    ("composition", "matched", "train"): 349_028,
    ("composition", "matched", "test"): 34_519,
    ("composition", "2026", "train"): 268_483,
    ("composition", "2026", "test"): 115_064,
    ("gamma", "v2", "train"): 1_530_715,
    ("gamma", "v2", "test"): 35_751,
    ("gamma", "2026", "test"): 35_846,
}
"""Of the public sets, by task, protocol and split."""


def rows_line(task: str, protocol: str, split: str, n_rows: int) -> str | None:
    """Return how many rows a set has beside the public one; None where that one is not known."""
    published = ROWS.get((task, protocol, split))
    if published is None:
        return None
    public = f"the public {split} set of {protocol}"
    return f"as many as {public}" if n_rows == published else f"{n_rows:,}, {public} has {published:,}"
