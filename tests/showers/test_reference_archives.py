"""Every number of converted, read and listed archives, beside the numbers they gave before."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import polars as pl
import pytest
from polars import selectors

from showerstack.runtime.errors import InputError
from showerstack.showers.archives import convert as conversion
from showerstack.showers.archives import download, formats, kcdc, raw
from showerstack.showers.archives import run_list as run_lists
from showerstack.showers.archives.convert import (
    COMPOSITION_IDS,
    RANGES,
    SPLITS,
    RawEvents,
    convert,
    permutation,
    shuffled_order,
    true_quantities,
)
from showerstack.showers.archives.folders import DatasetFolders, unlabelled_in
from showerstack.showers.archives.formats import DEPOSITS, LABEL, convert_foreign
from showerstack.showers.archives.kcdc import stations_by_cores
from showerstack.showers.archives.measured import (
    AzimuthConvention,
    MeasuredReader,
    azimuth_convention,
    convert_measured,
    front_azimuth,
)
from showerstack.showers.archives.raw import SimulatedReader, read_times, stream_npz
from showerstack.showers.archives.run_list import MEANS, dead_detectors, means_of, run_list
from showerstack.showers.archives.station_lists import StationLists, array_of_stations
from showerstack.showers.array import KASCADE
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, Task
from tests.references import summary

Reference = Callable[..., None]
MODES = {"composition": ("qgs_spectra", "epos_spectra"), "gamma": ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")}


def raw_columns(n: int, seed: int, *, gamma: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return reconstructed and true columns (n, 10) of a mode; showers are thrown twice, a few columns are damaged."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(1, 3 if gamma else 6, n)
    features, truth = np.zeros((2, n, 10), np.float32)
    features[:, 0] = kind - 1 if gamma else kind
    low = np.array([14, -80, -80, 0, 0.5, 0, 4.6, 3.4, 0.15])
    high = np.array([17, 80, 80, 90, 33, 360, 6.5, 5.5, 1.5])
    features[:, 1:] = rng.uniform(low, high, (n, 9))
    truth[:] = rng.uniform(14, 17, (n, 10))
    truth[:, 1] = np.array([1, 14])[kind - 1] if gamma else np.array(COMPOSITION_IDS)[kind - 1]
    truth[1::2, [0, 4, 5, 6, 8]] = truth[0::2, [0, 4, 5, 6, 8]][: n // 2]
    features[5, 0], truth[5, 1] = 9.0, 3.0  # a class that nobody knows
    features[9, 8], features[11, 7] = 12.5, -0.1  # in other units
    features[13, 8], features[15, 1] = 12.0, 10.0  # at the limits
    truth[3, 9], truth[4, 9], truth[6, 7], truth[7, 8] = -np.inf, np.inf, np.nan, np.inf
    return features, truth


def write_mode(folder: Path, mode: str, n: int, seed: int, *, gamma: bool = False) -> None:
    """Write the archives of a mode; one grid has a cell that is no deposit."""
    features, truth = raw_columns(n, seed, gamma=gamma)
    grids = np.random.default_rng(seed).exponential(40.0, (n, 16, 16, 3)).astype(np.float32)
    grids[17, 3, 4, 1], grids[19, 3, 4, 0] = -1.0, np.inf
    np.savez(folder / f"{mode}_features.npz", features=features)
    np.savez(folder / f"{mode}_true_features.npz", true_features=truth)
    np.savez(folder / f"{mode}_matrices.npz", matrices=grids)


def moments(values: Any) -> Any:
    """Return moments of arrays, by column where there are two dimensions or more."""
    values = np.asarray(values, np.float64)
    return summary(values) if values.ndim == 1 else [summary(values[..., k]) for k in range(values.shape[-1])]


def of_folder(folder: Path) -> dict[str, Any]:
    """Return the moments of all files of a dataset folder, and what could not be used."""
    got: dict[str, Any] = {path.stem: moments(np.load(path)) for path in sorted(folder.glob("*.npy"))}
    if (folder / "truth.parquet").exists():
        table = pl.read_parquet(folder / "truth.parquet")
        got["truth"] = [summary(table.select(kind).to_numpy()) for kind in (selectors.float(), selectors.integer())]
    if (folder / "left_out.csv").exists():
        table = pl.read_csv(folder / "left_out.csv")
        got["left out"] = {
            one.name: summary(one.cast(pl.Float64).to_numpy()) for one in table if one.dtype.is_numeric()
        }
    source = json.loads((folder / "source.json").read_text()) if (folder / "source.json").exists() else {}
    return got | {name: value for name, value in source.items() if not isinstance(value, str) and name != "array"}


CONVERSIONS: dict[str, tuple[Task, str]] = {
    "v2 composition": (COMPOSITION, "v2"),
    "v2 gamma": (GAMMA, "v2"),
    "v2 energy": (ENERGY, "v2"),
    "matched composition": (COMPOSITION, "matched"),
    "2026 composition": (COMPOSITION, "2026"),
    "2026 gamma": (GAMMA, "2026"),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name: str, reference: Reference, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All files of the sets, and the numbers of all remarks and cut flows."""
    task, protocol = CONVERSIONS[name]
    for k, mode in enumerate(MODES[str(task.primaries)]):
        write_mode(tmp_path, mode, 260 - 20 * k, k, gamma=task is GAMMA)
    with caplog.at_level(logging.INFO):
        folders = convert(tmp_path, tmp_path / "out", task, protocol=protocol, keep_arrival_times=True)
    words = [int(word) for line in caplog.messages for word in re.findall(r" (\d+)", line)]
    reference({"words": words} | {folder.name: of_folder(folder) for folder in folders})


