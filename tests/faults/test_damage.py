"""Every file that is read, damaged in every way: the same result, or one line that names the file.

Tables, runs, dataset and raw folders and archives are never misread and never end in another error. Pipes, folders and
promises larger than the memory are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import showerstack.runtime.tables
from showerstack.features import build, compute
from showerstack.features.build import build_table
from showerstack.features.table import CATALOGUE_FILE, EVENT_COLUMN, FeatureTable, part_path
from showerstack.models.registry import LEARNERS
from showerstack.runtime.arrays import read_arrays
from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.checksums import write_checksums as write_checksums
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import LOCK_FILE
from showerstack.runtime.tables import read_table
from showerstack.scoring.score import Origin, read_output
from showerstack.scoring.tasks.truth import read_truth
from showerstack.showers.archives.convert import convert
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA
from showerstack.showers.writer import write_dataset
from showerstack.stacking.config import TableConfig
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.training.train import stack
from tests.faults.damages import outcomes
from tests.faults.rounds import rounds
from tests.showers.test_convert import raw_mode
from tests.stacking.conftest import CLASSES, gaussians
from tests.stacking.fakes import FAKES


def read_features(folder: Path) -> str:
    """Return a hash of everything that training reads of a feature table."""
    table = FeatureTable.open(folder)
    return hashlib.sha256(table.matrix(table.columns).tobytes() + repr(table.columns).encode()).hexdigest()


@rounds(20, 300)
def test_feature_tables(
    n: int, tiny_composition: Path, tiny_gamma: Path, tmp_path: Path, survived: Counter[str]
) -> None:
    for name, data in (("set", tiny_composition / "composition_test"), ("other", tiny_gamma / "gamma_test")):
        made = build_table(
            data, tmp_path / "made" / name, groups=["reconstruction", "size"], ctx=Context(workers=1)
        ).folder
        shutil.copytree(made, tmp_path / name, ignore=shutil.ignore_patterns(LOCK_FILE))
    result = outcomes(tmp_path / "set", read_features, n, read_features(tmp_path / "set"))
    assert result["refused"] > 0.8 * n
    survived["damages"] += result.total()


@pytest.mark.usefixtures("fakes")
@rounds(20, 600)
def test_runs(n: int, tmp_path: Path, survived: Counter[str]) -> None:
    for name, seed in (("set", 1), ("other", 2)):
        points, labels = gaussians(600, seed)
        kinds = [CLASSES[k] for k in labels]
        pl.DataFrame({"x": points[:, 0], "y": points[:, 1], "kind": kinds}).write_parquet(tmp_path / f"{name}.parquet")
        options: dict[str, object] = {"preset": "quick", "folds": 2, "workers": 1, "device": "cpu"}
        options |= {"learners": ("fake_linear",), "pools": ("average",), "test_table": tmp_path / "set.parquet"}
        with patch.dict(LEARNERS, FAKES):
            stack(
                TableConfig(
                    repeats=1,
                    holdout=0.1,
                    run=tmp_path / "made" / name,
                    table=tmp_path / f"{name}.parquet",
                    label="kind",
                    **options,
                )
            )
        shutil.copytree(tmp_path / "made" / name, tmp_path / name, ignore=shutil.ignore_patterns(LOCK_FILE))

    def read(run: Path) -> str:
        predictions = predict(load(run), tmp_path / "set.parquet", Context()).concatenated()
        return hashlib.sha256(predictions.log_proba.tobytes() + predictions.config_hash.encode()).hexdigest()

    result = outcomes(tmp_path / "set", read, n, read(tmp_path / "set"))
    assert min(result["refused"], result["same result"]) > 0.15 * n, "some files are needed to predict, others are not"
    survived["damages"] += result.total()


FILES = (CATALOGUE_FILE, CHECKSUMS_FILE, "part-00000.parquet", "part-00001.parquet", "part-00002.parquet")


@pytest.fixture(scope="module")
def tables(draw, tmp_path_factory):
    """Two tables of three shards of 16 events, of different showers."""
    from showerstack.showers.writer import write_dataset

    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "SHARD_EVENTS", 16)
        patch.setattr(compute, "chunk_size", lambda device: 16)
        for seed in (1, 2):
            showers, folder = draw(48, seed=seed), tmp_path_factory.mktemp("tables") / f"set-{seed}"
            with write_dataset(folder, 48, None, source={"generator": "tests"}) as writer:
                writer.put(0, showers.matrices, showers.scalars)
            made.append(build_table(folder, groups=["reconstruction", "size", "shape"], ctx=Context(workers=1)))
    return made


@pytest.fixture
def table(tables, tmp_path):
    """Return a copy that may be damaged."""
    return FeatureTable.open(shutil.copytree(tables[0].folder, tmp_path / "table"))


def _rewrite(path, change):
    change(pl.read_parquet(path)).write_parquet(path, compression="lz4", statistics=False)


def _exchanged(frame):
    return frame.rename({"Ne": "Nmu", "Nmu": "Ne"}).select(frame.columns)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.reverse(),
        _exchanged,
        lambda frame: frame.with_columns(pl.col("Ne") * 1.0001),
        lambda frame: frame.head(15),
        lambda frame: frame.cast(pl.Float64),
    ],
)
def test_changed_shards_are_refused_by_name(table, change):
    _rewrite(part_path(table.folder, 1), change)
    for read in (lambda: table.matrix(["Ne"]), lambda: FeatureTable.open(table.folder).matrix(["Ne"]), table.frame):
        with pytest.raises(InputError, match=r"part-00001\.parquet is not the file that was written"):
            read()
    assert table.matrix(["Ne"], np.arange(16)).shape == (16, 1)


def test_shards_of_other_places_are_refused_by_name(table, tables):
    shutil.copy(part_path(tables[1].folder, 1), part_path(table.folder, 1))
    with pytest.raises(InputError, match=r"part-00001\.parquet is not the file that was written"):
        table.matrix(["Ne"])
    shutil.copy(part_path(tables[0].folder, 1), part_path(table.folder, 0))
    with pytest.raises(InputError, match=r"part-00000\.parquet is not the file that was written"):
        table.matrix(["Ne"], np.arange(16))


def test_missing_shards_and_names(table):
    listed = json.loads((table.folder / CHECKSUMS_FILE).read_text())
    for name in FILES[2:4]:
        (table.folder / CHECKSUMS_FILE).write_text(
            json.dumps({**listed, "files": {key: entry for key, entry in listed["files"].items() if key != name}})
        )
        with pytest.raises(InputError, match=r"names 2 shards of 3"):
            FeatureTable.open(table.folder)
    (table.folder / CHECKSUMS_FILE).write_text(json.dumps({**listed, "files": {}}))
    with pytest.raises(InputError, match=r"catalogue\.json is not in checksums\.json"):
        FeatureTable.open(table.folder)
    (table.folder / CHECKSUMS_FILE).write_text(json.dumps(listed))
    part_path(table.folder, 2).unlink()
    with pytest.raises(InputError, match=r"part-00002\.parquet is missing"):
        FeatureTable.open(table.folder)


def test_a_catalogue_of_other_columns_is_refused_by_name(table):
    head = json.loads((table.folder / CATALOGUE_FILE).read_text())
    head["columns"][3], head["columns"][4] = head["columns"][4], head["columns"][3]
    (table.folder / CATALOGUE_FILE).write_text(json.dumps(head, indent=2) + "\n")
    with pytest.raises(InputError, match=r"catalogue\.json is not the file that was written"):
        FeatureTable.open(table.folder)


def test_a_consistent_list_of_nonsense_is_refused_in_one_line(table):
    from showerstack.runtime.checksums import write_checksums

    for content in (b"", b"PAR1PAR1", b"nonsense" * 100):
        part_path(table.folder, 0).write_bytes(content)
        write_checksums(table.folder, [CATALOGUE_FILE, *(path.name for path in table.parts())])
        with pytest.raises(InputError, match=r"part-00000\.parquet") as refused:
            FeatureTable.open(table.folder).matrix(["Ne"])
        assert "\n" not in str(refused.value)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FILES),
    kind=st.sampled_from(["flip", "cut", "append", "zero", "empty", "remove", "folder"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_any_damage_is_refused_in_one_line_or_harmless(tables, tmp_path, name, kind, place, bit):
    folder, original = tmp_path / "copy", tables[0]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original.folder, folder)
    file = folder / name
    content = bytearray(file.read_bytes())
    k = int(place * len(content))
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind != "remove":
        content[k] = content[k] ^ (1 << bit) if kind == "flip" else 0 if kind == "zero" else content[k]
        file.write_bytes({"cut": content[:k], "append": content + b"\0", "empty": b""}.get(kind, bytes(content)))
    expected = original.matrix(original.columns)
    outcome = _read(folder)
    if isinstance(outcome, str):
        assert "\n" not in outcome
        assert str(folder) in outcome
    else:
        np.testing.assert_array_equal(outcome[0].view(np.uint32), expected.view(np.uint32))
        assert outcome[1] == list(range(48))


def _read(folder):
    """Return all values and event numbers of a table, or in which words it was refused."""
    try:
        table = FeatureTable.open(folder)
        return table.matrix(table.columns), table.frame().collect()[EVENT_COLUMN].to_list()
    except InputError as error:
        return str(error)


N = 40


def _write(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    extras = {"groups": np.int64, "age": np.float32, "part": np.int8}
    source = {"age": True, "seed": seed}
    with write_dataset(folder, N, COMPOSITION, source=source, extras=extras) as writer:
        writer.put(
            0,
            rng.integers(0, 200, (N, 16, 16, 2)),
            rng.uniform(3, 9, (N, 5)),
            np.arange(N) % 5,
            groups=np.arange(N),
            age=rng.uniform(0.5, 1.2, N),
            part=np.zeros(N),
        )


def read_dataset(folder: Path) -> str:
    """Return a hash of everything that a run reads."""
    data = Dataset.open(folder, COMPOSITION)
    digest = hashlib.sha256(data.fingerprint().encode())
    for chunk in data.chunks(16):
        digest.update(chunk.matrices.tobytes() + chunk.scalars.tobytes())
    for column in (data.labels, data.age, data.groups, data.part):
        digest.update(b"none" if column is None else column.tobytes())
    return digest.hexdigest()


def read_raw(folder: Path) -> str:
    """Return a hash of the published arrays, in their order, that conversion makes of raw archives."""
    out = folder.with_name("sets")
    shutil.rmtree(out, ignore_errors=True)
    digest = hashlib.sha256()
    for made in convert(folder, out, COMPOSITION, protocol="matched"):
        for name in ("matrices", "features", "labels_composition", "age"):
            digest.update(np.load(made / f"{name}.npy")[np.argsort(np.load(made / "order.npy"))].tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("checksums", [True, False], ids=["with checksums", "without"])
@rounds(32, 480)
def test_dataset(n: int, tmp_path: Path, checksums: bool, survived: Counter[str]) -> None:
    for seed, name in enumerate(("set", "other")):
        _write(tmp_path / name, seed)
        if not checksums:
            (tmp_path / name / "checksums.json").unlink()
    result = outcomes(tmp_path / "set", read_dataset, n, read_dataset(tmp_path / "set") if checksums else None)
    if checksums:
        assert result["same result"] <= 0.1 * n, "only where checksums.json itself is lost"
    survived["damages"] += result.total()


@rounds(20, 180)
def test_raw_archives(n: int, tmp_path: Path, survived: Counter[str]) -> None:
    for seed, name in enumerate(("set", "other")):
        (tmp_path / name).mkdir()
        raw_mode(tmp_path / name, "qgs_spectra", 400, seed)
    for kind in ("features", "true_features", "matrices"):
        # Public archives hold nothing that ties the three of a mode together.
        shutil.copyfile(tmp_path / "set" / f"qgs_spectra_{kind}.npz", tmp_path / "other" / f"qgs_spectra_{kind}.npz")
    result = outcomes(tmp_path / "set", read_raw, n, read_raw(tmp_path / "set"))
    assert result["refused"] > 0.6 * n
    survived["damages"] += result.total()


LABELS = np.arange(200) % 5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
@rounds(24, 300)
def test_damage_is_never_misread(n: int, save: object, tmp_path: Path, survived: Counter[str]) -> None:
    file = tmp_path / "p.npz"
    save(file, predictions=LABELS, config_hash=np.array("abc"))  # type: ignore[operator]
    whole = file.read_bytes()
    rng = np.random.default_rng(1)
    refused = 0
    for k in range(n):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), size=1 + k % 3):
            damaged[place] = int(rng.integers(0, 256))
        if k % 5 == 0:
            damaged = damaged[: int(rng.integers(0, len(whole)))]
        file.write_bytes(damaged)
        try:
            result, _ = read_output(file, COMPOSITION, len(LABELS))
        except InputError:
            refused += 1
        else:
            assert (result == LABELS).all()
    assert refused > n / 2
    survived["damages"] += n


def test_types_of_numbers_that_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "p.npz"
    for kind in (np.int8, np.uint8, np.int64, np.uint64):
        np.savez(file, predictions=LABELS.astype(kind))
        result, origin = read_output(file, COMPOSITION, 200)
        assert (result == LABELS).all()
        assert origin == Origin(None, None)
    for kind in (np.float16, np.float32, np.float64, np.int32):
        np.savez(file, gamma_scores=LABELS.astype(kind), config_hash=np.array("abc"))
        scores, origin = read_output(file, GAMMA, 200)
        assert scores.dtype == np.float64
        assert origin == Origin("abc", None)


def test_an_archive_with_nothing_wanted_names_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", scores=LABELS)
    with pytest.raises(InputError, match=r"no array 'predictions' .it holds scores."):
        read_arrays(tmp_path / "p.npz", "predictions")


def test_labels_that_are_not_those_that_were_written_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "composition_test"
    folder.mkdir()
    np.save(folder / "labels_composition.npy", LABELS.astype(np.int8))
    np.save(folder / "features.npy", np.full((200, 5), 15, np.float16))
    write_checksums(folder, ("labels_composition.npy", "features.npy"))
    assert (read_truth(tmp_path, COMPOSITION).labels == LABELS).all()
    np.save(folder / "labels_composition.npy", LABELS[::-1].astype(np.int8))
    with pytest.raises(InputError, match=r"labels_composition\.npy is not the file that was written"):
        read_truth(tmp_path, COMPOSITION)


@pytest.fixture(scope="module")
def table_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same table as CSV and as Parquet, packed and not."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=200), "n": rng.integers(0, 9, 200), "kind": [f"k{i % 3}" for i in range(200)]}
    frame = pl.DataFrame(columns).with_columns(pl.when(pl.col("n") > 7).then(None).otherwise(pl.col("n")).alias("n"))
    frame.write_csv(folder / "a.csv")
    frame.write_parquet(folder / "b.parquet")
    frame.write_parquet(folder / "c.parquet", compression="uncompressed")
    return sorted(folder.iterdir())


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return content cut, with bytes changed, inserted, removed or zeroed."""
    raw = bytearray(content)
    place = rng.randrange(len(raw))
    kind = rng.randrange(5)
    if kind == 0:
        del raw[place:]
    elif kind == 1:
        for _ in range(rng.choice([1, 3, 30])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind == 2:
        raw[place:place] = rng.randbytes(rng.randrange(1, 200))
    elif kind == 3:
        del raw[place : place + rng.randrange(1, 300)]
    else:
        raw[place : place + 50] = bytes(50)
    return bytes(raw)


@rounds(24, 400)
def test_damaged_tables(n: int, table_files: list[Path], tmp_path: Path, survived: Counter[str]) -> None:
    rng = random.Random(7)
    refusals = []
    for k in range(n):
        source = table_files[k % len(table_files)]
        file = tmp_path / f"bad{source.suffix}"
        file.write_bytes(damaged(source.read_bytes(), rng))
        try:
            read_table(file)
        except InputError as error:
            refusals.append((str(error), str(file)))
    assert len(refusals) > n / 4
    assert all(line.startswith(file) and "\n" not in line for line, file in refusals)
    survived["damages"] += n


def test_a_panic_of_the_parser_is_a_refusal(table_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*arguments: object, **options: object) -> None:
        raise pl.exceptions.PanicException("assertion failed\nstack backtrace")

    monkeypatch.setattr(showerstack.runtime.tables.pl, "read_csv", panics)
    with pytest.raises(InputError, match=r"a\.csv cannot be read \(damaged, .*: assertion failed$"):
        read_table(table_files[0])


def test_what_is_no_table(table_files: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "empty.csv").touch()
    (tmp_path / "link.csv").symlink_to("/dev/zero")
    for name, message in (
        ("pipe.csv", "not a regular file"),
        ("link.csv", "not a regular file"),
        ("folder.csv", "is a folder"),
        ("gone.csv", "does not exist"),
        ("empty.csv", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / name)


def test_more_than_the_memory_is_refused(table_files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showerstack.runtime.tables, "memory_bytes", lambda: 1024)
    with pytest.raises(InputError, match="give fewer rows"):
        read_table(table_files[1])
