"""Showers of CORSIKA's particle files, thrown onto an array, as a dataset folder.

Showers keep the spectrum that they were drawn with, unless another ``slope`` is asked for: ``weight.npy`` then says
what each counts (:mod:`showerstack.showers.archives.spectrum`). Thinning gives a shower no weight: the weights of its
particles are in the signals.

Directions are fitted to the stations' times (:mod:`showerstack.showers.front`), as they are in data; E, Ne and Nmu are
not reconstructed. A shower that was thrown is kept on disk until the folder is complete: an interrupted conversion goes
on. Files are read side by side, and memory holds a shower of each.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl

from showerstack.runtime.cluster import spread_over
from showerstack.runtime.context import Bars, Context, silent
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path, hash_file, hash_json, locked
from showerstack.runtime.options import Count, Limits, Seed, checked
from showerstack.runtime.processes import in_processes
from showerstack.runtime.resources import cores, memory_bytes
from showerstack.runtime.versions import CONVERSION_VERSION
from showerstack.showers.archives.convert import shuffled_order
from showerstack.showers.archives.options import ConvertOptions
from showerstack.showers.archives.particle_file import CM_PER_M, Ground, ParticleFile, files_in
from showerstack.showers.archives.spectrum import check_slope, common_energies, effective_number, spectrum_weights
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.archives.throwing import TRIGGER_STATIONS, Axis, throw, usual_radius_m
from showerstack.showers.array import DetectorArray
from showerstack.showers.card import DEPTH_TOLERANCE_G_CM2
from showerstack.showers.event_files import EventFiles
from showerstack.showers.nuclei import groups_entry
from showerstack.showers.particles import ELECTRONS, MUONS, PHOTON, DetectorResponse
from showerstack.showers.protocols import UNROUNDED
from showerstack.showers.schema import ABSENT, COMPOSITION, CONVERSION, GAMMA, Task
from showerstack.showers.writer import ARRIVAL_STEM, write_dataset

LOG = logging.getLogger(__name__)
RIM = 0.9
"""Share of the disc's radius beyond which its outermost fifth lies."""
LARGE, SEEN_OUTSIDE = 0.25, 0.1
"""Share of the showers, of highest energy, of which no more than a tenth of the uses at the rim should be seen: more
come from outside."""
EM_CUT_GEV, MUON_CUT_GEV = 0.01, 0.5
"""Cuts (ECUTS) on electrons and photons, and on muons, beyond which detectors miss particles that they would see."""
LOST_GEV = 10.0
"""With cuts above this no signal of that kind is left."""
MODELS = {0: "hdpm", 1: "venus", 2: "sibyll", 3: "qgs", 4: "dpmjet", 5: "nexus", 6: "epos"}
"""High-energy hadronic models, as event headers number them."""
GENERATOR = f"{CONVERSION} of CORSIKA particle files"
PROTON_ID = 14


class CorsikaFiles:
    """The format; its files need an array, so that :func:`convert_corsika` converts them."""

    name = "CORSIKA particle files"
    holds = "DAT000001 or a folder of such files, with --array"
    is_foreign = True
    options = ("task", "groups", "array", "uses", "seed", "slope", "core_radius", "workers", "scheduler")

    def convert(self, path: Path, given: ConvertOptions, ctx: Context = Context()) -> Iterator[str]:
        """Throw the showers onto an array; yields where they are."""
        if given.array is None:
            raise InputError(f"{path}: say onto which array its showers are to be thrown: --array stations.parquet")
        folder = convert_corsika(
            path, given.out, given.labels, array_in(given.array), uses=given.uses, seed=given.seed,
            slope=given.slope, core_radius_m=given.core_radius, workers=given.workers, scheduler=given.scheduler,
            bars=ctx.bars,
        )  # fmt: skip
        yield f"wrote {folder}"

    def accepts(self, path: Path) -> bool:
        """Return whether a path is a particle file, or a folder that holds some."""
        return bool(files_in(path))

    def open(self, path: Path, tell: Callable[[str], None] = lambda line: None) -> list[Any]:
        """Refuse: particles are no events of an array."""
        raise InputError(f"{path} holds {self.name}: say onto which array, {self.next_commands(path)[0]}")

    def next_commands(self, path: Path) -> list[str]:
        """Return the command that throws the showers onto an array."""
        return [f"python cli.py convert {path} --array stations.parquet --task composition --out own"]


FORMAT = CorsikaFiles()


