"""Turn the raw simulation files into dataset folders of either protocol.

Raw files come as three NPZ archives a mode (``{mode}_matrices.npz`` and so on). They are read as streams, so that
memory holds a few thousand events, not an archive. Both protocols' splits are reproduced to the letter; since raw
files tell which events are the same simulated shower thrown at other core positions, ``groups.npy`` is written too
and ``source.json`` counts the showers that the protocol's own split spreads over train and test.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showers import cuts
from showers.dataset import check_cells, write_dataset
from showers.progress import Bars, Progress, silent
from showers.schema import COMPOSITION, GAMMA, InputError, Task

MODES: dict[tuple[str, str], tuple[str, ...]] = {
    ("v2", COMPOSITION.name): ("qgs_spectra", "epos_spectra"),
    ("v2", GAMMA.name): ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr"),
    ("matched", COMPOSITION.name): ("qgs_spectra",),
}
"""Which raw modes a protocol concatenates, in order."""

RAW_COLUMNS = ("type", "E", "Xc", "Yc", "R", "Ze", "Az", "Ne", "Nmu", "Age")
TRUE_COLUMNS = ("E", "id", "Xc", "Yc", "Ze", "Az", "Ne", "Nphoton", "Nmu", "Nhadron")
SCALAR_COLUMNS = (1, 5, 6, 7, 8)
"""E, Ze, Az, Ne, Nmu among the raw columns."""
SHOWER_COLUMNS = ("E", "Ze", "Az", "Ne", "Nmu")
"""True quantities that are equal when the same shower is used again at another core position."""
THROWN_COLUMNS = ("E", "Xc", "Yc", "Ze", "Az")
"""True quantities of a primary before anything happens to it."""
MAX_COPIES = 0.01
"""Share of a mode's showers that may agree with another mode's in all of these by chance or rounding."""

COMPOSITION_IDS = (14, 402, 1206, 2814, 5626)
"""CORSIKA numbers of p, He, C, Si, Fe."""
GAMMA_ID = 1

EVENTS_AT_ONCE = 8_192


@dataclass(frozen=True)
class Split:
    """Rows of the concatenated raw files that one folder gets, ascending."""

    folder: str
    rows: np.ndarray
    part: np.ndarray | None = None


def convert(raw: Path, out: Path, task: Task, *, protocol: str = "v2", bars: Bars = silent) -> list[Path]:
    """Write the dataset folders of a protocol from raw NPZ files.

    Parameters
    ----------
    raw
        Folder with ``{mode}_matrices.npz``, ``{mode}_features.npz`` and ``{mode}_true_features.npz``.
    out
        Gets ``{task}_train`` and ``{task}_test``.
    task
        Composition or gamma.
    protocol
        ``v2`` (labels from the true particle, float16 scalars, no age) or ``matched`` (QGSJet only, labels from the
        first raw column, float32 scalars, age).

    Returns
    -------
    list of Path
        The folders written.

    Raises
    ------
    InputError
        For an unknown combination, missing or malformed archives, unknown particles, or cells that are not valid.
    """
    try:
        modes = MODES[protocol, task.name]
    except KeyError:
        known = ", ".join(f"{p} {t}" for p, t in MODES)
        raise InputError(f"no protocol {protocol!r} for task {task.name!r}: there are {known}") from None
    features = np.concatenate(_read_columns(raw, modes, "features", RAW_COLUMNS))
    truths = _read_columns(raw, modes, "true_features", TRUE_COLUMNS)
    _refuse_copies(raw, modes, truths)
    truth = np.concatenate(truths)
    if len(features) != len(truth):
        raise InputError(f"{raw}: features have {len(features)} rows, true_features {len(truth)}")
    if protocol == "v2":
        labels, splits = _labels_from_truth(truth[:, 1], task, raw), _split_v2(task, features)
    else:
        labels, splits = features[:, 0].astype(np.int64) - 1, _split_matched(features)
    groups = _groups(truth)
    straddling = int(np.intersect1d(groups[splits[0].rows], groups[splits[1].rows]).size)
    for split in splits:
        source = {
            "generator": "converted from raw files",
            "task": task.name,
            "protocol": protocol,
            "modes": list(modes),
            "split": split.folder.rsplit("_", 1)[1],
            "evaluation_cuts": cuts.MATCHED.name if protocol == "matched" else cuts.TEST.name,
            "age": protocol == "matched",
            "showers_in_both_splits": straddling,
        }
        with bars(f"writing {split.folder}", "events") as progress:
            _write(raw, modes, out / split.folder, task, split, features, labels, groups, source, progress)
    return [out / split.folder for split in splits]


def stream_npz(path: Path, key: str, events_at_once: int = EVENTS_AT_ONCE) -> Iterator[np.ndarray]:
    """Yield consecutive blocks of one array of an NPZ archive without loading it whole.

    Raises
    ------
    InputError
        If the archive or the array is missing, damaged, in Fortran order or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read_header(file)
            if fortran or dtype.hasobject:
                raise InputError(f"{path}: array {key!r} must be C-ordered and hold numbers, not {dtype}")
            row_bytes = dtype.itemsize * int(np.prod(shape[1:]))
            left = shape[0]
            while left:
                n = min(events_at_once, left)
                content = file.read(n * row_bytes)
                if len(content) != n * row_bytes:
                    raise InputError(f"{path}: array {key!r} ends {left} rows early")
                yield np.frombuffer(content, dtype=dtype).reshape(n, *shape[1:])
                left -= n
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except KeyError:
        raise InputError(f"{path} holds no array {key!r} of a known format") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _read_columns(raw: Path, modes: tuple[str, ...], key: str, columns: tuple[str, ...]) -> list[np.ndarray]:
    """Return the columns of each mode."""
    found = []
    for mode in modes:
        blocks = []
        path = raw / f"{mode}_{key}.npz"
        for block in stream_npz(path, key, 1 << 18):
            if block.shape[1:] != (len(columns),):
                raise InputError(f"{path}: events have shape {block.shape[1:]}, expected ({len(columns)},)")
            blocks.append(block)
        found.append(np.concatenate(blocks) if blocks else np.empty((0, len(columns)), np.float32))
    return found


