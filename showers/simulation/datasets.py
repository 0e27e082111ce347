"""Simulating whole datasets: blocks in parallel, written in order."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np

from showerstack.runtime.context import Bars, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import locked
from showerstack.runtime.options import Count, Limits, Place, Seed, checked
from showerstack.runtime.processes import in_threads
from showerstack.runtime.resources import cores
from showerstack.runtime.versions import SIMULATION_VERSION
from showerstack.showers.array import KASCADE, DetectorArray, array_entry
from showerstack.showers.front import FrontModel
from showerstack.showers.nuclei import GROUPS, composition_of, groups_entry
from showerstack.showers.protocols import (
    CUTS_FOR_ALL,
    NONE,
    TEST,
    UNROUNDED,
    evaluation_cuts_of,
    layout_of,
    modes_of,
)
from showerstack.showers.schema import (
    ABSENT,
    COMPOSITION,
    GAMMA,
    SCALAR_NAMES,
    SIMULATION,
    TASKS,
    WEIGHT_FILE,
    Task,
    task_named,
)
from showerstack.showers.simulation.blocks import (
    PRIMARIES_PER_BLOCK,
    SPLITS,
    BlockJob,
    SimulatedEvents,
    quantities_of,
    random_generator,
    simulate_block,
)
from showerstack.showers.simulation.cascade import Proposal
from showerstack.showers.simulation.fronts import arrival_times
from showerstack.showers.simulation.ground import answering, check_trigger, covering, ground_of
from showerstack.showers.simulation.primaries import throw_primaries
from showerstack.showers.simulation.settings import LARGEST_MEV, Settings, load_settings, refuse_large_caps
from showerstack.showers.writer import ARRIVAL_STEM, BLOCKS, PRIMARIES, already_made, refuse_foreign, write_dataset

WEIGHT_STEM = Path(WEIGHT_FILE).stem
Uses: TypeAlias = Annotated[int, Limits(1, PRIMARIES_PER_BLOCK)]
"""How often a shower is thrown."""
PACKAGES = ("numpy", "numba", "llvmlite", "scipy")
"""Libraries whose version can change a simulated event's last bits."""
BARREN_BLOCKS = 200
"""Give up after this many blocks (800,000 primaries) without a single accepted event."""