@pytest.mark.parametrize("together", [False, True])
def test_splits(together: bool, reference: Reference) -> None:
    features, truth = raw_columns(401, 41)
    groups = conversion._groups(truth)
    for row, column, value in ((20, 5, 30.0), (21, 7, 4.8), (22, 9, 0.2), (23, 9, 1.48), (24, 8, 3.6), (25, 5, 0.0)):
        features[row, [5, 7, 8, 9]] = 10.0, 5.5, 4.5, 1.0
        features[row, column] = value
    got = {}
    for task in (COMPOSITION, GAMMA):
        for protocol, split in SPLITS.items():
            for one in split(task, features, groups, together=together):
                part = [] if one.part is None else moments(one.part)
                got[f"{protocol} {task.name} {one.name}"] = [moments(one.rows), part, [count for _, count in one.flow]]
    reference(got)


def test_rows_of_archives(reference: Reference, tmp_path: Path) -> None:
    """Groups, true quantities, permutations, and rows at the limits of what air showers have."""
    features, truth = raw_columns(60, 42)
    for k in range(2):
        write_mode(tmp_path, f"mode{k}", 30, 50 + k)
    archives = [SimulatedReader.open(tmp_path, f"mode{k}") for k in range(2)]
    labels, known = np.zeros(60, np.int8), np.ones(60, bool)
    events = RawEvents(archives, features, labels, known, conversion._groups(truth), truth)
    assert [events.locate(row, "features")[1] for row in (0, 29, 30, 59)] == [0, 29, 0, 29]
    with pytest.raises(IndexError):
        events.locate(60, "features")
    table = true_quantities(truth)
    reference(
        {
            "groups": moments(events.groups),
            "truth": {one.name: summary(one.to_numpy()) for one in table},
            "permutations": [moments(permutation(n, seed)) for n, seed in ((0, 1), (1, 1), (2, 7), (500, 42))],
            "shuffled": moments(shuffled_order(50, "content")),
            "ranges": RANGES,
            "streams": [moments(block) for block in stream_npz(archives[0].path("features"), "features", 13)],
            "chunks": [
                {name: summary(values) for name, values in chunk.items()}
                for chunk in archives[0].chunks(["E", "Age", DEPOSITS])
            ],
            "times": summary(raw.arrival_times(np.array([[[[1.0]], [[1e6]], [[np.nan]], [[-3.0]]]]))),
        }
    )


