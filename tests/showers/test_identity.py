"""Showers are known by what they are, whatever the folder is called, cut or copied from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.runtime.errors import InputError
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.identity import refuse_part, refuse_shared, same_blocks, shared_showers
from showerstack.showers.schema import COMPOSITION, SIMULATION
from showerstack.showers.simulation import simulate
from showerstack.showers.simulation.blocks import PRIMARIES_PER_BLOCK
from showerstack.showers.writer import write_dataset

COMMON = {"train_cuts": "test", "workers": 1}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return ``a``, ``larger`` of the same seed, and ``other`` of another one."""
    folder = tmp_path_factory.mktemp("identity")
    for name, n, seed in (("a", 150, 3), ("larger", 400, 3), ("other", 150, 4)):
        simulate(COMPOSITION, folder / name, n_train=n, n_test=100, seed=seed, **COMMON)
    return folder


def part(source: Path, out: Path, rows: np.ndarray, **changes: object) -> Path:
    """Write some rows of a set as a set of its own, ``source.json`` copied and changed."""
    out.mkdir(parents=True)
    for file in source.glob("*.npy"):
        np.save(out / file.name, np.load(file)[rows])
    pl.read_parquet(source / "truth.parquet")[rows].write_parquet(out / "truth.parquet")
    content = json.loads((source / "source.json").read_text())
    (out / "source.json").write_text(json.dumps(content | changes))
    return out