@checked
def simulate(
    task: Task,
    out: Place,
    *,
    n_train: Count,
    n_test: Count,
    seed: Seed = 1,
    model: str = "mix",
    train_cuts: Literal["none", "test"] = "none",
    world: Place = "default",
    workers: Count | None = None,
    overwrite: bool = False,
    bars: Bars = silent,
    settings: Settings | None = None,
    reuse: Uses = 1,
    protocol: str = "v2",
    array: DetectorArray = KASCADE,
    without: Sequence[Literal["E", "Ne", "Nmu"]] = (),
    proposal: Proposal | None = None,
) -> tuple[Path, Path]:
    """Simulate a training and a test set in the benchmark's format.

    A set that is there already, made from the same numbers by the same code, is kept: an interrupted simulation is
    finished by starting it again.

    Parameters
    ----------
    task
        One of :data:`showerstack.showers.schema.TASKS`; composition may have some of its mass groups
        (:meth:`showerstack.showers.schema.Task.with_classes`).
    out
        Folder that will hold ``{task}_train`` and ``{task}_test``.
    n_train, n_test
        Numbers of events written.
    seed
        Seed; on one kind of processor the same seed gives the same bytes for any number of workers.
    model
        Hadronic model: a name of :data:`showerstack.showers.simulation.primaries.MODELS`, or ``mix`` as the benchmark
        has it.
    train_cuts
        ``none``, or ``test`` for the test's cuts; the test set always has them. They are KASCADE's: another array has
        none.
    world
        ``default``, ``harder``, ``easier``, or a TOML file
        (:func:`showerstack.showers.simulation.settings.load_settings`).
    workers
        Threads; all processors if None.
    overwrite
        Replace existing sets, if they were simulated or converted here.
    bars
        Progress.
    settings
        Settings to use instead of a named world.
    reuse
        Throw every shower this often, at different cores; writes ``groups.npy`` if above 1.
    protocol
        ``v2``; ``matched`` or ``2026``: composition under the matched protocol's cuts (``train_cuts`` does not
        count) and with ages, scalars (2026: grids too) in float32. Their published numbers are for ``model="qgs"``.
    array
        The stations. Depth of the ground, lateral scales and the stations' response follow the array's card, cores
        cover as much of its side as of KASCADE's; the reconstruction and the world's other constants stay KASCADE's.
        Files are in float32, as those of ``convert``. With ``[times]`` in its card arrival times are written.
    without
        At another array than KASCADE: reconstructed quantities that are left out, as those that your events lack.
    proposal
        Gamma sets: throw muon-poor hadrons from this density (:data:`showerstack.showers.simulation.cascade.RARE`) and
        write their weights into ``weight.npy``.

    Returns
    -------
    (Path, Path)
        The training and the test folder.

    Raises
    ------
    InputError
        For unknown names, numbers that are not as declared, folders that hold anything else, or a disk without room.
    """
    if settings is None:
        settings = load_settings(world)
    else:
        refuse_large_caps(settings, "settings")
    if array != KASCADE:
        settings = answering(covering(settings, array), array, most_mev=LARGEST_MEV if array.is_of_kascade else np.inf)
    if task.name in TASKS:
        modes_of(protocol, task)
    if proposal is not None and task.primaries != GAMMA.name:
        raise InputError(f"muon-poor hadrons (--rare) belong to the task {GAMMA.name}: {task.name} has no weights")
    if not array.is_of_kascade and (train_cuts != NONE.name or protocol != "v2"):
        asked = f"protocol {protocol}" if protocol != "v2" else f"train cuts {train_cuts}"
        raise InputError(f"{asked}: these cuts are KASCADE's, and {array.name} has none: leave it out")
    if without and array.is_of_kascade:
        raise InputError(f"quantities left out (--without {','.join(without)}): KASCADE's sets have them all")
    cuts_for_all = CUTS_FOR_ALL.get((protocol, str(task.primaries)))
    test_cuts = TEST.name if array.is_of_kascade else NONE.name
    cuts = (cuts_for_all, cuts_for_all) if cuts_for_all else (train_cuts, test_cuts)
    sets = []
    for split, n, selection in zip(SPLITS, (n_train, n_test), cuts, strict=True):
        job = BlockJob(task, split, seed, model, selection, settings, reuse, array=array, proposal=proposal)
        check_job(job)
        folder = Path(out) / f"{task.name}_{split}"
        source = source_of(job, str(world), protocol, without)
        if overwrite:
            refuse_foreign(folder)
        is_made = not overwrite and already_made(folder, n, task, source)
        sets.append((folder, job, n, source, is_made))
    if not all(is_made for *_, is_made in sets):
        with locked(Path(out), f".{task.name}.lock"):  # so that both sets are those of one call
            for folder, job, n, source, is_made in sets:
                if not is_made:
                    write_set(folder, job, n, source, workers=workers, overwrite=overwrite, bars=bars)
    return sets[0][0], sets[1][0]