def test_a_set_of_other_units_is_refused(tmp_path: Path) -> None:
    """A quarter of the rows may be out of range, more may not; the same for unknown classes."""
    for bad, message in (((0, 9.0), "no label"), ((5, 91.0), "other units")):
        for n_bad, refused in ((25, False), (26, True)):
            folder = tmp_path / f"{bad[0]} {n_bad}"
            folder.mkdir()
            features = np.tile(np.float32([1, 15, 0, 0, 0, 20, 10, 5.5, 4.5, 1.0]), (100, 1))
            truth = (
                np.tile(np.float32([15, 14, 0, 0, 20, 10, 5.5, 0, 4.5, 0]), (100, 1)) + np.arange(100)[:, None] / 1e3
            )
            split = conversion.Split("composition_train", np.arange(100))
            features[:n_bad, bad[0]] = bad[1]
            np.savez(folder / "qgs_spectra_features.npz", features=features)
            np.savez(folder / "qgs_spectra_matrices.npz", matrices=np.zeros((100, 16, 16, 3), np.float32))
            archives = [SimulatedReader.open(folder, "qgs_spectra")]
            events = RawEvents(archives, features, features[:, 0] - 1, features[:, 0] == 1, None, truth)

            def used(events: RawEvents = events, split: conversion.Split = split) -> int:
                conversion._with_labels(COMPOSITION, events, split)
                return len(conversion._bad_scalars(COMPOSITION, "2026", events, split, strict=False))

            if refused:
                with pytest.raises(InputError, match=message):
                    used()
            else:
                assert used() == n_bad


def test_copies_of_showers_between_modes(tmp_path: Path) -> None:
    """One in a hundred showers may agree by chance, more may not."""
    archives = [SimulatedReader(tmp_path, f"mode{k}", 1000, None, "") for k in range(2)]
    for n_copies, refused in ((10, False), (11, True)):
        truth = [raw_columns(1000, seed)[1] for seed in (1, 2)]
        truth[1][:n_copies] = truth[0][:n_copies]
        if refused:
            with pytest.raises(InputError, match="11 of 1000 showers"):
                conversion._refuse_copies(archives, truth)
        else:
            conversion._refuse_copies(archives, truth)


def test_modes_of_one_making(tmp_path: Path) -> None:
    """What all modes say alike is kept; a mode of another seed, or of another origin, is refused."""

    def said(*sources: dict[str, Any] | None) -> dict[str, Any] | None:
        return raw.common_source([SimulatedReader(tmp_path, "m", 1, source, "") for source in sources])

    one, two = {"seed": 1, "mode": "a", "model": "qgs"}, {"seed": 1, "mode": "b", "model": "epos"}
    assert said(one, two) == {"seed": 1, "model": "qgs+epos"}
    assert said(None, None) is None
    for other in ({**two, "seed": 2}, None):
        with pytest.raises(InputError, match="not made together"):
            said(one, other)


def test_permutations_of_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 2^32 / 20 rows on torch permutes otherwise: refused before anything is drawn; one row less is drawn."""

    class Drawn(Exception):
        pass

    def drawing(seed: int) -> None:
        raise Drawn

    monkeypatch.setattr(np.random, "RandomState", drawing)
    limit = (2**32 - 1) // 20
    with pytest.raises(InputError, match="fewer than 214,748,364"):
        permutation(limit, 1)
    with pytest.raises(Drawn):
        permutation(limit - 1, 1)


def test_forms_of_archives(tmp_path: Path) -> None:
    """Columns in Fortran order, what next to do with modes, and archives that are none."""
    assert raw.n_columns(tmp_path) == 0
    features, _ = raw_columns(30, 49)
    np.savez(tmp_path / "f_features.npz", features=np.asfortranarray(features))
    blocks = list(stream_npz(tmp_path / "f_features.npz", "features", 13))
    np.testing.assert_array_equal(np.concatenate(blocks), features)
    assert [len(block) for block in blocks] == [13, 13, 4]
    assert raw.n_columns(tmp_path) == 10
    np.savez(tmp_path / "f_features.npz", features=features[:, 0])
    assert raw.n_columns(tmp_path) == 0
    np.savez(tmp_path / "t_extra_features.npz", extra_features=np.zeros((30, 9)))
    with pytest.raises(InputError, match="expected rows of objects"):
        read_times(tmp_path / "t_extra_features.npz", 30)
    write_mode(tmp_path, "qgs_spectra", 20, 1)
    commands = conversion.FORMAT.next_commands(tmp_path)
    assert ["matched" in one for one in commands] == [False, True], commands
    for mode in MODES["composition"]:
        write_mode(tmp_path, mode, 20, 1)
        (tmp_path / f"{mode}_true_features.npz").unlink()
    assert all("v2" not in one for one in conversion.FORMAT.next_commands(tmp_path))


class Listed:
    """Events as any format gives them."""

    name, n_events, array, is_simulated = "listed", 24, KASCADE, True
    units = dict.fromkeys(["E", "Ze", "Az", "Ne", "Nmu", "Age", "Xc", "Yc", "Gt", "Mt", DEPOSITS, LABEL], "")

    def chunks(self, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield two chunks."""
        rng = np.random.default_rng(50)
        low, high = np.array([14, 0, 0, 4, 3, 0.2, -90, -90]), np.array([17, 40, 360, 6, 5, 1.4, 90, 90])
        for _ in range(2):
            values = rng.uniform(low, high, (12, 8))
            chunk = dict(zip(["E", "Ze", "Az", "Ne", "Nmu", "Age", "Xc", "Yc"], values.T, strict=True))
            chunk |= {"Gt": np.arange(12.0) + 5, "Mt": np.full(12, 4.2e8), LABEL: np.arange(12) % 2}
            grids = rng.exponential(30, (12, 16, 16, 2))
            grids[3, 2, 2, 1] = -1.0
            chunk["E"][5] = np.nan
            yield {name: (chunk | {DEPOSITS: grids})[name] for name in names}