def class_of(particle_id: int, task: Task) -> int | None:
    """Return the class number of a primary; None where it has none.

    Nuclei belong to the group of the nucleus with the nearest ln A: of the five, oxygen counts as carbon.
    """
    mass = mass_of(particle_id)
    if task.primaries == GAMMA.name:
        return 0 if mass == 0 else 1 if mass else None
    if not mass:
        return None
    return int((task if task.masses else COMPOSITION).class_of_mass(mass))


def mass_of(particle_id: int) -> int | None:
    """Return the mass number of a primary, 0 of a photon; None of what is neither photon nor nucleus."""
    if particle_id >= 200:
        mass, charge = divmod(particle_id, 100)
        return mass if charge <= mass else None
    return {PHOTON: 0, PROTON_ID: 1}.get(particle_id)


@checked
def convert_corsika(
    path: Path,
    out: Path,
    task: Task,
    array: DetectorArray,
    *,
    uses: Count = 10,
    seed: Seed = 1,
    slope: float | None = None,
    core_radius_m: Annotated[float, Limits(gt=0, lt=np.inf)] | None = None,
    workers: Count | None = 1,
    scheduler: str | None = None,
    tell: Callable[[str], None] = lambda line: LOG.warning("%s", line),
    bars: Bars = silent,
) -> Path:
    """Write the showers of a particle file, or of a folder of them, as a dataset folder of an array.

    Parameters
    ----------
    path
        ``DAT000001``, or a folder with files of that name.
    out
        Gets a folder of the path's name.
    task
        One of :data:`showerstack.showers.schema.TASKS`; labels are the primaries' classes, or the true energy.
    array
        The stations; with ``[times]`` in its card the arrival times are kept.
    uses
        How often each shower is thrown; ``groups.npy`` says which events are of one.
    seed
        Of cores, deposits and clocks.
    slope
        Of the energy spectrum dN/dE that ``weight.npy`` gives the showers, such as -2.7; None: that of the files, and
        no weights.
    core_radius_m
        Of the disc in which cores are uniform; None: :func:`usual_radius_m`. A line says how many of the largest
        showers are seen from its rim.
    workers
        Files that are read side by side, each by a process; None: one a core, at most eight, as memory allows. The
        result is the same to the byte.
    scheduler
        Address of a Dask scheduler whose workers read the files instead.
    """
    path, out = (Path(place).absolute() if scheduler else Path(place) for place in (path, out))
    if slope is not None:
        check_slope(slope)
        if task.target:
            raise InputError(f"--slope: task {task.name} has no weights: leave it out")
    files = [ParticleFile.open(file, array.depth_g_cm2) for file in files_in(path)]
    _same_ground(files)
    unseen = _what_cuts_hide(files, array, tell)
    if array.depth_g_cm2 is None:
        tell(f"the array's card gives no depth: its ground is taken to be at {files[0].depth_g_cm2:.0f} g/cm2")
    folder = out / path.resolve().name
    digests = {file.path.name: hash_file(file.path) for file in files}
    first = dict[str, str]()
    for name, digest in digests.items():
        if digest in first:
            raise InputError(f"{path_of(files)}: {name} is a copy of {first[digest]}, whose showers would count twice")
        first[digest] = name
    source = {
        "generator": GENERATOR,
        "conversion_version": CONVERSION_VERSION,
        "task": task.name,
        "array": array.as_json(),
        ABSENT: ["E", "Ne", "Nmu"],
        "evaluation_cuts": "none",
        **groups_entry(task),
        "corsika": {
            "files": digests,
            "uses": uses,
            "seed": seed,
            "depth_g_cm2": round(files[0].depth_g_cm2, 1),
            "energy_spectrum_slope": float(files[0].header["energy_spectrum_slope"]),
        }
        | ({} if slope is None else {"slope": slope})
        | ({} if core_radius_m is None else {"core_radius_m": core_radius_m}),
    }
    parts = out / f".{folder.name}.showers-{hash_json(source)[:12]}"
    if folder.exists():
        stored = EventFiles.open(folder).source()
        if {name: stored.get(name) for name in source} != source:
            raise InputError(f"{folder} exists already, made otherwise: choose another folder or remove it")
        if parts.exists():  # of a conversion that was killed while it removed them
            with suppress(InputError), locked(parts):
                shutil.rmtree(parts)
        return folder
    with locked(parts), bars(f"throwing {folder.name}", "showers") as progress:
        radius = core_radius_m or usual_radius_m(array)
        throwing = Throwing(parts, task, array, uses, seed, radius, tuple(unseen))
        known = _throw_all(files, throwing, tell, progress, workers, scheduler)
        _tell_rim(files, known, uses, radius, tell)
        weights = None if slope is None else _weights(files, known, slope, tell)
        _write(folder, parts, known, source, task, array, weights)
    shutil.rmtree(parts)
    return folder


