"""What ``simulate`` can be told, and the three kinds of files that it makes: sets, raw archives, measured runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.options import Limits, OptionGroup
from showerstack.showers.nuclei import groups_asked
from showerstack.showers.schema import COMPOSITION, Task


@dataclass(frozen=True)
class SimulateOptions(OptionGroup):
    """What is asked for of a simulation."""

    out: Path = Path("data")
    """Folder that gets {task}_train and {task}_test."""
    train: Annotated[int, Limits(1)] = 30_000
    """Number of training events."""
    test: Annotated[int, Limits(1)] = 12_000
    """Number of test events (at KASCADE always under the test's cuts)."""
    seed: Annotated[int, Limits(0)] = 1
    """Seed of all random numbers."""
    model: str = "mix"
    """Public showers to be like: qgs as fitted, epos and sibyll with shifts of depth and muon number, mix as in the
    benchmark's v2 protocol."""
    hadronic: str | None = None
    """Instead of --model: hadronic model of the cascade Monte Carlo, such as sibyll21."""
    array: Path | None = None
    """Another array than KASCADE: stations.parquet with array.toml, or a dataset folder."""
    without: tuple[Literal["E", "Ne", "Nmu"], ...] = ()
    """With --array: reconstructed quantities that your own events lack, such as E,Ne,Nmu."""
    train_cuts: Literal["none", "test"] = "none"
    """none as in v2, or the test's cuts, which are KASCADE's."""
    protocol: Literal["v2", "matched", "2026"] = "v2"
    """Format and cuts; matched and 2026 apply cuts to both sets."""
    world: str = "default"
    """default, harder, easier, gammas, or a TOML file of settings."""
    reuse: Annotated[int, Limits(1)] = 1
    """Use each shower this often, at different core positions."""
    groups: str | None = None
    """Composition: some of the mass groups, such as proton,iron."""
    rare: Annotated[bool, "--rare"] = False
    """Gamma: draw many muon-poor hadrons, with weights in weight.npy."""
    workers: Annotated[int | None, Limits(1)] = None
    """Processes or threads at once; default: one a core."""
    overwrite: bool = False
    """Replace existing sets."""
    raw: Annotated[bool, "--raw"] = False
    """Write raw NPZ archives, TRAIN events for each model."""
    spectrum: Path | None = None
    """With --task measured: TOML file of the fluxes."""

    def without_effect(self, task: Task | None) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield why options have no effect on a task, None on measured runs, and their names."""
        of_sets = ("test", "model", "hadronic", "array", "without", "train_cuts", "protocol", "rare", "groups")
        if task is None:
            yield "with --task measured", (*of_sets, "train", "world", "reuse", "raw")
            return
        yield "without --task measured", ("spectrum",)
        if self.raw:
            yield "with --raw", of_sets
        if self.hadronic is not None:
            yield "with --hadronic", ("model",)
        if task != COMPOSITION:
            yield f"with --task {task.name}", ("groups",)

    def simulate(self, task: Task | None, bars: Bars = silent) -> Iterator[str]:
        """Simulate sets or raw archives of a task, or measured runs where it is None; yield what was written."""
        if task is None:
            yield self._simulate_runs(bars)
            return
        for path in self._simulate_raw(task, bars) if self.raw else self._simulate_sets(task, bars):
            yield f"wrote {path}"

    def _simulate_runs(self, bars: Bars) -> str:
        if self.spectrum is None:
            raise InputError(
                "say which fluxes to simulate: --spectrum FILE (a TOML file; see docs/physics/measured.md)"
            )
        from showerstack.showers.simulation.measured import TRUTH_FOLDER, simulate_measured

        folder = self.out / "measured_raw"
        files = simulate_measured(
            self.spectrum, folder, seed=self.seed, workers=self.workers, overwrite=self.overwrite, bars=bars
        )
        return f"wrote {len(files)} runs to {folder}; the truth is in {folder / TRUTH_FOLDER}"

    def _simulate_raw(self, task: Task, bars: Bars) -> list[Path]:
        from showerstack.showers.simulation.raw import simulate_raw

        return simulate_raw(
            task, self.out, self.train, seed=self.seed, world=self.world, workers=self.workers, reuse=self.reuse,
            overwrite=self.overwrite, bars=bars,
        )  # fmt: skip

    def _simulate_sets(self, task: Task, bars: Bars) -> tuple[Path, Path]:
        from showerstack.showers.archives.station_lists import array_in
        from showerstack.showers.array import KASCADE
        from showerstack.showers.simulation import simulate
        from showerstack.showers.simulation.cascade import RARE
        from showerstack.showers.simulation.ground import check_ground
        from showerstack.showers.simulation.monte_carlo import check_cascade

        array = KASCADE if self.array is None else array_in(self.array)
        check_ground(array)
        if self.hadronic is not None:
            check_cascade(self.hadronic)
        return simulate(
            task if self.groups is None else groups_asked(self.groups), self.out, n_train=self.train,
            n_test=self.test, seed=self.seed, model=self.hadronic or self.model, train_cuts=self.train_cuts,
            protocol=self.protocol, world=self.world, reuse=self.reuse, workers=self.workers,
            overwrite=self.overwrite, bars=bars, proposal=RARE if self.rare else None, array=array,
            without=self.without,
        )  # fmt: skip
