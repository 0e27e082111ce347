"""Dataset folders: what is written comes back; what is wrong is refused by file, column and row.

A sound folder has no problems; each kind of damage is one line that names the file. Rows that follow the classes are
noticed, random orders are not. True quantities beside the labels are read by those who may.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.runtime.checksums import CHECKSUMS_FILE
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_json
from showerstack.scoring.tasks.truth import read_truth as read_labels
from showerstack.showers.dataset import Dataset, ordering_by_labels, ordering_by_values, ordering_of
from showerstack.showers.event_files import TRUTH_COLUMNS, bad_cells, open_grids, read_truth
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, SCALAR_NAMES
from showerstack.showers.source import weight_ratios
from showerstack.showers.writer import is_dataset, problems, write_dataset

N = 37


def _write(folder: Path, *, source: dict | None = None, checksums: bool = False, **extras: np.ndarray) -> Path:
    rng = np.random.default_rng(1)
    kinds = {name: values.dtype for name, values in extras.items()}
    with write_dataset(folder, N, COMPOSITION, source=source or {}, extras=kinds) as writer:
        matrices = rng.exponential(10.0, (N, 16, 16, 2)).astype(np.float16)
        scalars = rng.uniform(10.0, 11.9, (N, 5)).astype(np.float16)
        labels = (np.arange(N) % 5).astype(np.int8)
        for start in (0, 20):
            part = slice(start, min(start + 20, N))
            more = {name: values[part] for name, values in extras.items()}
            truth = pl.DataFrame({"event": np.arange(N)[part]})
            writer.put(start, matrices[part], scalars[part], labels[part], truth=truth, **more)
    if not checksums:
        (folder / CHECKSUMS_FILE).unlink()
    return folder


def test_round_trip(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d", groups=np.arange(N, dtype=np.int64))
    data = Dataset.open(folder)
    assert data.task == COMPOSITION
    assert len(data) == N
    assert data.labels.tolist() == (np.arange(N) % 5).tolist()
    assert data.groups.tolist() == list(range(N))
    assert data.age is None
    assert data.protocol == "v2"
    assert data.evaluation_cuts.name == "test"
    assert pl.read_parquet(folder / "truth.parquet")["event"].to_list() == list(range(N))
    assert data.validate() == []


def test_arrays_in_fortran_order_hold_the_same_values(tmp_path: Path) -> None:
    expected, turned = Dataset.open(_write(tmp_path / "c")), _write(tmp_path / "f")
    for name in ("matrices.npy", "features.npy"):
        values = np.load(turned / name)
        np.save(turned / name, values.T.copy().T)  # as of columns that were chosen with an index
        assert np.load(turned / name, mmap_mode="r").flags.f_contiguous
    data = Dataset.open(turned)
    np.testing.assert_array_equal(data.matrices, expected.matrices)
    np.testing.assert_array_equal(data.scalars, expected.scalars)
    for result, wanted in zip(data.chunks(10), expected.chunks(10), strict=True):
        np.testing.assert_array_equal(result.matrices, wanted.matrices)
        np.testing.assert_array_equal(result.scalars, wanted.scalars)
        assert result.matrices.flags.c_contiguous, "what the compiled kernels expect"
    data.validate()


def test_chunks_cover_everything_once_at_absolute_borders(tmp_path: Path) -> None:
    data = Dataset.open(_write(tmp_path / "d"))
    assert [(c.start, len(c)) for c in data.chunks(10)] == [(0, 10), (10, 10), (20, 10), (30, 7)]
    assert [(c.start, len(c)) for c in data.chunks(10, 15, 33)] == [(15, 5), (20, 10), (30, 3)]
    assert next(data.chunks(10)).scalars.dtype == np.float32


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says what is in memory of a mapped file")
def test_grids_that_were_read_do_not_stay_in_memory(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d")
    for name, n in (("matrices.npy", 20_000), ("features.npy", 20_000), ("labels_composition.npy", 20_000)):
        np.save(folder / name, np.resize(np.load(folder / name), (n, *np.load(folder / name).shape[1:])))
    data = Dataset.open(folder, labels=False)

    def resident_kb() -> int:
        lines, of_file = Path("/proc/self/smaps").read_text().splitlines(), False
        total = 0
        for line in lines:
            of_file = line.endswith(str(folder / "matrices.npy")) if "-" in line.split()[0] else of_file
            total += int(line.split()[1]) if of_file and line.startswith("Rss:") else 0
        return total

    np.asarray(data.matrices[:]).max()
    assert resident_kb() > 10_000, "the file is read through the map"
    for chunk in data.chunks(5_000):
        np.asarray(chunk.matrices).max()
    assert resident_kb() < 1_000
    np.testing.assert_array_equal(data.matrices[:37], data.matrices[37:74], "released grids can be read again")


def test_labels_are_not_looked_at_unless_asked(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d")
    (folder / "labels_composition.npy").write_text("poison")
    assert Dataset.open(folder, labels=False).labels is None
    with pytest.raises(InputError, match=r"labels_composition\.npy cannot be read"):
        Dataset.open(folder)


def test_age_counts_only_where_the_source_says_so(tmp_path: Path) -> None:
    age = np.linspace(0.5, 1.4, N).astype(np.float32)
    assert Dataset.open(_write(tmp_path / "a", age=age)).age is None
    with_age = Dataset.open(_write(tmp_path / "b", source={"age": True}, age=age))
    assert with_age.scalar_frame().columns[-1] == "Age"
    assert np.array_equal(with_age.age, age)


def test_age_as_a_sixth_column(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a")
    scalars = np.random.default_rng(2).uniform(10.0, 11.9, (N, 6)).astype(np.float32)
    scalars[:, 5] /= 10
    np.save(folder / "features.npy", scalars)
    np.save(folder / "matrices.npy", np.load(folder / "matrices.npy").astype(np.float32))
    data = Dataset.open(folder)
    assert data.validate() == []
    assert np.array_equal(data.scalars, scalars[:, :5])
    assert np.array_equal(data.age, scalars[:, 5])
    assert data.scalar_frame().columns[-1] == "Age"
    (folder / "source.json").write_text('{"age": false}')
    assert Dataset.open(folder).age is None
    scalars[3, 5] = np.nan
    np.save(folder / "features.npy", scalars)
    (folder / "source.json").unlink()
    result = Dataset.open(folder, COMPOSITION)
    assert [str(bad) for bad in result.unusable] == ["features.npy: row 3, column Age holds nan"]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_cells_that_are_no_deposits_are_found_and_read_as_nothing(tmp_path: Path, kind: type, value: float) -> None:
    cells = np.full((4, 16, 16, 2), 1e4, kind)
    assert bad_cells(cells, "matrices.npy") == []
    cells[2, 3, 4, 1] = value
    (bad,) = bad_cells(cells, "matrices.npy", 100)
    assert str(bad) == f"matrices.npy: row 102, cell (3, 4), muon deposit holds {value:g}"
    np.save(tmp_path / "matrices.npy", cells)
    expected = cells.copy()
    expected[2, 3, 4, 1] = 0
    np.testing.assert_array_equal(open_grids(tmp_path / "matrices.npy")[:], expected)


@pytest.mark.parametrize(
    "foreign",
    [np.asfortranarray, lambda a: a.astype(a.dtype.newbyteorder()), lambda a: a.astype(np.float64)],
    ids=["fortran", "byte order", "float64"],
)
def test_numbers_stored_otherwise_are_the_same_numbers(tmp_path: Path, foreign: Callable) -> None:
    folder = _write(tmp_path / "d")
    usual = Dataset.open(folder)
    grids, scalars = np.array(usual.matrices[:]), np.array(usual.scalars)
    for name in ("matrices.npy", "features.npy"):
        np.save(folder / name, foreign(np.load(folder / name)))
    for kind in (np.uint8, np.int64, ">i4"):
        np.save(folder / "labels_composition.npy", (np.arange(N) % 5).astype(kind))
        (folder / "source.json").unlink(missing_ok=True)
        result = Dataset.open(folder)
        np.testing.assert_array_equal(result.matrices[[30, 3]], grids[[30, 3]])
        np.testing.assert_array_equal(result.scalars, scalars)
        assert result.labels.dtype == np.int8
        assert result.labels.tolist() == (np.arange(N) % 5).tolist()
        assert result.usable.all()


def test_fingerprint_ignores_labels_and_sees_cells(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d")
    before = Dataset.open(folder).fingerprint()
    np.save(folder / "labels_composition.npy", np.zeros(N, dtype=np.int8))
    (folder / "truth.parquet").unlink()
    assert Dataset.open(folder).fingerprint() == before
    matrices = np.load(folder / "matrices.npy")
    matrices[3, 4, 5, 1] += 1
    np.save(folder / "matrices.npy", matrices)
    assert Dataset.open(folder).fingerprint() != before


def test_checksums_change_no_fingerprint_and_no_remark_is_made_with_them(tmp_path: Path) -> None:
    checksums = Dataset.open(_write(tmp_path / "a", checksums=True))
    plain = Dataset.open(_write(tmp_path / "b"))
    assert checksums.fingerprint() == plain.fingerprint()
    assert checksums.labels_fingerprint() == plain.labels_fingerprint()
    assert checksums.remarks == ()
    assert "checksums.json" in plain.remarks[0]


@pytest.mark.parametrize(
    "name", ["matrices.npy", "features.npy", "labels_composition.npy", "groups.npy", "source.json"]
)
def test_a_flipped_bit_is_noticed_before_it_is_used(tmp_path: Path, name: str) -> None:
    folder = _write(tmp_path / "d", checksums=True, groups=np.arange(N, dtype=np.int64))
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is not the file that was written"):
        Dataset.open(folder).fingerprint()


def test_a_file_that_is_lost_or_added_is_noticed(tmp_path: Path) -> None:
    folder = _write(tmp_path / "a", checksums=True, groups=np.arange(N, dtype=np.int64))
    (folder / "groups.npy").unlink()
    with pytest.raises(InputError, match=r"groups\.npy does not exist, but checksums\.json names it"):
        Dataset.open(folder)
    folder = _write(tmp_path / "b", checksums=True)
    np.save(folder / "part.npy", np.zeros(N, np.int8))
    with pytest.raises(InputError, match=r"part\.npy is not in checksums\.json"):
        Dataset.open(folder)


def test_a_file_that_shrinks_while_it_is_read_is_one_error(tmp_path: Path) -> None:
    data = Dataset.open(_write(tmp_path / "d"))
    chunks = data.chunks(10)
    next(chunks)
    with (tmp_path / "d" / "matrices.npy").open("rb+") as file:
        file.truncate(8_000)
    with pytest.raises(InputError, match=r"matrices\.npy has become shorter while it was being read"):
        next(chunks)
    with pytest.raises(InputError, match=r"matrices\.npy has become shorter"):
        data.matrices[[30, 3]]
    with pytest.raises(InputError, match=r"matrices\.npy cannot be read .*truncated"):
        Dataset.open(tmp_path / "d")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("matrices.npy", np.zeros((N, 16, 16, 3), np.float16), r"matrices\.npy has shape .*expected \(N, 16, 16, 2\)"),
        (
            "matrices.npy",
            np.zeros((N, 16, 16, 2), np.complex128),
            r"matrices\.npy has type complex128, expected numbers",
        ),
        ("features.npy", np.zeros((N - 1, 5), np.float16), r"features\.npy has 36 rows, but matrices\.npy .* 37"),
        ("features.npy", np.zeros((N, 7), np.float16), r"features\.npy has shape"),
        ("labels_composition.npy", np.full(N, 5, np.int8), r"row 0 holds label 5, expected 0\.\.4 \(37 bad rows\)"),
        ("labels_composition.npy", np.zeros(N, np.float32), r"has type float32, expected whole numbers"),
    ],
)
def test_refusals(tmp_path: Path, file: str, content: np.ndarray, message: str) -> None:
    folder = _write(tmp_path / "d")
    np.save(folder / file, content)
    with pytest.raises(InputError, match=message):
        Dataset.open(folder)


def test_event_with_a_scalar_that_is_not_a_number_is_named_and_read_as_finite(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d")
    scalars = np.load(folder / "features.npy")
    scalars[11, 3] = np.nan
    np.save(folder / "features.npy", scalars)
    result = Dataset.open(folder)
    assert [str(bad) for bad in result.unusable] == ["features.npy: row 11, column Ne holds nan"]
    assert np.flatnonzero(~result.usable).tolist() == [11]
    assert "1 of 37 rows of d cannot be used (1 column Ne)" in str(result.describe_unusable())
    assert all(np.isfinite(chunk.scalars).all() for chunk in result.chunks(10))


def test_missing_pieces(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        Dataset.open(tmp_path / "nowhere")
    folder = _write(tmp_path / "d")
    (folder / "labels_composition.npy").unlink()
    with pytest.raises(InputError, match="no label file"):
        Dataset.open(folder)
    with pytest.raises(InputError, match=r"has no labels_gamma\.npy: it is not labelled for the task gamma"):
        Dataset.open(folder, GAMMA)
    (folder / "features.npy").unlink()
    with pytest.raises(InputError, match=r"features\.npy does not exist"):
        Dataset.open(folder, labels=False)


def test_largest_finite_and_negative_zero_cells_are_fine() -> None:
    matrices = np.zeros((1, 16, 16, 2), dtype=np.float16)
    matrices[0, 0, 0] = 65_504.0, -0.0
    assert bad_cells(matrices, "edge.npy") == []


@pytest.mark.parametrize("end", ["full disk", "size limit"])
def test_full_disk_is_one_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def full(number: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if end == "full disk":
        monkeypatch.setattr(os, "posix_fallocate", full)
    n_events = 5 if end == "full disk" else 2**52  # more than any file may hold
    with (
        pytest.raises(InputError, match=rf"^{tmp_path}: no room for .* GB .*: free some space"),
        write_dataset(tmp_path / "d", n_events, GAMMA, source={}),
    ):
        pytest.fail("nothing may be simulated for a disk without room")
    assert not any(tmp_path.iterdir())


def test_disk_that_fills_up_at_the_end_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: pl.DataFrame, file: Path) -> None:
        raise pl.exceptions.ComputeError("underlying IO error: No space left on device (os error 28)")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(InputError, match=r"d: truth\.parquet cannot be written: .*No space left on device"):
        _write(tmp_path / "d")
    assert not any(tmp_path.iterdir())


def test_a_row_that_was_not_filled_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"got 3 rows of 5"),
        write_dataset(tmp_path / "d", 5, None, source={}) as writer,
    ):
        writer.put(0, np.zeros((3, 16, 16, 2)), np.zeros((3, 5)))
    assert not any(tmp_path.iterdir())


def test_only_our_own_sets_are_overwritten(tmp_path: Path) -> None:
    rows = np.zeros((5, 16, 16, 2)), np.zeros((5, 5))

    def write(folder: Path) -> None:
        with write_dataset(folder, 5, None, source={"generator": "showers.simulation"}, overwrite=True) as writer:
            writer.put(0, *rows)

    for folder in (tmp_path / "empty", tmp_path / "new"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        write(folder)
        write(folder)
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt, which is no file of a dataset"):
        write(tmp_path / "new")
    downloaded = _write(tmp_path / "downloaded")
    (downloaded / "source.json").unlink()
    with pytest.raises(InputError, match="was not simulated or converted here"):
        write(downloaded)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    for name in ("link", "file"):
        with pytest.raises(InputError, match="is not a folder and is not overwritten"):
            write(tmp_path / name)
    assert (tmp_path / "file").read_text() == (tmp_path / "new" / "notes.txt").read_text() == "mine"
    assert (downloaded / "matrices.npy").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["downloaded", "empty", "file", "link", "new"]


def test_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_dataset(tmp_path / "d", 5, GAMMA, source={}):
        raise RuntimeError
    assert not any(tmp_path.iterdir())


def test_unknown_evaluation_cuts_are_refused(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d")
    write_json(folder / "source.json", {"evaluation_cuts": "loose"})
    with pytest.raises(InputError, match="unknown cut set 'loose'"):
        _ = Dataset.open(folder).evaluation_cuts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with write_dataset(tmp_path / "gamma_test", 4, GAMMA, source={}) as writer:
        writer.put(0, np.ones((4, 16, 16, 2)), np.full((4, 5), 11), np.array([0, 1, 0, 1]))
    return tmp_path / "gamma_test"


def test_sound(folder: Path) -> None:
    assert is_dataset(folder)
    assert problems(folder) == []
    (folder / "checksums.json").unlink()
    assert problems(folder) == []
    assert not is_dataset(folder.parent)


@pytest.mark.parametrize("name", ["matrices.npy", "features.npy", "labels_gamma.npy", "source.json", "checksums.json"])
@pytest.mark.parametrize("damage", ["lost", "cut", "changed"])
def test_damage_is_named(folder: Path, name: str, damage: str) -> None:
    if (name, damage) == ("checksums.json", "lost"):
        return
    content = (folder / name).read_bytes()
    changed = {"cut": content[:-1], "changed": content[:-2] + b"\x7f" + content[-1:]}
    if damage == "lost":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(changed[damage].rstrip(b"\n}") if name == "checksums.json" else changed[damage])
    result = problems(folder)
    assert len(result) == 1
    assert name in result[0]


def test_bad_cells_are_found_without_checksums(folder: Path) -> None:
    (folder / "checksums.json").unlink()
    grids = np.load(folder / "matrices.npy")
    grids[2, 3, 4, 1] = np.nan
    np.save(folder / "matrices.npy", grids)
    assert "matrices.npy: row 2, cell (3, 4), muon deposit holds nan" in problems(folder)[0]


def test_reading_for_a_fingerprint_says_what_is_read(folder: Path) -> None:
    message: list[tuple[float, float, str]] = []
    data = Dataset.open(folder)

    def heard(done: float, total: float, note: str = "") -> None:
        message.append((done, total, note))

    assert data.fingerprint(heard) == data.fingerprint()
    size = (folder / "matrices.npy").stat().st_size
    assert message[0] == (0, 2, f"matrices.npy, {size / 1e6:.2f} MB")
    assert 0 < size < 1e6, "what a small set holds is no 0.00 GB"


def test_deviations_of_random_orders_are_standard_normal() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(4), (300, 500, 100, 40))
    values = rng.exponential(size=900)
    for result in (
        [ordering_by_labels(rng.permutation(labels)).deviation for _ in range(2000)],
        [ordering_by_values(rng.permutation(values)).deviation for _ in range(2000)],
    ):
        assert abs(np.mean(result)) < 0.08
        assert np.std(result) == pytest.approx(1, abs=0.06)


def _dataset(folder: Path, labels: np.ndarray, **extras: np.ndarray) -> Path:
    rng = np.random.default_rng(5)
    n = len(labels)
    scalars = rng.normal(5, 0.3, (n, 5))
    scalars[:, 0] += 10
    scalars[:, 4] += 0.5 * labels
    kinds = {name: values.dtype for name, values in extras.items()}
    with write_dataset(folder, n, GAMMA, source={}, extras=kinds) as writer:
        writer.put(
            0, np.zeros((n, 16, 16, 2), np.float16), scalars.astype(np.float16), labels.astype(np.int8), **extras
        )
    return folder


def test_blocks_of_classes_are_noticed_with_and_without_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = (np.arange(2000) % 1000 > 300).astype(np.int64)
    for name, used, ordered in (("blocks", labels, True), ("shuffled", rng.permutation(labels), False)):
        folder = _dataset(tmp_path / name, used)
        for with_labels in (True, False):
            result = ordering_of(Dataset.open(folder, GAMMA, labels=with_labels))
            assert result.is_ordered == ordered
            assert (result.remark(name) is None) != ordered
    remark = ordering_of(Dataset.open(tmp_path / "blocks")).remark("blocks")
    assert remark is not None
    assert "4 runs of equal labels" in remark


def test_showers_thrown_several_times_are_no_order(tmp_path: Path) -> None:
    labels = np.repeat(np.random.default_rng(2).integers(0, 2, 200), 5)
    assert ordering_of(Dataset.open(_dataset(tmp_path / "a", labels))).is_ordered
    groups = np.repeat(np.arange(200), 5).astype(np.int64)
    assert not ordering_of(Dataset.open(_dataset(tmp_path / "b", labels, groups=groups))).is_ordered


def test_truth_needs_labels_and_is_what_was_simulated(tiny_composition: Path) -> None:
    folder = tiny_composition / "composition_train"
    data = Dataset.open(folder, COMPOSITION)
    truth = data.truth()
    assert truth.columns == list(TRUTH_COLUMNS)
    stored = pl.read_parquet(folder / "truth.parquet")
    np.testing.assert_array_equal(truth["lg_energy"], stored["lg_energy"].cast(pl.Float64))
    assert data.truth_fingerprint() is not None
    unlabelled = Dataset.open(folder, labels=False)
    for ask in (unlabelled.truth, unlabelled.truth_fingerprint):
        with pytest.raises(InputError, match="opened without labels"):
            ask()


def test_a_folder_without_truth_says_so(tiny_composition: Path, tmp_path: Path) -> None:
    names = ("matrices.npy", "features.npy", "labels_composition.npy")
    for name in names:
        shutil.copy(tiny_composition / "composition_test" / name, tmp_path / name)
    data = Dataset.open(tmp_path, COMPOSITION)
    assert data.truth_fingerprint() is None
    with pytest.raises(InputError, match=r"has no truth\.parquet"):
        data.truth()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"lg_energy": [15.0, 15.0]}, "has 2 rows, but the folder has 3 events"),
        ({"energy": [15.0, 15.0, 15.0]}, "none of the columns lg_energy"),
        ({"lg_energy": ["a", "b", "c"]}, "column lg_energy holds String"),
        ({"xmax": [500.0, float("inf"), 1.0]}, "row 1, column xmax is infinite"),
    ],
)
def test_unusable_truth_is_refused(frame: dict[str, list[object]], message: str, tmp_path: Path) -> None:
    file = tmp_path / "truth.parquet"
    pl.DataFrame(frame).write_parquet(file)
    with pytest.raises(InputError, match=message):
        read_truth(file, 3)


def test_what_is_not_known_is_nan(tmp_path: Path) -> None:
    file = tmp_path / "truth.parquet"
    pl.DataFrame({"mass": [1, None, 56]}).write_parquet(file)
    truth = read_truth(file, 3)
    np.testing.assert_array_equal(truth["mass"], [1.0, np.nan, 56.0])
    assert truth["xmax"].is_nan().all()
    file.write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_truth(file, 3)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.full(N, -0.5), "row 0 holds -0.5, expected a weight from 0 up"),
        (np.where(np.arange(N) == 7, np.nan, 1.0), "row 7 holds nan"),
        (np.where(np.arange(N) == 3, np.inf, 1.0), "row 3 holds inf"),
        (np.zeros(N), "weights are zero, from row 0 on"),
        (np.ones(N - 1), f"has {N - 1} rows, but"),
    ],
    ids=["negative", "NaN", "infinite", "zero", "length"],
)
def test_bad_weights_are_named_by_file_and_row(tmp_path: Path, weights: np.ndarray, words: str) -> None:
    folder = tmp_path / "gamma_test"
    _gammas(folder)
    (folder / CHECKSUMS_FILE).unlink()
    np.save(folder / "weight.npy", weights.astype(np.float32))
    for read in (lambda: Dataset.open(folder), lambda: read_labels(tmp_path, GAMMA)):
        with pytest.raises(InputError, match=words) as refused:
            read()
        assert "weight.npy" in str(refused.value)
        assert "\n" not in str(refused.value)


def _gammas(folder: Path, **extras: np.ndarray) -> None:
    kinds = {name: values.dtype for name, values in extras.items()}
    with write_dataset(folder, N, GAMMA, source={}, extras=kinds) as writer:
        grids, scalars = np.ones((N, 16, 16, 2), np.float16), np.full((N, 5), 11, np.float16)
        writer.put(0, grids, scalars, (np.arange(N) % 2).astype(np.int8), **extras)


def test_weights_go_with_the_labels_alone(tmp_path: Path) -> None:
    """They tell classes apart: what predicts neither reads them nor depends on them, what trains does."""
    weights = np.linspace(0.1, 1.9, N).astype(np.float32)
    _gammas(tmp_path / "with", weight=weights)
    _gammas(tmp_path / "without")
    data, plain = (Dataset.open(tmp_path / name) for name in ("with", "without"))
    np.testing.assert_allclose(data.weights, weights / weights.mean(), rtol=1e-6)
    assert plain.weights is None
    assert data.labels_fingerprint() != plain.labels_fingerprint()
    unlabelled = Dataset.open(tmp_path / "with", labels=False)
    assert unlabelled.weights is None
    assert unlabelled.fingerprint() == plain.fingerprint()
    plain.refuse_weighted("a search")
    with pytest.raises(InputError, match="a search counts all showers alike: simulate them without --rare"):
        unlabelled.refuse_weighted("a search")
    assert problems(tmp_path / "with") == []
    np.save(tmp_path / "with" / "weight.npy", weights[::-1])
    with pytest.raises(InputError, match=r"weight\.npy"):
        Dataset.open(tmp_path / "with")


def test_weights_are_ratios() -> None:
    """A constant factor changes no bit, ratios are those that were given, and no sum overflows."""
    weights = np.random.default_rng(0).lognormal(0, 2, 5000)
    ratios = weight_ratios(weights)
    assert ratios.mean() == pytest.approx(1, rel=1e-6)
    np.testing.assert_allclose(ratios, weights / weights.mean(), rtol=2**-24)
    for scale in (1e-300, 1e-12, 1e-6, 1 / 3, 7.0, 1e12, 1e300):
        np.testing.assert_array_equal(weight_ratios(weights * scale), ratios)
    np.testing.assert_array_equal(weight_ratios(np.full(7, 0.1)), np.ones(7))
    np.testing.assert_array_equal(weight_ratios(np.array([0.0, 3.0])), [0.0, 2.0])
    assert weight_ratios(np.array([1e-60, 1.0]))[0] == pytest.approx(2e-60, rel=1e-6), "small is not zero"


@pytest.mark.parametrize("scale", [2.0**-40, 2.0**-10, 2.0**30])
def test_a_factor_of_weight_npy_changes_nothing(scale: float, tmp_path: Path) -> None:
    weights = np.linspace(0.1, 1.9, N).astype(np.float32)
    for name, values in (("gamma_test", weights), ("scaled/gamma_test", weights * np.float32(scale))):
        _gammas(tmp_path / name, weight=values)
    one, other = (Dataset.open(tmp_path / name).weights for name in ("gamma_test", "scaled/gamma_test"))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, read_labels(tmp_path / "scaled", GAMMA).weights)


def test_targets_have_no_weights(tmp_path: Path) -> None:
    folder = _write(tmp_path / "d", weight=np.ones(N, np.float32))
    np.save(folder / str(ENERGY.label_file), np.full(N, 15.5, np.float32))
    with pytest.raises(InputError, match="weights, which task energy has none of"):
        Dataset.open(folder, ENERGY)


@pytest.mark.parametrize(("column", "value"), [("E", 3e15), ("Ze", 95.0), ("Ze", -5.0), ("Ne", 1e12), ("Nmu", -1.0)])
def test_impossible_quantities_are_found_in_folders_of_others(column: str, value: float, tmp_path: Path) -> None:
    folder = _write(tmp_path / "d")
    scalars = np.load(folder / "features.npy").astype(np.float32)
    scalars[3, SCALAR_NAMES.index(column)] = value
    scalars[4, SCALAR_NAMES.index("Az")] = 365.0
    np.save(folder / "features.npy", scalars)
    data = Dataset.open(folder, labels=False)
    assert [str(bad) for bad in data.unusable] == [f"features.npy: row 3, column {column} holds {value:g}"]
    assert np.flatnonzero(~data.usable).tolist() == [3]


def test_sizes_that_a_set_lacks_say_nothing_of_its_order() -> None:
    values = np.full(1000, np.nan)
    assert not ordering_by_values(values).is_ordered
    values[::2] = np.random.default_rng(1).random(500)
    assert not ordering_by_values(values).is_ordered
    values[::2] = np.sort(values[::2])
    assert ordering_by_values(values).is_ordered