def _weights(files: list[ParticleFile], known: list[Known], slope: float, tell: Callable[[str], None]) -> np.ndarray:
    """Return what each shower counts, (n,) float64, and say what that costs."""
    kind, run = (np.array([getattr(one, name) for one in known]) for name in ("particle_id", "run"))
    energy = 10.0 ** (np.array([one.truth["lg_energy"] for one in known]) - 9.0)
    spectra = [file.spectrum for file in files]
    weights = spectrum_weights(spectra, run, kind, energy, slope)
    slopes = sorted({f"E^{one.slope:g}" for one in spectra})
    tell(
        f"{path_of(files)}: showers drawn from {', '.join(slopes)} are weighted to E^{slope:g}: {len(known):,} are "
        f"worth {effective_number(weights):,.0f} of equal weight"
    )
    if len({(spectra[number].least_gev, spectra[number].most_gev) for number in np.unique(run)}) > 1:
        low, high = common_energies(spectra, run, kind)
        kinds, number = np.unique(kind, return_counts=True)
        sums = [weights[kind == one].sum() for one in kinds]
        tell(
            f"{path_of(files)}: from {1e9 * low:.3g} to {1e9 * high:.3g} eV, where every primary was drawn, they count "
            f"as simulated; at all energies primaries {' : '.join(map(str, kinds))} count "
            f"{' : '.join(f'{one:.3g}' for one in sums)} for {' : '.join(f'{one:,}' for one in number)} showers"
        )
    return weights


def _what_cuts_hide(files: list[ParticleFile], array: DetectorArray, tell: Callable[[str], None]) -> list[str]:
    """Return the true sizes that particles below the energy cuts (ECUTS) hide, and say what detectors miss.

    Raises
    ------
    InputError
        Where no particle is left that a kind of detector could see.
    """
    hidden = []
    kinds = (
        ("electrons and photons", "e/gamma", array.has_electron, EM_CUT_GEV, "lg_ne", "some MeV"),
        (
            "muons",
            "muon",
            array.has_muon,
            MUON_CUT_GEV,
            "lg_nmu",
            f"{DetectorResponse.of(array).muon_energy_gev:g} GeV",
        ),
    )
    for number, (particles, detectors, there, most, size, seen) in enumerate(kinds):
        cuts = [file.cuts_gev[number] for file in files]
        if max(cuts) <= most:
            continue
        hidden.append(size)
        line = (
            f"{files[int(np.argmax(cuts))].path}: {particles} below {max(cuts):.3g} GeV were not followed (ECUTS), but "
            f"{detectors} detectors see them from {seen} on"
        )
        if there.any() and max(cuts) > LOST_GEV:
            areas = "electron_area_m2" if number == 0 else "muon_area_m2"
            raise InputError(f"{line}: nothing is left for them to see; leave out {areas}, or simulate with lower cuts")
        tell(f"{line}: signals are too small, and {size} of the truth is unknown" if there.any() else
             f"{line}: {size} of the truth is unknown")  # fmt: skip
    return hidden


def _same_ground(files: list[ParticleFile]) -> None:
    for file in files[1:]:
        if abs(file.depth_g_cm2 - files[0].depth_g_cm2) > DEPTH_TOLERANCE_G_CM2:
            raise InputError(
                f"{file.path}: the particles are at {file.depth_g_cm2:.0f} g/cm2, but those of {files[0].path.name} at "
                f"{files[0].depth_g_cm2:.0f} g/cm2: convert them one by one"
            )


@dataclass(frozen=True)
class Known:
    """What is known of a shower that was thrown."""

    part: Path
    events: int
    label: float
    truth: dict[str, Any]
    run: int
    """Number of its file."""
    at_rim: int
    """Events with a core in the outermost fifth of the disc."""

    @property
    def particle_id(self) -> int:
        """Its primary."""
        return int(self.truth["particle_id"])