@pytest.mark.parametrize("task", [None, GAMMA])
def test_events_of_other_formats(task: Task | None, reference: Reference, tmp_path: Path) -> None:
    told: list[str] = []
    folder = formats.write_set(Listed(), tmp_path, kcdc.FORMAT, task, told.append)
    of_times, of_rows = told
    assert of_times.startswith("listed: half of the event times are below 10.5, "), "they count from the run's start"
    assert of_rows.startswith("4 of 24 rows")
    bare = Listed()
    bare.units = {name: "" for name in Listed.units if name != "Az"}
    table = pl.read_parquet(formats._table(bare, tmp_path / f"{bare.name}.parquet", tmp_path, told.append))
    assert table.columns == [name for name in bare.units if name != DEPOSITS]
    assert table.height == 24
    elsewhere = Listed()
    elsewhere.name, elsewhere.array = "elsewhere", KASCADE.without([4], [])
    other = formats.write_set(elsewhere, tmp_path, kcdc.FORMAT, task, told.append)
    stems = {file.stem for file in other.glob("*.npy")}
    assert stems == {"matrices", "features"} | ({"labels_gamma"} if task else set()), "cores are counted from elsewhere"
    assert np.load(other / "features.npy").shape == (24, 5)
    got = of_folder(folder)
    assert got["times"]["mean"] == pytest.approx(10.92, abs=1e-9)
    reference(got)


def write_run(folder: Path, run: str, n: int, seed: int) -> None:
    """Write the archives of a measured run with plane fronts, a dead station and damaged rows."""
    rng = np.random.default_rng(seed)
    low = np.array([14, -80, -80, 5, 0, 4.7, 3.4, 0.15])
    features = rng.uniform(low, [17, 80, 80, 31, 360, 6.5, 5.5, 1.5], (n, 8)).astype(np.float32)
    features[2, 0], features[4, 1], features[5, 1], features[6, 2] = 22.5, 200.5, 200.0, -201.0
    grids = rng.exponential(40.0, (n, 16, 16, 3)).astype(np.float32) * (rng.random((n, 16, 16, 3)) < 0.6)
    grids[..., 1] *= KASCADE.has_station
    grids[..., 2] *= KASCADE.has_muon
    grids[:, 2, 3, 1:], grids[:, 0, 7, 2] = 0.0, 0.0
    grids[8, 1, 1, 1] = -5.0
    np.savez(folder / f"{run}_matrices.npz", matrices=grids)
    np.savez(folder / f"{run}_features.npz", features=features)
    table = np.zeros((n, 9), object)
    start = datetime(2001, 2, 3, 4, 5, 6, 500_000) + timedelta(hours=seed)
    times = [start + timedelta(seconds=3.7 * k) for k in range(n)]
    times[1] = times[1].replace(tzinfo=timezone(timedelta(hours=2)))
    table[:, 8] = times
    np.savez(folder / f"{run}_extra_features.npz", extra_features=table)


