"""Raw files to dataset folders: the protocols' own rules, recomputed here in plain NumPy.

Simulated raw archives are read back by the converter, with arrival times that follow the shower front. Hadronic models
of one seed share no shower, and conversion spreads none over train and test.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from showerstack.runtime.errors import InputError
from showerstack.showers.archives.convert import COMPOSITION_IDS, convert, permutation
from showerstack.showers.archives.raw import stream_npz
from showerstack.showers.dataset import Dataset
from showerstack.showers.event_files import LEFT_OUT_SCHEMA
from showerstack.showers.front import LIGHT_M_PER_NS
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, Task
from showerstack.showers.simulation import load_settings
from showerstack.showers.simulation.blocks import BlockJob, SimulatedEvents, simulate_block
from showerstack.showers.simulation.fronts import arrival_times
from showerstack.showers.simulation.primaries import MODELS
from showerstack.showers.simulation.raw import simulate_raw
from showerstack.showers.source import is_simulated


def raw_mode(folder: Path, mode: str, n: int, seed: int, *, gamma: bool = False) -> dict[str, np.ndarray]:
    """Write one raw mode of ``n`` events; every second event reuses the shower of the one before.

    The first column is 1..5 as in the public files, or 0 (gamma) and 1.
    """
    rng = np.random.default_rng(seed)
    features = np.zeros((n, 10), np.float32)
    kind = rng.integers(1, 3 if gamma else 6, n)
    features[:, 0] = kind - 1 if gamma else kind
    features[:, 1] = rng.uniform(14, 17, n)
    features[:, 5] = rng.uniform(0, 40, n)
    features[:, 6] = rng.uniform(0, 360, n)
    features[:, 7] = rng.uniform(4.5, 6, n)
    features[:, 8] = rng.uniform(3.3, 5, n)
    features[:, 9] = rng.uniform(0.1, 1.6, n)
    truth = rng.uniform(0, 5, (n, 10)).astype(np.float32)
    truth[:, 1] = np.array([1, 14])[kind - 1] if gamma else np.array(COMPOSITION_IDS)[kind - 1]
    shower = [0, 4, 5, 6, 8]
    truth[1::2, shower] = truth[0::2, shower][: len(truth[1::2])]
    matrices = rng.integers(0, 200, (n, 16, 16, 3)).astype(np.float16)
    np.savez(folder / f"{mode}_features.npz", features=features)
    np.savez(folder / f"{mode}_true_features.npz", true_features=truth)
    np.savez_compressed(folder / f"{mode}_matrices.npz", matrices=matrices)
    return {"features": features, "truth": truth, "matrices": matrices}


def published(folder: Path, values: np.ndarray | None) -> np.ndarray:
    """Return rows of a converted folder in the order of the published files."""
    assert values is not None
    if not (folder / "order.npy").exists():
        assert Dataset.open(folder).protocol == "2026"
        return np.asarray(values)
    restored = np.empty_like(values)
    restored[np.load(folder / "order.npy")] = values
    return restored


def test_v2_split_cuts_labels_and_channels(tmp_path: Path) -> None:
    raws = [raw_mode(tmp_path, mode, 700, k) for k, mode in enumerate(("qgs_spectra", "epos_spectra"))]
    features, truth, matrices = (np.concatenate([r[key] for r in raws]) for key in ("features", "truth", "matrices"))
    order = np.arange(1400)
    np.random.default_rng(2026).shuffle(order)
    test, train = np.sort(order[:280]), np.sort(order[280:])
    f = features[test]
    test = test[(f[:, 5] < 30) & (f[:, 7] > 4.8) & (f[:, 9] > 0.2) & (f[:, 9] < 1.48)]

    raw_groups = []
    for folder, published in zip(convert(tmp_path, tmp_path / "out", COMPOSITION), (train, test), strict=True):
        made = Dataset.open(folder, COMPOSITION)
        assert made.labels is not None
        order = np.load(folder / "order.npy")
        assert not np.array_equal(order, np.arange(len(published)))
        rows = published[order]
        np.testing.assert_array_equal(made.matrices, matrices[rows][..., 1:])
        np.testing.assert_array_equal(made.scalars, features[rows][:, [1, 5, 6, 7, 8]].astype(np.float16))
        np.testing.assert_array_equal(made.labels, [COMPOSITION_IDS.index(int(i)) for i in truth[rows, 1]])
        assert made.age is None
        assert made.groups is not None
        what_happened = made.truth()
        for name, column in {"lg_energy": 0, "core_x_m": 2, "core_y_m": 3, "lg_ne": 6, "lg_nmu": 8}.items():
            np.testing.assert_array_equal(what_happened[name], truth[rows, column].astype(np.float64))
        np.testing.assert_array_equal(what_happened["mass"], np.array([1, 4, 12, 28, 56])[made.labels])
        assert what_happened["xmax"].is_nan().all()
        modes = pl.read_parquet(folder / "truth.parquet")["model"]
        assert (modes == pl.Series(np.where(rows < 700, "qgs_spectra", "epos_spectra"))).all()
        raw_groups += list(zip(made.groups.tolist(), (rows - rows % 2).tolist(), strict=True))
    showers = set(raw_groups)
    assert len(showers) == len({ours for ours, _ in showers}) == len({theirs for _, theirs in showers})
    assert any(ours != theirs for ours, theirs in showers), "numbers of showers follow the raw files' order"
    shared = np.intersect1d(train - train % 2, test - test % 2).size
    assert made.source["showers_in_both_splits"] == shared > 0


def test_v2_gamma_labels_come_from_the_true_particle(tmp_path: Path) -> None:
    modes = ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    raws = [raw_mode(tmp_path, mode, 60, k, gamma=True) for k, mode in enumerate(modes)]
    train, _ = convert(tmp_path, tmp_path / "out", GAMMA)
    ids = np.concatenate([r["truth"][:, 1] for r in raws])
    order = np.arange(180)
    np.random.default_rng(2026).shuffle(order)
    np.testing.assert_array_equal(
        published(train, Dataset.open(train).labels), np.where(ids[np.sort(order[36:])] == 1, 0, 1)
    )


def test_matched_split_is_the_published_one(tmp_path: Path) -> None:
    made = raw_mode(tmp_path, "qgs_spectra", 2000, 3)
    f = made["features"]
    mask = (f[:, 5] > 0) & (f[:, 5] < 30) & (f[:, 7] > 4.8) & (f[:, 9] > 0.2) & (f[:, 9] < 1.48) & (f[:, 8] > 3.6)
    passing = np.flatnonzero(mask)
    n = len(passing)
    first = torch.randperm(n, generator=torch.Generator().manual_seed(42)).numpy()
    values = first[n - int(0.3 * n) :]
    second = torch.randperm(len(values), generator=torch.Generator().manual_seed(42)).numpy()
    test = passing[values[second[len(values) - int(0.3 * len(values)) :]]]

    train_folder, test_folder = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")
    train_set, test_set = Dataset.open(train_folder), Dataset.open(test_folder)
    np.testing.assert_array_equal(published(test_folder, test_set.scalars), f[np.sort(test)][:, [1, 5, 6, 7, 8]])
    np.testing.assert_array_equal(published(test_folder, test_set.age), f[np.sort(test)][:, 9])
    np.testing.assert_array_equal(published(test_folder, test_set.labels), f[np.sort(test)][:, 0] - 1)
    assert train_set.part is not None
    assert len(train_set) + len(test_set) == n
    assert int(train_set.part.sum()) == len(values) - len(test)
    assert test_set.evaluation_cuts.name == "matched"


def test_split_of_2026_is_the_published_one(tmp_path: Path) -> None:
    made = raw_mode(tmp_path, "qgs_spectra", 2000, 3)
    f = made["features"]
    mask = (f[:, 5] > 0) & (f[:, 5] < 30) & (f[:, 7] > 4.8) & (f[:, 9] > 0.2) & (f[:, 9] < 1.48) & (f[:, 8] > 3.6)
    passing = np.flatnonzero(mask)
    n = len(passing)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(42)).numpy()
    test = passing[order[n - int(n * (1 - 0.7)) :]]
    train_folder, test_folder = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="2026")
    stored = np.load(test_folder / "features.npy")
    assert stored.dtype == np.load(test_folder / "matrices.npy").dtype == np.float32
    np.testing.assert_array_equal(published(test_folder, stored), f[test][:, [1, 5, 6, 7, 8, 9]])
    np.testing.assert_array_equal(
        published(test_folder, np.load(test_folder / "matrices.npy")), made["matrices"][test][..., 1:]
    )
    test_set = Dataset.open(test_folder)
    np.testing.assert_array_equal(published(test_folder, test_set.age), f[test][:, 9])
    np.testing.assert_array_equal(published(test_folder, test_set.labels), f[test][:, 0] - 1)
    assert test_set.protocol == "2026"
    assert test_set.evaluation_cuts.name == "matched"
    assert len(Dataset.open(train_folder)) == n - len(test)
    assert not (test_folder / "age.npy").exists()


@pytest.mark.parametrize("n", [0, 1, 2, 1_000, 100_003])
@pytest.mark.parametrize("seed", [0, 42, 2026])
def test_published_permutations_are_those_of_torch(n: int, seed: int) -> None:
    expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    np.testing.assert_array_equal(permutation(n, seed), expected)


def test_rounding_of_the_split_of_2026() -> None:
    n = 383_547
    assert n - int(n * (1 - 0.7)) == 268_483
    assert int(n * (1 - 0.7)) == 115_064


def test_gamma_of_2026_is_cut_after_the_split(tmp_path: Path) -> None:
    modes = ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    f = np.concatenate([raw_mode(tmp_path, mode, 200, k, gamma=True)["features"] for k, mode in enumerate(modes)])
    order = torch.randperm(600, generator=torch.Generator().manual_seed(2026)).numpy()
    n_test = int(600 * (1 - 0.8))
    test = order[600 - n_test :]
    f[test[3], 5] = 0.0
    mode = int(test[3]) // 200
    _replaced(tmp_path / f"{modes[mode]}_features.npz", "features", 5, f[200 * mode : 200 * mode + 200, 5])
    passes = (f[test, 5] > 0) & (f[test, 5] < 30) & (f[test, 7] > 4.8) & (f[test, 9] > 0.2) & (f[test, 9] < 1.48)
    test = test[passes]
    train_folder, test_folder = convert(tmp_path, tmp_path / "out", GAMMA, protocol="2026")
    assert len(Dataset.open(train_folder)) == 600 - n_test
    np.testing.assert_array_equal(np.load(test_folder / "labels_gamma.npy"), f[test, 0])
    assert Dataset.open(test_folder).evaluation_cuts.name == "test_2026"
    stored = np.load(test_folder / "features.npy")
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(published(test_folder, stored), f[test][:, [1, 5, 6, 7, 8]])
    assert Dataset.open(test_folder).age is None


@pytest.mark.parametrize("protocol", ["v2", "matched", "2026"])
def test_rows_do_not_follow_classes(tmp_path: Path, protocol: str) -> None:
    for k, mode in enumerate(("qgs_spectra", "epos_spectra")):
        made = raw_mode(tmp_path, mode, 1500, k)
        blocks = np.sort(made["features"][:, 0])
        _replaced(tmp_path / f"{mode}_features.npz", "features", 0, blocks)
        _replaced(
            tmp_path / f"{mode}_true_features.npz",
            "true_features",
            1,
            np.array(COMPOSITION_IDS)[blocks.astype(int) - 1],
        )
    for folder in convert(tmp_path, tmp_path / "out", COMPOSITION, protocol=protocol):
        labels = np.asarray(Dataset.open(folder, COMPOSITION).labels)
        same = float(np.mean(labels[1:] == labels[:-1]))
        assert same < 0.3, "neighbours are of one class as often as chance has it"


def _replaced(path: Path, key: str, column: int, values: np.ndarray) -> None:
    with np.load(path) as archive:
        array = archive[key]
    array[:, column] = values
    np.savez(path, **{key: array})


def _changed(folder: Path, kind: str, row: int, column: int, value: float) -> None:
    path = folder / f"qgs_spectra_{kind}.npz"
    with np.load(path) as archive:
        array = archive[kind]
    array[row, column] = value
    np.savez(path, **{kind: array})


def _passing(f: np.ndarray) -> np.ndarray:
    """Return the rows that pass the matched cuts."""
    passes = (f[:, 5] > 0) & (f[:, 5] < 30) & (f[:, 7] > 4.8) & (f[:, 9] > 0.2) & (f[:, 9] < 1.48) & (f[:, 8] > 3.6)
    return np.flatnonzero(passes)


def _left_out(folder: Path) -> pl.DataFrame:
    file = folder / "left_out.csv"
    return pl.read_csv(file) if file.exists() else pl.DataFrame(schema=LEFT_OUT_SCHEMA)


@pytest.mark.parametrize("value", [257, 0, 6, 2.5, -3, np.nan])
def test_rows_of_an_unknown_class_are_not_trained_on_and_not_tested(
    tmp_path: Path, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    f = raw_mode(tmp_path, "qgs_spectra", 900, 3)["features"]
    passing = _passing(f)
    order = torch.randperm(len(passing), generator=torch.Generator().manual_seed(42)).numpy()
    n_test = int(len(passing) * (1 - 0.7))
    train, test = passing[order[: len(order) - n_test]], passing[order[len(order) - n_test :]]
    for row in (train[11], test[5]):
        _changed(tmp_path, "features", int(row), 0, value)
    caplog.clear()
    folders = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="2026")
    message = caplog.messages
    assert len(message) == 2
    assert (
        f"composition_test is without 1 event(s) of unknown class (first: qgs_spectra_features.npz, row {test[5]})"
        in message[0]
    )
    assert "1 of" in message[1]
    (row,) = _left_out(folders[0]).iter_rows(named=True)
    assert (row["row"], row["file_row"], row["column"]) == (11, train[11], "column type")
    train_set, test_set = (Dataset.open(folder, COMPOSITION) for folder in folders)
    assert np.flatnonzero(~train_set.usable).tolist() == [11]
    np.testing.assert_array_equal(test_set.scalars, f[np.delete(test, 5)][:, [1, 5, 6, 7, 8]])
    with pytest.raises(InputError, match=rf"qgs_spectra_features\.npz: row {train[11]}, column type holds .*--strict"):
        convert(tmp_path, tmp_path / "strict", COMPOSITION, protocol="2026", strict=True)
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize("protocol", ["matched", "2026", "v2"])
@pytest.mark.parametrize(
    ("column", "name", "value"), [(1, "E", np.nan), (1, "E", np.inf), (1, "E", 0.0), (6, "Az", 1e4)]
)
def test_rows_with_impossible_quantities_stay_in_the_arrays_and_are_listed(
    tmp_path: Path, protocol: str, column: int, name: str, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    raw_mode(tmp_path, "epos_spectra", 400, 1)
    f = raw_mode(tmp_path, "qgs_spectra", 400, 0)["features"]
    rows = _passing(f)[[5, 9, 20, 21]].tolist()
    whole = convert(tmp_path, tmp_path / "before", COMPOSITION, protocol=protocol)
    for row in rows:
        _changed(tmp_path, "features", row, column, value)
    caplog.clear()
    folders = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol=protocol)
    message = caplog.messages
    result = pl.concat([_left_out(folder) for folder in folders])
    assert sorted(result["file_row"].to_list()) == rows
    assert set(result["column"]) == {f"column {name}"}
    for before, after in zip(whole, folders, strict=True):
        listed = _left_out(after)["row"].to_numpy()
        data = Dataset.open(after, COMPOSITION)
        assert len(data) == len(Dataset.open(before, COMPOSITION))
        np.testing.assert_array_equal(np.flatnonzero(~data.usable), np.sort(listed))
        stored = np.asarray(data.scalars)[listed, 0 if name == "E" else 2]
        np.testing.assert_array_equal(stored, np.full(len(listed), value).astype(stored.dtype))
        for file in ("matrices.npy", "labels_composition.npy"):
            if protocol == "2026":
                np.testing.assert_array_equal(np.load(before / file), np.load(after / file))
    assert len(message) == sum(_left_out(folder).height > 0 for folder in folders)
    with pytest.raises(InputError, match=rf"qgs_spectra_features\.npz: row \d+, column {name} holds .*--strict"):
        convert(tmp_path, tmp_path / "strict", COMPOSITION, protocol=protocol, strict=True)


def test_columns_in_other_units_are_refused(tmp_path: Path) -> None:
    f = raw_mode(tmp_path, "qgs_spectra", 400, 3)["features"]
    _replaced(tmp_path / "qgs_spectra_features.npz", "features", 1, 10 ** (f[:, 1] - 9))
    with pytest.raises(InputError, match=r"column E holds .*expected a number from 10 to 22 .*other units"):
        convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="2026")


def test_archives_of_another_task_are_refused(tmp_path: Path) -> None:
    for k, mode in enumerate(("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")):
        raw_mode(tmp_path, mode, 200, k)
    with pytest.raises(InputError, match=r"qgs-4_gm_pr_features\.npz: row .*no label of gamma.*another task"):
        convert(tmp_path, tmp_path / "out", GAMMA, protocol="2026")


def test_an_unknown_particle_is_left_out_of_v2(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for k, mode in enumerate(("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")):
        raw_mode(tmp_path, mode, 60, k, gamma=True)
    path = tmp_path / "LHC_gm_pr_true_features.npz"
    with np.load(path) as archive:
        truth = archive["true_features"]
    truth[7, 1] = np.nan
    np.savez(path, true_features=truth)
    caplog.clear()
    folders = convert(tmp_path, tmp_path / "out", GAMMA)
    message = caplog.messages
    listed = _left_out(folders[0])
    assert len(message) == 1
    if listed.height:
        assert listed.row(0)[1:4] == ("LHC_gm_pr_true_features.npz", 7, "column id")


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA])
def test_2026_needs_no_true_quantities_and_takes_any_number_format(
    tmp_path: Path, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    modes = ("qgs_spectra",) if task == COMPOSITION else ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    for k, mode in enumerate(modes):
        raw_mode(tmp_path, mode, 500, k, gamma=task == GAMMA)
    whole = convert(tmp_path, tmp_path / "whole", task, protocol="2026")
    for mode in modes:
        (tmp_path / f"{mode}_true_features.npz").unlink()
        for kind, foreign in (("matrices", np.asfortranarray), ("features", lambda a: a.astype(">f8"))):
            path = tmp_path / f"{mode}_{kind}.npz"
            with np.load(path) as archive:
                array = archive[kind]
            np.savez(path, **{kind: foreign(array)})
    caplog.clear()
    folders = convert(tmp_path, tmp_path / "out", task, protocol="2026")
    message = caplog.messages
    assert message == [
        f"{modes[0]}_true_features.npz is missing: repeated use of one shower cannot be seen (no groups, no truth)"
    ]
    for before, after in zip(whole, folders, strict=True):
        for name in ("matrices.npy", "features.npy", str(task.label_file)):
            assert (before / name).read_bytes() == (after / name).read_bytes()
        assert not (after / "groups.npy").exists()
        assert not Dataset.open(after, task).has_truth
    raw_mode(tmp_path, "epos_spectra", 30, 1)
    with pytest.raises(InputError, match=r"_true_features\.npz is missing: .* of protocol v2 takes its labels from it"):
        convert(tmp_path, tmp_path / "v2", task)


def test_v2_cuts_before_rounding_and_at_the_files_own_precision(tmp_path: Path) -> None:
    for k, mode in enumerate(("qgs_spectra", "epos_spectra")):
        f = raw_mode(tmp_path, mode, 200, k)["features"].astype(np.float64)
        f[:, [5, 9]] = 10.0, 1.0
        f[:, 7] = np.where(np.arange(200) % 2, 4.8 + 1e-9, 4.8)
        np.savez(tmp_path / f"{mode}_features.npz", features=f)
    _, test = convert(tmp_path, tmp_path / "out", COMPOSITION)
    order = np.arange(400)
    np.random.default_rng(2026).shuffle(order)
    assert len(Dataset.open(test, COMPOSITION)) == int((order[:80] % 2).sum())


def test_an_interrupted_conversion_goes_on_with_the_second_set(tmp_path: Path) -> None:
    raw_mode(tmp_path, "qgs_spectra", 600, 3)
    whole = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in whole]
    shutil.rmtree(whole[1])
    made = whole[0].stat().st_mtime_ns
    again = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")
    assert [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in again] == contents
    assert whole[0].stat().st_mtime_ns == made
    raw_mode(tmp_path, "qgs_spectra", 600, 4)
    with pytest.raises(InputError, match=r"composition_train exists already and differs in raw.*remove it"):
        convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")


def test_archives_that_unpack_without_end_are_refused_before_unpacking(tmp_path: Path) -> None:
    raw_mode(tmp_path, "qgs_spectra", 400, 3)
    np.savez_compressed(tmp_path / "qgs_spectra_features.npz", features=np.zeros((400_000, 10), np.float32))
    with pytest.raises(InputError, match=r"features\.npz: array 'features' unpacks to 16,000,128 bytes"):
        convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")
    with zipfile.ZipFile(tmp_path / "qgs_spectra_features.npz", "w") as archive:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50, 10)})
        archive.writestr("features.npy", head.getvalue() + 4000 * b"x")
    with pytest.raises(InputError, match=r"features\.npz: array 'features' of shape .*the archive holds 4,128"):
        convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")


def test_stream_gives_the_same_rows_as_loading(tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((103, 4, 2)).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", x=array)
    np.testing.assert_array_equal(np.concatenate(list(stream_npz(tmp_path / "a.npz", "x", 10))), array)


def test_refusals_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no protocol 'v3'"):
        convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="v3")
    with pytest.raises(InputError, match=r"qgs_spectra_matrices\.npz does not exist"):
        convert(tmp_path, tmp_path / "out", COMPOSITION)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(InputError, match=r"bad\.npz is damaged"):
        list(stream_npz(tmp_path / "bad.npz", "x"))
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(InputError, match="no array 'y'"):
        list(stream_npz(tmp_path / "a.npz", "y"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_bad_cells_are_listed_and_arrival_times_are_not_looked_at(tmp_path: Path, value: float) -> None:
    made = {mode: raw_mode(tmp_path, mode, 40, k) for k, mode in enumerate(("qgs_spectra", "epos_spectra"))}
    matrices = made["epos_spectra"]["matrices"]
    matrices[7, 1, 2, 1] = value
    matrices[8, 1, 2, 0] = value
    np.savez(tmp_path / "epos_spectra_matrices.npz", matrices=matrices)
    folders = convert(tmp_path, tmp_path / "out", COMPOSITION)
    in_test = np.arange(80)
    np.random.default_rng(2026).shuffle(in_test)
    assert 47 in in_test[:16]
    assert _left_out(folders[0]).height == 0
    (row,) = _left_out(folders[1]).iter_rows()
    assert row[1:4] == ("epos_spectra_matrices.npz", 7, "cell (1, 2), e/gamma deposit")
    with pytest.raises(
        InputError, match=r"epos_spectra_matrices\.npz: row 7, cell \(1, 2\), e/gamma deposit.*--strict"
    ):
        convert(tmp_path, tmp_path / "strict", COMPOSITION, strict=True)
    assert [path.name for path in (tmp_path / "strict").iterdir() if path.is_dir()] == ["composition_train"]


def test_true_energies_become_labels(tmp_path: Path) -> None:
    raws = [raw_mode(tmp_path, mode, 300, k) for k, mode in enumerate(("qgs_spectra", "epos_spectra"))]
    with pytest.raises(InputError, match=r"row 0 and .* no label of energy: .*in other units"):
        convert(tmp_path, tmp_path / "out", ENERGY)
    for mode, raw in zip(("qgs_spectra", "epos_spectra"), raws, strict=True):
        raw["truth"][:, 0] += 14
        np.savez(tmp_path / f"{mode}_true_features.npz", true_features=raw["truth"])
    truth = np.concatenate([raw["truth"] for raw in raws])
    order = np.arange(600)
    np.random.default_rng(2026).shuffle(order)
    made = Dataset.open(convert(tmp_path, tmp_path / "out", ENERGY)[0], ENERGY)
    published = np.sort(order[120:])[np.load(tmp_path / "out" / "energy_train" / "order.npy")]
    np.testing.assert_array_equal(np.asarray(made.labels), truth[published, 0])


def test_a_line_says_what_each_cut_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    features = raw_mode(tmp_path, "qgs_spectra", 300, 5)["features"]
    with np.load(tmp_path / "qgs_spectra_features.npz") as stored:
        odd = stored["features"]
    passing = (features[:, 5] < 30) & (features[:, 7] > np.float32(4.8)) & (features[:, 9] > np.float32(0.2))
    passing &= (features[:, 9] < np.float32(1.48)) & (features[:, 8] > np.float32(3.6))
    odd[np.flatnonzero(passing)[0], 1] = 0
    np.savez(tmp_path / "qgs_spectra_features.npz", features=odd)
    caplog.set_level("INFO")
    caplog.clear()
    train, test = convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="2026")
    lines = [line for line in caplog.messages if ": read " in line]
    left = {folder.name: len(Dataset.open(folder)) for folder in (train, test)}
    zenith = np.count_nonzero((features[:, 5] > 0) & (features[:, 5] < 30))
    for name, line in zip(left, lines, strict=True):
        assert line.startswith(f"{name}: read 300, Ze > 0 300, Ze < 30 {zenith}, ")
        assert f"Nmu > 3.6 {passing.sum()}, share of the {name[12:]}" in line.replace("training", "train")
        assert f"written {left[name]}" in line
    usable = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
    assert usable == passing.sum() - 1


@pytest.mark.parametrize("protocol", ["matched", "2026"])
def test_arrival_times_are_kept_on_request_beside_their_events(tmp_path: Path, protocol: str) -> None:
    raw = raw_mode(tmp_path, "qgs_spectra", 300, 5)
    raw["matrices"][:, 2, 3, 0] = np.inf
    np.savez(tmp_path / "qgs_spectra_matrices.npz", matrices=raw["matrices"])
    plain = convert(tmp_path, tmp_path / "plain", COMPOSITION, protocol=protocol)
    timed = convert(tmp_path, tmp_path / "timed", COMPOSITION, protocol=protocol, keep_arrival_times=True)
    row_of = {cells.tobytes(): row for row, cells in enumerate(raw["matrices"][..., 1:])}
    for without, folder in zip(plain, timed, strict=True):
        assert not (without / "arrival_ns.npy").exists()
        data = Dataset.open(folder)
        assert data.fingerprint() != Dataset.open(without).fingerprint(), "learners see the times"
        for name in ("matrices.npy", "features.npy"):
            assert (folder / name).read_bytes() == (without / name).read_bytes()
        times = np.load(folder / "arrival_ns.npy")
        assert times.dtype == np.float16
        rows = [row_of[cells.astype(np.float16).tobytes()] for cells in np.asarray(data.matrices)]
        expected = raw["matrices"][rows][..., 0]
        np.testing.assert_array_equal(times, np.where(np.isfinite(expected), expected, np.nan))
    with pytest.raises(InputError, match="arrival_times"):
        convert(tmp_path, tmp_path / "plain", COMPOSITION, protocol=protocol, keep_arrival_times=True)


def test_a_mode_that_is_missing_is_named_with_those_that_are_needed(tmp_path: Path) -> None:
    raw_mode(tmp_path, "qgs_spectra", 20, 5)
    with pytest.raises(InputError, match="no archives of epos_spectra: protocol v2 needs qgs_spectra and epos_spectra"):
        convert(tmp_path, tmp_path / "out", COMPOSITION)


def test_raw_archives_convert_to_both_tasks(tmp_path: Path) -> None:
    files = simulate_raw(GAMMA, tmp_path / "raw", 1_500, reuse=3)
    assert len(files) == 9
    folders = convert(tmp_path / "raw", tmp_path / "sets", GAMMA)
    train = Dataset.open(folders[0])
    train.validate()
    assert set(np.unique(train.labels)) == {0, 1}
    # Reused showers are recognised by their true quantities.
    assert len(np.unique(train.groups)) < 0.7 * len(train)


def test_columns(tmp_path: Path) -> None:
    simulate_raw(COMPOSITION, tmp_path, 300)
    with np.load(tmp_path / "qgs_spectra_features.npz") as archive:
        features = archive["features"]
    with np.load(tmp_path / "qgs_spectra_true_features.npz") as archive:
        truth = archive["true_features"]
    with np.load(tmp_path / "qgs_spectra_matrices.npz") as archive:
        matrices = archive["matrices"]
    assert features.shape == truth.shape == (300, 10)
    assert set(features[:, 0]) == {1, 2, 3, 4, 5}
    ids = {1: 14, 2: 402, 3: 1206, 4: 2814, 5: 5626}
    assert [ids[int(kind)] for kind in features[:, 0]] == truth[:, 1].tolist()
    assert features[:, 4] == pytest.approx(np.hypot(features[:, 2], features[:, 3]), rel=1e-5)
    assert np.isnan(truth[:, [7, 9]]).all()
    assert ((matrices[..., 0] > 0) == (matrices[..., 1] > 0)).all()


def test_existing_archives_are_kept(tmp_path: Path) -> None:
    (tmp_path / "epos_spectra_features.npz").write_text("mine")
    with pytest.raises(InputError, match=r"epos_spectra_features\.npz exists already"):
        simulate_raw(COMPOSITION, tmp_path, 10)


def test_only_simulated_archives_are_overwritten(tmp_path: Path) -> None:
    simulate_raw(COMPOSITION, tmp_path, 20)
    with pytest.raises(InputError, match=r"exists already, made otherwise: .* overwrite it"):
        simulate_raw(COMPOSITION, tmp_path, 20, seed=2)
    simulate_raw(COMPOSITION, tmp_path, 20, seed=2, overwrite=True)
    public = tmp_path / "epos_spectra_features.npz"
    np.savez(public, features=np.zeros((20, 10), np.float32))
    for overwrite in (False, True):
        with pytest.raises(InputError, match=r"epos_spectra_features\.npz exists already and was not simulated here"):
            simulate_raw(COMPOSITION, tmp_path, 20, seed=2, overwrite=overwrite)
    with np.load(public) as archive:
        assert archive.files == ["features"]


def test_an_interrupted_simulation_goes_on(tmp_path: Path) -> None:
    whole = {file.name: file.read_bytes() for file in simulate_raw(COMPOSITION, tmp_path, 20)}
    (tmp_path / "epos_spectra_features.npz").unlink()
    kept = (tmp_path / "qgs_spectra_matrices.npz").stat().st_mtime_ns
    simulate_raw(COMPOSITION, tmp_path, 20)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == whole
    assert (tmp_path / "qgs_spectra_matrices.npz").stat().st_mtime_ns == kept


def test_columns_of_fortran_order_are_read_to_the_last_event(tmp_path: Path) -> None:
    table = np.arange(86.0).reshape(43, 2)
    np.savez_compressed(tmp_path / "a.npz", features=np.asfortranarray(table), rows=table)
    for key in ("features", "rows"):
        blocks = list(stream_npz(tmp_path / "a.npz", key, events_at_once=10))
        assert [len(block) for block in blocks] == [10, 10, 10, 10, 3]
        np.testing.assert_array_equal(np.concatenate(blocks), table)


def test_archives_of_two_seeds_never_mix(tmp_path: Path) -> None:
    for seed in (1, 2):
        simulate_raw(COMPOSITION, tmp_path / str(seed), 40, seed=seed)
    for name, message in (
        ("qgs_spectra_features.npz", "qgs_spectra_features.* and qgs_spectra_matrices.npz beside it were not made"),
        ("epos_spectra_*.npz", "epos_spectra_matrices.* and qgs_spectra_matrices.npz beside it were not made together"),
    ):
        mixed = shutil.copytree(tmp_path / "1", tmp_path / name)
        for file in (tmp_path / "2").glob(name):
            shutil.copy(file, mixed)
        with pytest.raises(InputError, match=message):
            convert(mixed, tmp_path / "sets", COMPOSITION)


def test_what_was_simulated_stays_marked(tmp_path: Path) -> None:
    simulate_raw(COMPOSITION, tmp_path, 400, seed=3)
    for protocol in ("v2", "matched"):
        for folder in convert(tmp_path, tmp_path / protocol, COMPOSITION, protocol=protocol):
            source = Dataset.open(folder).source
            assert is_simulated(source)
            assert (source["seed"], source["world"], source["protocol"]) == (3, "default", protocol)


def test_front_sweeps_across_the_array() -> None:
    events = simulate_block(BlockJob(COMPOSITION, "train", 4, "qgs", "test", load_settings()), 0)
    times = arrival_times(events, np.random.default_rng(1))
    primaries = events.showers.primaries
    k = int(np.argmax(primaries.zenith_deg[events.rows] * (events.event.lg_ne > 5.5)))
    row = events.rows[k]
    hit = times[k] > 0
    x, y = np.meshgrid((np.arange(16) - 7.5) * 13.0, (np.arange(16) - 7.5) * 13.0)
    azimuth, zenith = np.radians(primaries.azimuth_deg[row]), np.radians(primaries.zenith_deg[row])
    towards = (x * np.cos(azimuth) + y * np.sin(azimuth))[hit]
    slope = np.polyfit(towards, times[k][hit], 1)[0]
    assert slope == pytest.approx(-np.sin(zenith) / LIGHT_M_PER_NS, abs=0.25)


def twins(first: SimulatedEvents, second: SimulatedEvents) -> int:
    """Count events of the first that have the direction, the core and the class of one of the second."""

    def place(events: SimulatedEvents) -> np.ndarray:
        truth = events.truth
        columns = ("zenith_deg", "azimuth_deg", "core_x_m", "core_y_m")
        return np.column_stack([*(truth[name].to_numpy() for name in columns), 100.0 * events.labels])

    distance = np.abs(place(first)[:, None] - place(second)[None]).max(axis=2)
    return int((distance.min(axis=1) < 0.05).sum())


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=lambda task: task.name)
def test_models_of_one_seed_are_independent(task: Task) -> None:
    settings, models = load_settings(), (*MODELS, "mix")
    entries = {model: simulate_block(BlockJob(task, "train", 5, model, "test", settings), 0) for model in models}
    assert twins(entries["qgs"], entries["qgs"]) == len(entries["qgs"]) > 100, "the finder knows a copy"
    for model in ("epos", "sibyll", "mix"):
        assert twins(entries[model], entries["qgs"]) == 0


def test_groups_are_the_showers_of_each_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Showers keep the number of their first raw row, so that their energies can be looked up.
    monkeypatch.setattr("showerstack.showers.archives.convert._renumber", lambda groups, content: groups)
    simulate_raw(COMPOSITION, tmp_path / "raw", 900, reuse=3)
    truth = []
    for mode in ("qgs_spectra", "epos_spectra"):
        with np.load(tmp_path / "raw" / f"{mode}_true_features.npz") as archive:
            truth.append(archive["true_features"])
    energy = np.concatenate(truth)[:, 0]
    groups = [np.asarray(Dataset.open(folder).groups) for folder in convert(tmp_path / "raw", tmp_path, COMPOSITION)]
    for rows in groups:
        assert np.array_equal(np.unique(rows).size, np.unique(energy[rows]).size), "a group is one shower"
    assert set(energy[:900]).isdisjoint(energy[900:]), "no shower is in two modes"
    assert np.intersect1d(*groups).size == 0, "no shower is in train and test"


def test_modes_that_copy_each_other_are_refused(tmp_path: Path) -> None:
    simulate_raw(COMPOSITION, tmp_path, 300)
    for kind in ("matrices", "features", "true_features"):
        with np.load(tmp_path / f"qgs_spectra_{kind}.npz") as archive:
            array = archive[kind]
        for mode in ("qgs_spectra", "epos_spectra"):
            np.savez(tmp_path / f"{mode}_{kind}.npz", **{kind: array})
    with pytest.raises(InputError, match=r"epos_spectra_true_features\.npz.*300 of 300 showers .* qgs_spectra"):
        convert(tmp_path, tmp_path / "sets", COMPOSITION)