@dataclass(frozen=True)
class Throwing:
    """How the showers of all files are thrown."""

    parts: Path
    """Folder of what was thrown."""
    task: Task
    array: DetectorArray
    uses: int
    seed: int
    radius_m: float
    hidden: tuple[str, ...]
    """Quantities of the truth that are not known."""

    def known(self, file: ParticleFile, run: int, first: int, tell: Callable[[str], None]) -> Iterator[Known]:
        """Throw the showers of a file that have no part yet; yield what is known of each, numbered from ``first``."""
        for number, (header, ground) in enumerate(file.showers(tell)):
            particle_id = int(header["particle_id"])
            if header["angle_array_x_magnetic_north"]:
                raise InputError(f"{file.path}: event {number + 1} is turned from magnetic north (ARRANG): not read")
            label = class_of(particle_id, self.task)
            if label is None:
                raise InputError(
                    f"{file.path}: event {number + 1} is of primary {particle_id}, no class of task {self.task.name}"
                )
            part = self.parts / f"{first + number:06d}.npz"
            axis = Axis.of(header)
            if not part.exists():
                rng = np.random.default_rng([self.seed, first + number])
                with atomic_path(part) as temporary, temporary.open("wb") as opened:
                    np.savez(opened, **vars(throw(ground, axis, self.array, self.uses, rng, self.radius_m)))
            with np.load(part, allow_pickle=False) as stored:
                distance = np.hypot(*stored["core_m"].T)
            truth = _truth(header, ground, axis, particle_id)
            truth = {name: one for name, one in truth.items() if name not in self.hidden}
            value = truth[self.task.target.name] if self.task.target else label
            yield Known(part, len(distance), value, truth, run, int((distance > RIM * self.radius_m).sum()))
            del ground  # before the next one is read


class ThrownFile(NamedTuple):
    """What another process made of a file."""

    run: int
    known: list[Known]
    told: list[str]
    error: InputError | None


def _throw_file(throwing: Throwing, file: ParticleFile, run: int, first: int) -> ThrownFile:
    known, told = list[Known](), list[str]()
    try:
        known.extend(throwing.known(file, run, first, told.append))
    except InputError as error:
        return ThrownFile(run, known, told, error)
    return ThrownFile(run, known, told, None)


READER_BYTES, SHOWER_COPIES = 200 << 20, 2
"""Memory of a process, and what it holds beside of a shower's bytes in its file."""
MOST_AT_ONCE = 8
"""Files that are read side by side unless more are asked for."""