@pytest.mark.parametrize("protocol", ["v2", "matched", "2026"])
def test_measured_runs(protocol: str, reference: Reference, tmp_path: Path) -> None:
    for k in range(3):
        write_run(tmp_path, f"00400{k}", 130 + 10 * k, 60 + k)
    told: list[tuple[int, int]] = []

    @contextmanager
    def bars(title: str, unit: str) -> Iterator[Callable[..., None]]:
        yield lambda done, total, *_: told.append((done, total))

    late = protocol == "v2"
    done = convert_measured(
        tmp_path, tmp_path / "out", protocol=protocol, times=True, keep_arrival_times=late, bars=bars
    )
    assert told == [(1, 2), (2, 2)]
    sources = [json.loads((folder / "source.json").read_text()) for folder in done.folders]
    assert [folder.name for folder in done.folders] == ["004000", "004001"]
    runs = run_list(done.folders)
    got: dict[str, Any] = {folder.name: of_folder(folder) for folder in done.folders}
    got["list"] = {one.name: one.to_numpy() for one in runs if one.dtype.is_numeric()}
    seconds = read_times(tmp_path / "004000_extra_features.npz", 130)
    reader = MeasuredReader.open(tmp_path, "004001")
    chunks = [{name: summary(values) for name, values in one.items()} for one in reader.chunks(["Xc", "Age"])]
    got["means"] = [means_of(source["summary"]) for source in sources]
    reference(got | {"seconds": summary(seconds - 981_000_000), "chunks": chunks})


def test_runs_that_are_off(reference: Reference) -> None:
    rng = np.random.default_rng(43)
    means, errors = rng.normal(5, 0.2, (9, 3)), rng.uniform(0.01, 0.1, (9, 3))
    means[2, 0], means[4, 1], means[6, 2] = 7.0, 6.05, 3.0
    off = run_lists._quantities_off(means, errors, ("a", "b", "c"))
    limits = [
        [bool(one) for one in run_lists._quantities_off(means + k * np.eye(9, 3), errors, "abc")]
        for k in np.arange(0, 2, 0.1)
    ]
    reference({"means": len(MEANS), "off": [len(one) for one in off], "limits": np.array(limits).sum(axis=1)})


