"""What ``convert`` can be told; each format names those of its own (``options``), and others are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from showerstack.runtime.errors import InputError
from showerstack.runtime.options import Limits, OptionGroup
from showerstack.showers.nuclei import groups_asked
from showerstack.showers.schema import COMPOSITION, Task, task_named


@dataclass(frozen=True)
class ConvertOptions(OptionGroup):
    """What is asked for of a conversion."""

    out: Path
    """Folder for what is written: {task}_train and {task}_test, measured/, or a folder or table a set."""
    task: str = "composition"
    """Which sets to make, or which labels to keep."""
    groups: str | None = None
    """Composition: the mass groups that labels tell apart, such as proton,iron or light=H+He,CNO=C+N+O,iron=Fe."""
    protocol: Literal["v2", "matched", "2026"] | None = None
    """Of raw archives: 2026 unless said, what the public repository scores now; of measured runs that of the training
    sets, v2 unless said."""
    strict: Annotated[bool, "--strict"] = False
    """Raw archives, measured runs: refuse rows that cannot be used, instead of going on without them."""
    times_of_arrival: Annotated[bool, "--times-of-arrival"] = False
    """The same: also keep each station's arrival time, in arrival_ns.npy (ns)."""
    runs: str | None = None
    """Measured runs: comma-separated names; default: all."""
    times: Annotated[bool, "--times"] = False
    """Measured runs: also the events' times."""
    delete_raw: Annotated[bool, "--delete-raw"] = False
    """Measured runs: delete each run's raw grids once its folder is complete."""
    workers: Annotated[int | None, Limits(1)] = None
    """Measured runs, CORSIKA files: how many are converted at once; default: one a core, at most 8."""
    scheduler: str | None = None
    """The same: Dask scheduler that shares this file system, e.g. tcp://host:8786; default: this machine alone."""
    pitch: Annotated[float | None, Limits(gt=0)] = None
    """Grids in an .npz: spacing of the stations, m, where it has no places."""
    area: Annotated[float | None, Limits(gt=0)] = None
    """The same: area of a station, m2; default: 10."""
    array: Path | None = None
    """CORSIKA files: stations.parquet (array.toml beside it), or a dataset."""
    uses: Annotated[int, Limits(1)] = 10
    """CORSIKA files: places that each shower is thrown at."""
    slope: float | None = None
    """CORSIKA files: slope of the energy spectrum dN/dE that weight.npy gives the showers, such as -2.7; default: the
    files' own, without weights."""
    core_radius: Annotated[float | None, Limits(gt=0)] = None
    """CORSIKA files: radius of the disc of cores, m; default: 0.875 of half the array's side."""
    seed: Annotated[int, Limits(0)] = 1
    """CORSIKA files: seed of all random numbers."""

    @property
    def labels(self) -> Task:
        """Whose labels are kept."""
        task = task_named(self.task)
        if self.groups is None:
            return task
        if task != COMPOSITION:
            raise InputError(f"--groups: task {task.name} has no mass groups")
        return groups_asked(self.groups)


def names_of(runs: str | None) -> list[str] | None:
    """Return the names in a comma-separated list, None where nothing was said."""
    if runs is None:
        return None
    names = [name.strip() for name in runs.split(",") if name.strip()]
    if not names:
        raise InputError("--runs: expected comma-separated names of runs, at least one")
    return names