def _at_once(files: list[ParticleFile]) -> int:
    """Return how many files are read side by side: one a core, as far as there is memory for their showers."""
    most = max(file.path.stat().st_size // file.promised for file in files)
    return max(1, min(cores(), MOST_AT_ONCE, memory_bytes() // (READER_BYTES + SHOWER_COPIES * most)))


def _throw_all(
    files: list[ParticleFile],
    throwing: Throwing,
    tell: Callable[[str], None],
    progress: Callable[..., None],
    workers: int | None = None,
    scheduler: str | None = None,
) -> list[Known]:
    """Throw every shower that has no part yet, each file by a process of its own, and say what is known of each."""
    task, uses, known = throwing.task, throwing.uses, list[Known]()
    promised = sum(file.promised for file in files)
    at_once = min(workers or _at_once(files), len(files))
    if scheduler is None and at_once == 1:
        for run, file in enumerate(files):
            for one in throwing.known(file, run, len(known), tell):
                known.append(one)
                progress(len(known), max(promised, len(known)))
    else:
        # Showers are numbered through all files, whatever their headers promise.
        firsts = np.cumsum([0, *(file.count_whole() for file in files[:-1])]).tolist()
        asked = [(throwing, file, run, first) for run, (file, first) in enumerate(zip(files, firsts, strict=True))]
        results = (
            in_processes(_throw_file, asked, workers=at_once)
            if scheduler is None
            else spread_over(scheduler, _throw_file, asked, [throwing.parts, *(file.path for file in files)])
        )
        made, done = dict[int, ThrownFile](), 0
        with closing(results):
            for one_file in results:
                made[one_file.run] = one_file
                done += len(one_file.known)
                progress(done, max(promised, done))
        for _, one_file in sorted(made.items()):
            for line in one_file.told:
                tell(line)
            if one_file.error:
                raise one_file.error
            known += one_file.known
    unseen = uses * len(known) - sum(one.events for one in known)
    others = Counter(one.particle_id for one in known if mass_of(one.particle_id) not in (0, *chain(*task.masses)))
    if others and not task.target and task.primaries == COMPOSITION.name:
        named = ", ".join(f"{n} of {particle}" for particle, n in sorted(others.items()))
        tell(f"{path_of(files)}: nuclei count as the class with the nearest ln A (--groups names others): {named}")
    if not any(one.events for one in known):
        raise InputError(
            f"{path_of(files)}: none of {len(known)} showers at {uses} places hits {TRIGGER_STATIONS} stations: "
            "is the energy too low for the array's spacing?"
        )
    if not task.target:
        counts = np.bincount([int(one.label) for one in known if one.events], minlength=task.n_classes)
        if absent := task.absent(counts):
            tell(f"{path_of(files)}: {len(known):,} showers{absent}")
    if unseen:
        tell(f"{path_of(files)}: {unseen:,} of {uses * len(known):,} uses hit fewer than {TRIGGER_STATIONS} stations")
    return known


def _tell_rim(
    files: list[ParticleFile], known: list[Known], uses: int, radius_m: float, tell: Callable[[str], None]
) -> None:
    """Say how many of the largest showers are seen from the rim of the disc, if measured ones come from outside too."""
    large = sorted(known, key=lambda one: one.truth["lg_energy"])[-max(int(LARGE * len(known)), 1) :]
    share = sum(one.at_rim for one in large) / (len(large) * uses * (1 - RIM**2))
    if share > SEEN_OUTSIDE:
        tell(
            f"{path_of(files)}: cores lie within {radius_m:.0f} m, but of the {100 * LARGE:.0f} % of showers with the "
            f"highest energy about {100 * min(share, 1):.0f} % of the uses at that rim are seen: measured showers come "
            "from outside too, which training then does not know; give a larger --core-radius, or cut both on the "
            "fitted core"
        )


def path_of(files: list[ParticleFile]) -> Path:
    """Return the file, or the folder of several."""
    return files[0].path if len(files) == 1 else files[0].path.parent


def _truth(header: Any, ground: Ground, axis: Axis, particle_id: int) -> dict[str, Any]:
    mass = mass_of(particle_id)
    sizes = {"lg_ne": ground.number(ELECTRONS), "lg_nmu": ground.number(MUONS)}
    return {
        "particle_id": particle_id,
        "mass": mass,
        "model": MODELS.get(int(header["high_energy_hadron_model"]), "unknown"),
        "lg_energy": float(np.log10(float(header["total_energy"]))) + 9.0,
        "zenith_deg": float(np.degrees(axis.zenith_rad)),
        "azimuth_deg": float(np.degrees(axis.azimuth_rad)),
        "first_interaction_m": abs(float(header["first_interaction_height"])) / CM_PER_M,
        **{name: float(np.log10(number)) if number > 0 else float("nan") for name, number in sizes.items()},
    }


def _write(
    folder: Path,
    parts: Path,
    known: list[Known],
    source: dict[str, Any],
    task: Task,
    array: DetectorArray,
    weights: np.ndarray | None,
) -> None:
    """Write the dataset folder from the parts; its rows and the showers' numbers do not follow the files."""
    n = sum(one.events for one in known)
    content = hash_json(source)
    place = np.argsort(shuffled_order(n, content))
    shower = shuffled_order(len(known), f"{content} showers")
    of_event = np.repeat(np.arange(len(known)), [one.events for one in known])
    scalars = np.full((n, 5), np.nan, np.float32)
    cores = np.empty((n, 2), np.float32)
    with_times = bool(array.card.times)
    rows, columns, channels = array.grid_shape
    extras: dict[str, Any] = {"groups": np.int64} | ({} if weights is None else {"weight": np.float32})
    with write_dataset(
        folder, n, task, source=source, extras=extras,
        layout=UNROUNDED, arrival_times=np.float32 if with_times else None,
    ) as writer:  # fmt: skip
        start = 0
        for one in known:
            with np.load(one.part, allow_pickle=False) as part:
                here = place[start : start + one.events]
                scalars[here, 1:3], cores[here] = part["direction_deg"], part["core_m"]
                grids = np.zeros((one.events, array.n_cells, channels), np.float32)
                grids[:, array.cells] = part["signals_mev"]
                writer.put_grids(here, grids.reshape(one.events, rows, columns, channels))
                if with_times:
                    times = np.full((one.events, array.n_cells), np.nan, np.float32)
                    times[:, array.cells] = part["times_ns"]
                    writer.put_grids(here, times.reshape(one.events, rows, columns), ARRIVAL_STEM)
            start += one.events
        order = np.argsort(place)
        of_row = of_event[order]
        truth = pl.DataFrame([one.truth for one in known])[of_row].with_columns(
            core_x_m=cores[:, 0], core_y_m=cores[:, 1], shower=shower[of_row]
        )
        labels = task.decoded(np.array([one.label for one in known]))[of_row]
        more = {} if weights is None else {"weight": weights[of_row]}
        writer.put(0, None, scalars, labels, truth=truth, groups=shower[of_row], **more)