def write_set(
    folder: Path,
    job: BlockJob,
    n: int,
    source: dict[str, Any],
    *,
    workers: int | None = None,
    overwrite: bool = False,
    bars: Bars = silent,
) -> None:
    """Simulate the first ``n`` accepted events of a job and write them as a dataset folder."""
    layout = layout_of(source["protocol"], job.task) if job.array.is_of_kascade else UNROUNDED
    types: dict[str, Any] = {"groups": np.int64} if job.reuse > 1 else {}
    types |= {"age": np.float32} if layout.age == "file" else {}
    types |= {WEIGHT_STEM: np.float32} if job.proposal else {}
    times = FrontModel(**job.array.card.times) if job.array.card.times else None
    with (
        write_dataset(
            folder,
            n,
            job.task,
            source=source,
            extras=types,
            layout=layout,
            arrival_times=np.float32 if times else None,
            overwrite=overwrite,
        ) as writer,
        bars(f"simulate {folder.name}", "events") as progress,
    ):
        start = last = 0
        for events in accepted_events(job, n, workers):
            values = {"groups": events.group, "age": events.event.age, WEIGHT_STEM: events.weight}
            if times:
                arrival = arrival_times(events, random_generator(job, len(events), start), times)
                if layout is UNROUNDED:  # 0 is no time in KASCADE's files alone
                    arrival = np.where(arrival == 0, np.nan, arrival)
                writer.put_grids(np.arange(start, start + len(events)), arrival, ARRIVAL_STEM)
            truth, target = events.truth, job.task.target
            scalars = np.array(events.scalars)
            scalars[:, [SCALAR_NAMES.index(name) for name in source.get(ABSENT, ())]] = np.nan
            # Rounding to float16 is that of KASCADE's protocols; the detector's caps keep every cell below its limit.
            writer.put(
                start,
                events.grids.astype(layout.grid_type),
                layout.columns(scalars, events.event.age),
                events.labels if target is None else truth[target.name].to_numpy(),
                truth=truth,
                **{name: values[name] for name in types},
            )
            start += len(events)
            if len(events):
                last = int(events.group[-1])
            progress(start, n)
        block, shower = divmod(last, PRIMARIES_PER_BLOCK)
        thrown = block * PRIMARIES_PER_BLOCK + min((shower + 1) * job.reuse, PRIMARIES_PER_BLOCK)
        writer.came_out |= {PRIMARIES: thrown, BLOCKS: [0, block]}


def accepted_events(job: BlockJob, n: int, workers: int | None = None) -> Iterator[SimulatedEvents]:
    """Yield the first ``n`` accepted events in block order, a block at a time.

    Threads suffice: the kernels release the interpreter's lock. Few blocks more than there are threads are in memory.
    """
    blocks = in_threads(simulate_block, ((job, block) for block in count()), workers=workers or cores())
    with closing(blocks):
        done = 0
        for block, events in enumerate(blocks):
            accepted = events.head(n - done)
            done += len(accepted)
            if not done and block >= BARREN_BLOCKS:
                raise InputError(
                    f"none of {BARREN_BLOCKS * PRIMARIES_PER_BLOCK:,} primaries passed: check the settings"
                )
            yield accepted
            if done >= n:
                return


def check_job(job: BlockJob) -> None:
    """Refuse what cannot be simulated, before anything is written."""
    if job.task.has_own_groups:
        raise InputError(
            f"groups {', '.join(job.task.classes)}: the simulation throws nuclei of {', '.join(COMPOSITION.classes)}"
        )
    ground_of(job.array)
    if job.array != KASCADE:
        check_trigger(job.settings, job.array)
    throw_primaries(job.task, 1, job.model, job.settings.spectrum, np.random.default_rng(0))


def task_of_source(source: Mapping[str, Any]) -> Task:
    """Return the task whose primaries a set of the simulation was thrown for, by its ``source.json``."""
    task = task_named(str(source["task"]))
    return composition_of(source[GROUPS], GROUPS) if GROUPS in source else task


def source_of(job: BlockJob, world: str, protocol: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the content of ``source.json`` of a set that lacks some quantities."""
    rare = {"rare": asdict(job.proposal)} if job.proposal else {}
    absent = [name for name in SCALAR_NAMES if name not in quantities_of(job.array) or name in without]
    return (
        array_entry(job.array)
        | groups_entry(job.task)
        | ({ABSENT: absent} if absent else {})
        | rare
        | {
            "generator": SIMULATION,
            "version": importlib.metadata.version("showerstack"),
            "simulation_version": SIMULATION_VERSION,
            "task": job.task.name,
            "split": job.split,
            "seed": job.seed,
            "model": job.model,
            "world": world,
            "settings_hash": job.settings.digest(),
            "cuts": job.cuts,
            "evaluation_cuts": evaluation_cuts_of(protocol, job.task) if job.array.is_of_kascade else NONE.name,
            "protocol": protocol,
            "age": protocol != "raw" and layout_of(protocol, job.task).age != "none",
            "reuse": job.reuse,
        }
    )