def test_a_set_says_how_many_primaries_are_behind_its_events(sets: Path) -> None:
    source = json.loads((sets / "larger" / "composition_train" / "source.json").read_text())
    last = int(pl.read_parquet(sets / "larger" / "composition_train" / "truth.parquet")["shower"].max())
    assert (source["events"], source["primaries"]) == (400, last + 1)
    assert source["blocks"] == [0, last // PRIMARIES_PER_BLOCK]


@pytest.mark.parametrize("stripped", [False, True], ids=["source.json", "rows alone"])
@pytest.mark.parametrize("kind", ["copy", "part", "shuffled", "larger", "other numbers"])
def test_the_same_showers_are_known(kind: str, stripped: bool, sets: Path, tmp_path: Path) -> None:
    a, rows = sets / "a" / "composition_train", np.arange(150)
    changes = {"generator": "somebody else"} if stripped else {}
    if kind == "copy":
        shutil.copytree(a, tmp_path / "b")
        b = tmp_path / "b"
    elif kind == "larger":
        b = part(sets / "larger" / "composition_train", tmp_path / "b", np.arange(400), **changes)
    elif kind == "other numbers":
        b = part(a, tmp_path / "b", rows, **changes)
        np.save(b / "features.npy", np.load(b / "features.npy").astype(np.float64))
    else:
        b = part(a, tmp_path / "b", rows[::7] if kind == "part" else rows[::-1], **changes)
    one, other = (Dataset.open(folder, labels=False) for folder in (a, b))
    assert shared_showers(one, other)
    with pytest.raises(InputError, match=r"--data .* and --simulation .* hold the same showers"):
        refuse_shared([("--data", one), ("--simulation", other)])


def test_other_showers_are_not_the_same(sets: Path) -> None:
    names = ("a/composition_train", "a/composition_test", "other/composition_train", "other/composition_test")
    opened = [Dataset.open(sets / name, labels=False) for name in names]
    assert all(shared_showers(one, other) is None for one in opened for other in opened if one is not other)
    refuse_shared([("--data", dataset) for dataset in opened])


def test_showers_that_hardly_differ_are_told_apart_by_their_times(tmp_path: Path) -> None:
    """Two angles alone, rounded, are the same for some in 10,000: the same showers are of the same time as well."""
    rng = np.random.default_rng(1)

    def written(name: str, scalars: np.ndarray, seconds: np.ndarray | None = None) -> Dataset:
        given = {} if seconds is None else {"times": seconds}
        extras = dict.fromkeys(given, np.float64)
        with write_dataset(tmp_path / name, len(scalars), None, source={"generator": "test"}, extras=extras) as writer:
            writer.put(0, np.zeros((len(scalars), 16, 16, 2), np.float16), scalars, **given)
        return Dataset.open(tmp_path / name, labels=False)

    def showers() -> tuple[np.ndarray, np.ndarray]:
        scalars = np.full((10_000, 5), 5.0, np.float32)
        scalars[:, 1:3] = rng.uniform((0, 0), (30, 360), (10_000, 2))
        return scalars, np.sort(rng.uniform(1e9, 1.001e9, 10_000))

    first, second = showers(), showers()
    one = written("one", *first)
    assert shared_showers(one, written("timeless", second[0])), "what the times are needed for"
    refuse_shared([("--data", one), ("--data", written("other", *second))])
    for name, part in (("copy", slice(None)), ("part", slice(None, None, 30))):
        with pytest.raises(InputError, match="hold the same showers"):
            refuse_shared([("--data", one), ("--data", written(name, *(each[part] for each in first)))])


def test_a_part_of_a_set_is_known(sets: Path, tmp_path: Path) -> None:
    whole = sets / "a" / "composition_train"
    refuse_part(Dataset.open(whole))
    for name, rows in (("half", np.arange(75)), ("twice", np.repeat(np.arange(150), 2))):
        with pytest.raises(InputError, match="events, 150 were written"):
            refuse_part(Dataset.open(part(whole, tmp_path / name, rows)))


def test_parts_that_do_not_overlap_are_other_showers_unless_these_were_thrown_again(sets: Path, tmp_path: Path) -> None:
    whole = sets / "a" / "composition_train"

    def shared(name: str, **changes: object) -> str | None:
        rows = np.arange(75), np.arange(75, 150)
        one, other = (part(whole, tmp_path / f"{name}{k}", each, **changes) for k, each in enumerate(rows))
        return shared_showers(Dataset.open(one, labels=False), Dataset.open(other, labels=False))

    assert shared("once") is None
    assert "the same blocks of primaries" in str(shared("again", reuse=5))


def test_blocks_are_compared_where_a_set_is_gone() -> None:
    source: dict[str, object] = {"generator": SIMULATION, "task": "composition", "split": "train", "seed": 3}
    source |= {"model": "mix", "settings_hash": "a"}
    assert same_blocks(source, source)
    assert same_blocks(source | {"blocks": [0, 3]}, source | {"blocks": [3, 7]})
    assert same_blocks(source | {"blocks": [0, 3]}, source | {"blocks": [4, 7]}) is None
    for name, value in (
        ("seed", 4),
        ("split", "test"),
        ("model", "qgs"),
        ("settings_hash", "b"),
        ("generator", "other"),
    ):
        assert same_blocks(source, source | {name: value}) is None


def test_sets_without_reconstructed_quantities_are_known_by_their_deposits(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    array = {"array": replace(KASCADE, name="mine").as_json(), "absent": ["E", "Ne", "Nmu"]}
    grids = (rng.gamma(1, 10, (90, 16, 16, 2)) * (rng.random((90, 16, 16, 2)) < 0.1)).astype(np.float32)
    scalars = np.full((90, 5), np.nan, np.float32)
    scalars[:, 1:3] = rng.uniform(0, 20, (90, 2))
    for name, rows, source in (
        ("a", slice(0, 50), array),
        ("new", slice(50, 90), array),
        ("part", slice(30, 60), array),
        ("turned", slice(0, 50), array | {"corsika": {"files": {"DAT000001": "1f"}}}),
        ("thrown", slice(50, 90), array | {"corsika": {"files": {"DAT000007": "1f", "DAT000008": "2f"}}}),
    ):
        n = len(grids[rows])
        with write_dataset(tmp_path / name, n, COMPOSITION, source=source) as writer:
            kept = grids[rows][::-1].astype(np.float16) if name == "turned" else grids[rows].astype(np.float16)
            writer.put(0, kept, scalars[rows], np.zeros(n, np.int64))
    opened = {path.name: Dataset.open(path, labels=False) for path in tmp_path.iterdir() if path.is_dir()}
    assert shared_showers(opened["a"], opened["new"]) is None
    assert shared_showers(opened["a"], opened["part"]) == "20 showers are in both"
    assert shared_showers(opened["a"], opened["turned"]) == "50 showers are in both"
    assert shared_showers(opened["turned"], opened["thrown"]) == "both hold the showers of DAT000001"