def test_dead_detectors_by_their_hits(reference: Reference) -> None:
    """Numbers of hits around the least that make a detector without any dead, rings without hits among them."""
    got = {}
    for level in (20, 27, 28, 29, 54, 56, 80):
        hits = np.zeros(KASCADE.grid_shape, int)
        hits[..., 0] = KASCADE.has_station * (level + KASCADE.square_ring)
        hits[..., 1] = KASCADE.has_muon * (level + KASCADE.square_ring // 2)
        hits[::5, ::3] *= 10
        hits[2, 3], hits[0, 7, 1], hits[5, 5, 0] = 0, 0, 0
        hits[..., 1] *= KASCADE.square_ring != 6
        got[str(level)] = {name: [len(cells), sum(cells)] for name, cells in dead_detectors(hits).items()}
    reference(got)


def test_fronts_and_conventions(reference: Reference) -> None:
    """Planes through arrival times with late stations; clockwise, turned and unrelated azimuths."""
    rng = np.random.default_rng(44)
    n = 60
    azimuth, zenith = rng.uniform(0, 360, n), rng.uniform(5, 40, n)
    zenith[7] = 10.0
    x, y = KASCADE.x_m, KASCADE.y_m
    angle = np.radians(azimuth)[:, None, None]
    plane = -(x * np.cos(angle) + y * np.sin(angle)) * np.sin(np.radians(zenith))[:, None, None] / 0.3
    times = plane + rng.normal(0, 3, plane.shape) + (rng.random(plane.shape) < 0.1) * rng.uniform(60, 400, plane.shape)
    hit = rng.random(plane.shape) < 0.3
    hit[:4], hit[0, 0, :7], hit[1, :2, :4], hit[2, :3, :3] = False, True, True, True
    times[5, 3, 3] = np.nan
    front = front_azimuth(times, hit, x, y)
    found = {
        "same": azimuth_convention(front, azimuth, zenith),
        "compass": azimuth_convention(front, (90 - azimuth) % 360, zenith),
        "turned": azimuth_convention(front, (azimuth + 15) % 360, zenith),
        "a little less": azimuth_convention(front, azimuth - 0.02, zenith),
        "unrelated": azimuth_convention(front, rng.uniform(0, 360, n), zenith),
        "none": azimuth_convention(front * np.nan, azimuth, zenith),
    }

    def of(one: AzimuthConvention) -> list[Any]:
        errors = [] if one.n_events == 0 else [one.offset_error_deg]
        return [vars(one), one.significance, errors, "as in" in one.words, "not as" in one.words, "no rel" in one.words]

    edge = [
        AzimuthConvention(n, 1, offset, r).words for n, offset, r in ((50, 5.0, 0.9), (50, 4.9, 0.5), (49, 0.0, 0.5))
    ]
    assert front_azimuth(times, hit & False, x, y) == pytest.approx(np.full(n, np.nan), nan_ok=True)
    reference(
        {"front": summary(front), "few": front[:4]}
        | {name: of(one) for name, one in found.items()}
        | {"edge": [["not as" in one, "no rel" in one] for one in edge]}
    )


def page(*keys: str, token: str | None = None, truncated: str | None = None) -> bytes:
    """Return a page of a bucket's list."""
    parts = [f"<Contents><Key>{key}</Key></Contents>" for key in keys]
    parts += [f"<NextContinuationToken>{token}</NextContinuationToken>"] if token else []
    parts += [f"<IsTruncated>{truncated}</IsTruncated>"] if truncated else []
    return f"<ListBucketResult>{''.join(parts)}</ListBucketResult>".encode()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[str]]:
    """Answers in place of a server: a function that takes them and returns the list of addresses asked for."""

    def answering(answers: Any) -> list[str]:
        addresses: list[str] = []

        def opened(url: str, timeout: float) -> io.BytesIO:
            addresses.append(url)
            answer = answers[min(len(addresses), len(answers)) - 1]
            if isinstance(answer, Exception):
                raise answer
            return io.BytesIO(answer)

        monkeypatch.setattr(urllib.request, "urlopen", opened)
        return addresses

    return answering


def test_lists_of_buckets(asked: Callable[[Any], list[str]]) -> None:
    """A list goes on only where a page says so and names the next one; a token that comes again ends it."""
    more = [page("a", token="2", truncated=" True "), page("b", token="3", truncated="true"), page("c", "d", token="4")]
    addresses = asked(more)
    assert download.list_files("https://b") == ["a", "b", "c", "d"]
    assert [address.partition("token=")[2] for address in addresses] == ["", "2", "3"]
    asked([page("a", truncated="true")])
    assert download.list_files("https://b") == ["a"]
    asked([page("a", token="2", truncated="false")])
    assert download.list_files("https://b") == ["a"]
    asked([page("a", token="2", truncated="true")])
    with pytest.raises(InputError, match="does not end"):
        download.list_files("https://b")
    for content in (b"<!DOCTYPE x><ListBucketResult/>", b"<!ENTITY x><ListBucketResult/>", b"<other/>", b"no"):
        asked([content])
        with pytest.raises(InputError, match="no list"):
            download.list_files("https://b")