def _labels_from_truth(ids: np.ndarray, task: Task, raw: Path) -> np.ndarray:
    if task is GAMMA:
        return np.where(ids == GAMMA_ID, 0, 1)
    labels = np.full(len(ids), -1)
    for label, number in enumerate(COMPOSITION_IDS):
        labels[ids == number] = label
    unknown = np.flatnonzero(labels < 0)
    if unknown.size:
        raise InputError(f"{raw}: true_features row {unknown[0]} has particle {ids[unknown[0]]:g}, not one of p..Fe")
    return labels


def _frame(features: np.ndarray) -> pl.DataFrame:
    """Raw columns at their own precision: the protocols cut before they round."""
    return pl.DataFrame({name: features[:, k].astype(np.float32) for k, name in enumerate(RAW_COLUMNS)})


def _split_v2(task: Task, features: np.ndarray) -> list[Split]:
    """First fifth of a shuffle is the test set, and only there the cuts apply."""
    n = len(features)
    order = np.arange(n)
    np.random.default_rng(2026).shuffle(order)
    test = np.sort(order[: int(0.2 * n)])
    passed = cuts.TEST_WITH_AGE.mask(_frame(features))
    return [
        Split(f"{task.name}_train", np.sort(order[int(0.2 * n) :])),
        Split(f"{task.name}_test", test[passed[test]]),
    ]


def _split_matched(features: np.ndarray) -> list[Split]:
    """Cuts first; then two seeded permutations cut off validation and test."""
    import torch  # the published split is defined by torch's generator

    def permutation(n: int) -> np.ndarray:
        return torch.randperm(n, generator=torch.Generator().manual_seed(42)).numpy()

    passing = np.flatnonzero(cuts.MATCHED.mask(_frame(features)))
    order = permutation(len(passing))
    n_held = int(0.3 * len(passing))
    train, held = order[: len(passing) - n_held], order[len(passing) - n_held :]
    second = permutation(n_held)
    n_test = int(0.3 * n_held)
    test, validation = held[second[n_held - n_test :]], held[second[: n_held - n_test]]
    both = np.sort(np.concatenate([train, validation]))
    part = np.isin(both, validation).astype(np.int8)
    return [
        Split(f"{COMPOSITION.name}_train", passing[both], part),
        Split(f"{COMPOSITION.name}_test", passing[np.sort(test)]),
    ]


def _refuse_copies(raw: Path, modes: tuple[str, ...], truth: list[np.ndarray]) -> None:
    """Refuse modes that hold the same showers: the splits would put a shower into train and its copy into test."""
    columns = [TRUE_COLUMNS.index(name) for name in THROWN_COLUMNS]
    thrown = [pl.DataFrame(values[:, columns], schema=THROWN_COLUMNS) for values in truth]
    for later, earlier in combinations(reversed(range(len(modes))), 2):
        copies = thrown[later].join(thrown[earlier], on=THROWN_COLUMNS, how="semi").height
        if copies > MAX_COPIES * thrown[later].height:
            raise InputError(
                f"{raw / modes[later]}_true_features.npz: {copies} of {thrown[later].height} showers are thrown "
                f"exactly as in {modes[earlier]}: an earlier simulation copied them; simulate the archives again"
            )


def _groups(truth: np.ndarray) -> np.ndarray:
    """(N,) int64: the first row that has the same true shower."""
    frame = pl.DataFrame({name: truth[:, TRUE_COLUMNS.index(name)] for name in SHOWER_COLUMNS})
    first = frame.with_row_index("row").select(pl.col("row").first().over(SHOWER_COLUMNS))
    return first.to_series().to_numpy().astype(np.int64)


def _write(
    raw: Path,
    modes: tuple[str, ...],
    folder: Path,
    task: Task,
    split: Split,
    features: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    source: dict[str, object],
    progress: Progress,
) -> None:
    with_age = bool(source["age"])
    extras: dict[str, type] = {"groups": np.int64}
    extras |= {"age": np.float32} if with_age else {}
    extras |= {"part": np.int8} if split.part is not None else {}
    scalar_type = np.float32 if with_age else np.float16
    with write_dataset(folder, len(split.rows), task, source=source, extras=extras, scalar_type=scalar_type) as writer:
        start = 0
        done = 0
        for mode in modes:
            path = raw / f"{mode}_matrices.npz"
            mode_start = start
            for block in stream_npz(path, "matrices"):
                if block.shape[1:] != (16, 16, 3):
                    raise InputError(f"{path}: events have shape {block.shape[1:]}, expected (16, 16, 3)")
                grids = block[..., 1:].astype(np.float16)
                check_cells(grids, path, start - mode_start)
                first, last = np.searchsorted(split.rows, [start, start + len(block)])
                rows = split.rows[first:last]
                values: dict[str, Any] = {"groups": groups[rows]}
                values |= {"age": features[rows, RAW_COLUMNS.index("Age")]} if with_age else {}
                values |= {"part": split.part[first:last]} if split.part is not None else {}
                writer.put(done, grids[rows - start], features[rows][:, SCALAR_COLUMNS], labels[rows], **values)
                start += len(block)
                done += len(rows)
                progress(start, len(features))
        if start != len(features):
            raise InputError(f"{raw}: matrices have {start} rows, features {len(features)}")