def test_a_list_at_its_largest(asked: Callable[[Any], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    content = page("a", "b")
    monkeypatch.setattr(download, "MAX_LIST_BYTES", len(content))
    asked([content])
    assert download.list_files("https://b") == ["a", "b"]
    asked([content + b" "])
    with pytest.raises(InputError, match="no list"):
        download.list_files("https://b")
    monkeypatch.undo()
    monkeypatch.setattr(download, "MAX_PAGES", 2)
    asked([page("a", token=str(k), truncated="true") for k in range(3)])
    with pytest.raises(InputError, match="does not end"):
        download.list_files("https://b")


def test_regions_of_buckets(asked: Callable[[Any], list[str]]) -> None:
    """A bucket that names its region is asked there, if it is one and says so in an answer that means it."""

    def error(code: int, region: str | None) -> HTTPError:
        head = Message()
        if region is not None:
            head["x-amz-bucket-region"] = region
        return HTTPError("u", code, "no", head, io.BytesIO())

    bucket, moved = "https://b.s3.amazonaws.com", "https://b.s3.eu-1.amazonaws.com"
    for code, region, base, expected in (
        (301, "eu-1", bucket, moved),
        (307, "eu-1", bucket, moved),
        (400, "eu-1", bucket, moved),
        (403, "eu-1", bucket, bucket),
        (301, None, bucket, bucket),
        (301, "eu.1/", bucket, bucket),
        (301, "eu-1", "https://other", "https://other"),
    ):
        asked([error(code, region)])
        assert download.resolve_region(base + "/") == expected, (code, region, base)
    asked([b""])
    assert download.resolve_region(bucket) == bucket


def test_runs_with_all_their_files() -> None:
    files = [f"{run}_{kind}.npz" for run in ("004000", "004001", "004002") for kind in ("matrices", "features")]
    files += ["004010_matrices.npz", "004011_features.npz", "x/004020_matrices.npz", "x/004020_features.npz"]
    assert download._complete_runs(files[::-1], ("matrices", "features")) == ["004000", "004001"]
    assert download._complete_runs(files, ("matrices", "features", "extra_features")) == []


def test_stations_by_cores_of_showers() -> None:
    """Correlations of signals with places, by their definition."""
    rng = np.random.default_rng(45)
    a, b = rng.normal(0, 1, (40, 5)), rng.normal(0, 1, (40, 5))
    b[:, 1] += 2 * a[:, 3]
    a[:, 4] = 3.0
    values = np.column_stack([np.ones(40), a, b])
    correlations = kcdc._correlations(values.T @ values)
    expected = np.corrcoef(a[:, :4].T, b.T)[:4, 4:]
    np.testing.assert_allclose(correlations[:4], expected, atol=1e-12)
    np.testing.assert_allclose(correlations[4], 0.0, atol=1e-3)
    assert np.all(kcdc._correlations(np.zeros((11, 11))) == 0.0)
    core = rng.uniform(-91, 91, (2, 400))
    r = np.hypot(core[0][:, None] - KASCADE.x_m.ravel(), core[1][:, None] - KASCADE.y_m.ravel())[:, KASCADE.cells]
    signal = 1e4 / (1 + (r / 25.0) ** 2)
    signal[3, 4], signal[5, 6], core[0, 7] = np.nan, -3.0, np.nan
    events = {"EDeposit": signal, "Xc": core[0], "Yc": core[1]}
    parts = [{name: values[rows] for name, values in events.items()} for rows in (slice(0, 150), slice(150, None))]
    found = stations_by_cores(parts, Path("x"))
    np.testing.assert_array_equal(found, KASCADE.cells)


def test_tables_of_text(reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables joined by rows that are missing, out of order, and read in parts."""
    rng = np.random.default_rng(46)
    array = {name: rng.uniform(1, 2, 6) for name in kcdc.QUANTITIES["array"]}
    tables: dict[str, dict[str, Any]] = {
        "array": array,
        "general": {
            "R": [7, 8, 9, None],
            "Ev": [1, 2, 3, 4],
            "Gt": [10.5, 11.5, 12.5, 13.5],
            "T": [1.0, 2.0, None, 4.0],
            "Datetime": ["a", "b", "c", "d"],
        },
        "calorimeter": {"Nhad": [5, 6], "Ehad": [1.5, 2.5]},
        "row_mapping": {
            "array": [4, -1, 0, 5, 1, 2],
            "general": [0, 1, 3, -1, 2, None],
            "calorimeter": [1, 0, -1, -1, -1, 0],
        },
    }
    for name, table in tables.items():
        pl.DataFrame(table).write_csv(tmp_path / f"{name}.txt", separator="\t")
    told: list[str] = []
    monkeypatch.setattr(kcdc, "TABLE_EVENTS", 2)
    (events,) = kcdc.FORMAT.open(tmp_path, told.append)
    names = ["E", "Age", "R", "Gt", "T", "Nhad"]
    chunks = list(events.chunks(names))
    reference(
        {name: np.concatenate([np.asarray(chunk[name], float) for chunk in chunks]) for name in names}
        | {"events": events.n_events, "chunks": [len(chunk["E"]) for chunk in chunks], "told": len(told)}
    )
    assert "1 of 6 events" in told[0]
    (table,) = convert_foreign(tmp_path, tmp_path / "out", None)
    written = pl.read_parquet(table)
    assert written["Datetime"].to_list() == ["a", "d", None, "c", None]
    assert written["Datetime"].dtype == pl.String
    assert written["E"].dtype == pl.Float64
    tables["row_mapping"]["general"] = [0, 1, 3, -1, 2, 4]
    pl.DataFrame(tables["row_mapping"]).write_csv(tmp_path / "row_mapping.txt", separator="\t")
    with pytest.raises(InputError, match="asks for row 4"):
        kcdc.FORMAT.open(tmp_path)


def test_lists_of_stations(reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stations anywhere, with and without muon detectors, and hits in any order."""
    rng = np.random.default_rng(47)
    folder = tmp_path / "lists"
    folder.mkdir()
    stations = {"id": np.arange(11) + 5, "x_m": rng.uniform(0, 99, 11), "y_m": rng.uniform(0, 50, 11)}
    stations |= {"electron_area_m2": rng.uniform(1, 3, 11), "muon_area_m2": np.arange(11) % 3 * 1.5}
    event = np.repeat(np.arange(20), 3)
    signals = {"event": event, "station": 5 + (event * 3 + np.tile(np.arange(3), 20)) % 11}
    signals |= {"electron_mev": rng.exponential(20, 60), "muon_mev": rng.exponential(9, 60)}
    events = {"event": np.arange(19)[::-1].copy()} | {
        name: rng.uniform(1, 9, 19) for name in ("E", "Ze", "Az", "Ne", "Nmu")
    }
    events["label"] = np.arange(19) % 2
    for name, table in (("stations", stations), ("signals", signals), ("events", events)):
        frame = pl.DataFrame(table)
        (frame.sample(fraction=1.0, shuffle=True, seed=3) if name == "signals" else frame).write_parquet(
            folder / f"{name}.parquet"
        )
    (folder / "array.toml").write_text('unit = "mev"\n')
    told: list[str] = []
    (made,) = convert_foreign(folder, tmp_path / "out", GAMMA, told.append)
    assert told[0] == "3 signals are of events that events.parquet does not have"
    (lists,) = StationLists().open(folder)
    array = {name: value for name, value in lists.array.as_json().items() if name != "name"}
    small = pl.DataFrame({"id": [1], "x_m": [3.0], "y_m": [4.0], "electron_area_m2": [1.0]})
    one, cells = array_of_stations("one", small)
    monkeypatch.setattr("showerstack.showers.archives.station_lists.GRID_EVENTS", 8)
    parts = [
        {name: summary(values) for name, values in chunk.items()} for chunk in lists.chunks(["E", LABEL, DEPOSITS])
    ]
    reference({"set": of_folder(made), "array": array, "one": [one.pitch_m, one.x_m, cells], "parts": parts})


def test_folders_as_archives(reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mode(tmp_path, "qgs_spectra", 120, 48)
    convert(tmp_path, tmp_path / "out", COMPOSITION, protocol="matched")
    assert unlabelled_in(tmp_path / "out") == []
    bare = tmp_path / "out" / "bare"
    bare.mkdir()
    for name in ("matrices.npy", "features.npy"):
        (bare / name).write_bytes((tmp_path / "out" / "composition_test" / name).read_bytes())
    assert unlabelled_in(tmp_path / "out") == [], "one of them has labels"
    shutil.rmtree(bare)
    monkeypatch.setattr("showerstack.showers.archives.folders.TABLE_EVENTS", 17)
    monkeypatch.setattr("showerstack.showers.archives.folders.GRID_EVENTS", 13)
    readers = DatasetFolders().open(tmp_path / "out")
    names = ["E", "Nmu", "Age"]
    got = {
        one.name: [
            [{name: summary(values) for name, values in chunk.items()} for chunk in one.chunks(wanted)]
            for wanted in (names, [DEPOSITS])
        ]
        for one in readers
    }
    reference(got | {"n": [one.n_events for one in readers]})
