"""Measured runs: from a simulated sky over a server on this machine to folders and predictions; what is refused.

The known sky has the fluxes asked for, seeds, dead stations and drift that the array shows. Measured runs straight to
predictions give the bytes of conversion and prediction, also when killed and continued.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import re
import shutil
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import polars as pl
import pytest

from showerstack.features.build import build_table
from showerstack.features.compute import FIT_RESULT_GROUPS, compute_chunk, compute_events
from showerstack.report.doctor.folders import dataset_findings, folder_findings
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import write_json
from showerstack.scoring.tasks.truth import TEST_CLASSES
from showerstack.showers.archives import control
from showerstack.showers.archives.download import download_measured, list_files
from showerstack.showers.archives.measured import convert_measured, measured_folders
from showerstack.showers.archives.raw import read_times
from showerstack.showers.archives.run_list import MEANS, RunSummary, dead_detectors, means_of, run_list, write_run_list
from showerstack.showers.array import KASCADE
from showerstack.showers.azimuth import azimuth_convention, front_azimuth
from showerstack.showers.dataset import Dataset
from showerstack.showers.protocols import CUT_SETS
from showerstack.showers.schema import SCALAR_NAMES
from showerstack.showers.simulation.measured import conditions_of_run, simulate_measured
from showerstack.showers.simulation.settings import load_settings
from showerstack.showers.simulation.sky import Sky, Thrower, load_sky
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load

SKY = """
runs = 3
live_time_h = 0.15
flux_1_pev = 6e-21
dead_stations = 6
deposit_drift = 0.02
photon_fraction = 0.01
"""


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of three short runs."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "sky.toml").write_text(SKY)
    simulate_measured(folder / "sky.toml", folder / "raw", seed=3, workers=1)
    return folder / "raw"


class Bucket(ThreadingHTTPServer):
    """Serves a folder with the list of an S3 bucket, two names a page."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.page: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Bucket

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if address.path == "/":
            self._answer(self.server.page or self._page(parse_qs(address.query)), "application/xml")
            return
        file = self.server.folder / unquote(address.path[1:])
        if not file.is_file():
            self.send_error(404)
            return
        self._answer(file.read_bytes(), "application/zip")

    def _page(self, query: dict[str, list[str]]) -> bytes:
        names = sorted(file.name for file in self.server.folder.iterdir() if file.is_file())
        start = int(query.get("continuation-token", ["0"])[0])
        keys = "".join(f"<Contents><Key>{name}</Key></Contents>" for name in names[start : start + 2])
        more = start + 2 < len(names)
        token = f"<NextContinuationToken>{start + 2}</NextContinuationToken>" if more else ""
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        content = f'<ListBucketResult xmlns="{space}">{keys}{truncated}{token}</ListBucketResult>'
        return f'<?xml version="1.0"?>{content}'.encode()

    def _answer(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", kind)
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def bucket(raw: Path) -> Iterator[Bucket]:
    with Bucket(raw) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_archive_goes_through_download_convert_features_and_predict(
    raw: Path, bucket: Bucket, composition_run: Path, tmp_path: Path
) -> None:
    (raw / "004009_matrices.npz").write_bytes(b"not in use: its name ends in 9")
    names = download_measured(tmp_path / "raw", times=True, base_url=bucket.url)
    assert names == ["004000", "004001", "004010"]
    result = convert_measured(tmp_path / "raw", tmp_path / "sets", times=True)
    assert [folder.name for folder in result.folders] == names
    assert not result.left_out
    assert not result.remarks
    truth = pl.read_parquet(raw / "truth" / "004001.parquet")
    data = Dataset.open(tmp_path / "sets" / "004001", labels=False)
    data.validate()
    assert len(data) == len(truth) > 100
    with np.load(raw / "004001_features.npz") as archive:
        np.testing.assert_array_equal(data.scalars[:, 0], archive["features"][:, 0].astype(np.float16))
        np.testing.assert_array_equal(np.load(data.path / "core_x_m.npy"), archive["features"][:, 1])
        np.testing.assert_array_equal(np.load(data.path / "age.npy"), archive["features"][:, 7])
    times = np.load(data.path / "times.npy")
    started = datetime(2000, 1, 1, 0, 39, tzinfo=UTC).timestamp()  # one run and one pause later
    np.testing.assert_allclose(times - started, truth["second"], atol=1e-5)
    assert (np.diff(times) >= 0).all()
    predictions = predict(load(composition_run), data.path, Context(device="cpu", workers=1)).concatenated()
    assert predictions.log_proba.shape == (len(data), 5)
    assert np.isfinite(predictions.log_proba).all()


def test_a_finished_conversion_is_kept_and_another_protocol_refused(raw: Path, tmp_path: Path) -> None:
    (folder, *_) = convert_measured(raw, tmp_path, runs=["004000"]).folders
    stamp = (folder / "matrices.npy").stat().st_mtime_ns
    assert convert_measured(raw, tmp_path, runs=["004000"]).folders == [folder]
    assert (folder / "matrices.npy").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="exists already and differs in protocol"):
        convert_measured(raw, tmp_path, runs=["004000"], protocol="matched")
    other = convert_measured(raw, tmp_path / "matched", runs=["004000"], protocol="matched").folders[0]
    assert Dataset.open(other, labels=False).age is not None
    assert Dataset.open(folder, labels=False).age is None
    assert Dataset.open(other, labels=False).scalars.dtype == np.float32


def test_runs_side_by_side_are_those_one_after_the_other(raw: Path, tmp_path: Path) -> None:
    made = [
        convert_measured(raw, tmp_path / str(workers), protocol="2026", times=True, workers=workers)
        for workers in (1, 3)
    ]
    names = [[folder.name for folder in one.folders] for one in made]
    assert names[0] == names[1] == sorted(names[0])
    assert made[0].left_out == made[1].left_out
    assert [line.replace(str(tmp_path / "3"), str(tmp_path / "1")) for line in made[1].remarks] == made[0].remarks
    for pair in zip(*(one.folders for one in made), strict=True):
        assert len({(folder / "checksums.json").read_bytes() for folder in pair}) == 1


def test_raw_grids_are_deleted_when_asked_and_only_then(raw: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "raw", tmp_path / "out"
    shutil.copytree(raw, copy)
    grids = copy / "004000_matrices.npz"
    (folder,) = convert_measured(copy, out, runs=["004000"]).folders
    assert grids.exists()
    convert_measured(copy, out, runs=["004000"], delete_raw=True)
    assert not grids.exists()
    assert (copy / "004000_features.npz").exists()
    again = convert_measured(copy, out, runs=["004000"])
    assert again.folders == [folder], "its folder still counts"
    other = convert_measured(copy, out, runs=["004000"], protocol="matched")
    assert not other.folders
    assert "004000" in other.left_out[0].run


def damaged(raw: Path, out: Path) -> dict[str, str]:
    """Copy the archive and damage runs; return run name to the remark it must get."""
    shutil.copytree(raw, out)
    with np.load(raw / "004000_features.npz") as archive:
        features = archive["features"]
    with np.load(raw / "004000_matrices.npz") as archive:
        grids = archive["matrices"]
    np.savez(out / "005000_features.npz", features=np.zeros(0, np.float32))
    np.savez(out / "005000_matrices.npz", matrices=np.zeros((0, 16, 16, 3), np.float32))
    shutil.copy(raw / "004000_matrices.npz", out / "005001_matrices.npz")
    (out / "005001_features.npz").write_bytes((raw / "004000_features.npz").read_bytes()[:-400])
    wrong = features.copy()
    wrong[7, 3] = 400.0
    for name, values in (("005010", wrong), ("005011", features[:-1])):
        np.savez(out / f"{name}_matrices.npz", matrices=grids)
        np.savez(out / f"{name}_features.npz", features=values)
    negative = grids.copy()
    negative[3, 2, 1, 1] = -1.0
    np.savez(out / "005020_matrices.npz", matrices=negative)
    np.savez(out / "005020_features.npz", features=features)
    shutil.copy(raw / "004000_matrices.npz", out / "005021_matrices.npz")
    np.savez(out / "005021_features.npz", features=features)
    with (
        zipfile.ZipFile(raw / "004000_features.npz") as archive,
        zipfile.ZipFile(out / "005020_features.npz", "w") as new,
    ):
        new.writestr("features.npy", archive.read("features.npy"))
    return {
        "005000": r"holds no events",
        "005001": r"damaged",
        "005011": r"events, but 005011_matrices.npz beside it has",
        "005021": r"not made together",
    }


def test_empty_and_damaged_runs_are_reported_and_left_out(raw: Path, tmp_path: Path) -> None:
    expected = damaged(raw, tmp_path / "raw")
    result = convert_measured(tmp_path / "raw", tmp_path / "sets")
    assert len(result.folders) == 5
    odd = {"005010": (7, "005010_features.npz", "column Ze", 400.0), "005020": (3, "005020_matrices.npz", "cell", -1.0)}
    for run, (row, file, column, value) in odd.items():
        data = Dataset.open(tmp_path / "sets" / run, labels=False)
        (bad,) = data.unusable
        assert (bad.row, bad.file_row, bad.file, bad.value) == (row, row, file, value)
        assert bad.column.startswith(column)
        assert len(data) == len(Dataset.open(result.folders[0], labels=False))
        assert sum(run in remark and "training prior" in remark for remark in result.remarks) == 1
    strict = convert_measured(tmp_path / "raw", tmp_path / "strict", strict=True)
    assert {each.run for each in strict.left_out} == {*expected, *odd}
    assert {each.run for each in result.left_out} == set(expected)
    for each in result.left_out:
        assert re.search(expected[each.run], each.reason), each
        assert not (tmp_path / "sets" / each.run).exists()


def test_a_whole_archive_is_compared_with_what_others_counted(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = convert_measured(raw, tmp_path, protocol="2026")
    folders = converted.folders
    assert control.control_lines(folders) == [], "a part of the archive has nobody's counts"
    stored = np.concatenate([np.load(file)["features"] for file in sorted(raw.glob("??????_features.npz"))])
    energy, zenith, lg_ne, lg_nmu, age = stored.astype(np.float32).T[[0, 3, 5, 6, 7]]
    common = (lg_ne > 4.8) & (age > 0.2) & (age < 1.48)
    want = [int((common & (zenith < 18) & (lg_nmu > 3.6)).sum())]
    want += [int((common & (zenith < 30) & (energy >= low)).sum()) for low in (14.5, 15.0, 15.5, 16.0, 16.5)]
    assert want[0] > 0
    assert list(control.counted(folders).values()) == want
    monkeypatch.setattr(control, "RUNS", len(folders))
    changed = [replace(one, events=events) for one, events in zip(control.CONTROLS, want, strict=True)]
    changed[1] = replace(changed[1], events=want[1] * 2)
    monkeypatch.setattr(control, "CONTROLS", changed)
    lines = control.control_lines(folders)
    assert lines[1].endswith(f"{want[0]:,} events, published {want[0]:,}: agrees")
    assert lines[1].startswith("Ze < 18 and Ne > 4.8 and Age > 0.2 and Age < 1.48 and Nmu > 3.6: ")
    assert lines[2].endswith(f"{-want[1]:+,} (-50.000 %)")
    assert "runs that are missing" in lines[-1]
    assert lines[2] in [finding.outcome for finding in folder_findings(tmp_path)]


def test_rows_of_a_set_are_compared_with_those_of_the_public_one(tiny_composition: Path, tmp_path: Path) -> None:
    for (task, protocol), classes in TEST_CLASSES.items():
        assert control.ROWS[task, protocol, "test"] == sum(classes)
    test = tiny_composition / "composition_test"
    assert "rows" not in [one.what for one in dataset_findings(test)], "simulated here"
    found = shutil.copytree(test, tmp_path / "composition_test")
    (found / "checksums.json").unlink()
    write_json(found / "source.json", {"protocol": "2026"})
    (rows,) = [one for one in dataset_findings(found) if one.what == "rows"]
    assert (rows.outcome, rows.state) == ("1,000, the public test set of 2026 has 115,064", "note")
    scalars = np.load(found / "features.npy")
    scalars[0, 1] = 30.0  # as 29.995 is in float16
    np.save(found / "features.npy", scalars)
    write_json(found / "source.json", {"cuts": "test", "evaluation_cuts": "test"})
    (cuts,) = [one.outcome for one in dataset_findings(found) if one.what == "evaluation cuts"]
    assert "made with these cuts, and rounding to float16 moved the others across" in cuts
    assert control.rows_line("gamma", "v2", "train", 1_530_715) == "as many as the public train set of v2"
    assert control.rows_line("energy", "v2", "train", 9) is None


def test_run_list_shows_the_run_that_is_off(raw: Path, tmp_path: Path) -> None:
    shutil.copytree(raw, tmp_path / "raw")
    with np.load(raw / "004000_features.npz") as archive:
        features = archive["features"].copy()
    features[:, 6] += 0.5
    source = zipfile.ZipFile(raw / "004000_features.npz").read("source.json")
    np.savez(tmp_path / "raw" / "006000_features.npz", features=features)
    with zipfile.ZipFile(tmp_path / "raw" / "006000_features.npz", "a") as archive:
        archive.writestr("source.json", source)
    shutil.copy(raw / "004000_matrices.npz", tmp_path / "raw" / "006000_matrices.npz")
    folders = convert_measured(tmp_path / "raw", tmp_path / "sets", times=True)
    assert len(folders.remarks) == 1, "the run without a file of times"
    table = run_list(folders.folders)
    assert table["off"].to_list() == ["", "", "", "Nmu"]
    assert table["live_time_share"].drop_nulls().sum() == pytest.approx(1.0)
    assert table["live_time_share"][3] is None
    assert table["events"].sum() == sum(len(Dataset.open(f, labels=False)) for f in folders.folders)
    assert write_run_list(folders.folders, tmp_path / "runs.csv").height == 4
    assert pl.read_csv(tmp_path / "runs.csv").height == 4
    assert measured_folders(tmp_path / "sets") == folders.folders


def test_a_run_of_which_nothing_passes_has_no_means(tmp_path: Path) -> None:
    """What was not determined is unknown, not 0, and the other runs are compared with each other."""
    unused = {"silent_stations": 0, "silent_muon_detectors": 0, "first_s": None, "last_s": None}
    folders = []
    for run, (n, passed) in enumerate([(0, 0), (4, 0), (4, 2), (4, 2)]):
        folders.append(tmp_path / str(run))
        folders[-1].mkdir()
        sums = np.full((2, len(MEANS)), float(passed)).tolist()
        summary = unused | {"n_events": n, "passed": dict.fromkeys(CUT_SETS, passed), "sums": sums}
        (folders[-1] / "source.json").write_text(json.dumps({"summary": summary}))
        (folders[-1] / "matrices.npy").touch()
    table = run_list(folders)
    assert table["pass_test_age"].to_list() == [None, 0.0, 0.5, 0.5]
    assert table["mean_Ne"].fill_nan(None).to_list() == [None, None, 1.0, 1.0]
    assert table["off"][2:].to_list() == ["", ""]


def test_dead_stations_are_missing_in_the_fits_and_not_empty(tmp_path: Path) -> None:
    """Fitted sizes of showers are the same where a fifth of the stations and a tenth of the muon detectors are dead."""
    away = {}
    for dead in (0, 50):
        (tmp_path / "sky.toml").write_text(
            f"runs = 1\nlive_time_h = 0.6\ndead_stations = {dead}\ndead_muon_detectors = {2 * dead // 5}\n"
        )
        simulate_measured(tmp_path / "sky.toml", tmp_path / f"raw{dead}", seed=3, workers=1)
        converted = convert_measured(tmp_path / f"raw{dead}", tmp_path / f"sets{dead}")
        data = Dataset.open(converted.folders[0], labels=False)
        conditions = json.loads((tmp_path / f"raw{dead}" / "truth" / "004000.json").read_text())
        assert data.source["dead_stations"] == conditions["dead_cells"]
        assert data.source["dead_muon_detectors"] == sorted(conditions["dead_muon_cells"])
        row = run_list(converted.folders).row(0, named=True)
        assert row["dead_stations"] == " ".join(map(str, conditions["dead_cells"]))
        truth = pl.read_parquet(tmp_path / f"raw{dead}" / "truth" / "004000.parquet")
        masked = build_table(data.path, ctx=Context(device="cpu", workers=1)).frame().collect()
        grids, scalars = (np.asarray(values, dtype=np.float32) for values in (data.matrices, data.scalars))
        empty = compute_events(grids, scalars, None, FIT_RESULT_GROUPS)
        for name, table in (("missing", masked), ("empty", empty)):
            for fitted, true in (("fit_lg_ne", "lg_ne"), ("fit_lg_nmu_tr", "lg_nmu")):
                away[dead, name, fitted] = float(np.nanmedian(table[fitted].to_numpy() - truth[true].to_numpy()))
    assert len(conditions["dead_cells"]) > 15
    for fitted, least in (("fit_lg_ne", 0.02), ("fit_lg_nmu_tr", 0.06)):
        whole = away[0, "missing", fitted]
        assert away[0, "empty", fitted] == pytest.approx(whole, abs=1e-6)
        assert away[50, "missing", fitted] == pytest.approx(whole, abs=0.05)
        assert away[50, "empty", fitted] < whole - least


def _twice(raw: Path, out: Path) -> Path:
    """Copy a run with all of its events there again, in the reverse order."""
    out.mkdir()
    for kind in ("matrices", "features", "extra_features"):
        with np.load(raw / f"004000_{kind}.npz", allow_pickle=True) as stored:
            np.savez(out / f"004000_{kind}.npz", **{kind: np.concatenate([stored[kind], stored[kind][::-1]])})
    return out


def test_an_event_that_is_there_again_counts_once(raw: Path, tmp_path: Path) -> None:
    (once,) = convert_measured(raw, tmp_path / "once", runs=["004000"], times=True).folders
    result = convert_measured(_twice(raw, tmp_path / "raw"), tmp_path / "twice", times=True)
    n = len(np.load(once / "times.npy"))
    assert (
        f"004000: {n:,} of {2 * n:,} events are there again, time and quantities alike: counted once" in result.remarks
    )
    for name in ("matrices.npy", "features.npy", "times.npy"):
        assert (result.folders[0] / name).read_bytes() == (once / name).read_bytes()
    without = convert_measured(tmp_path / "raw", tmp_path / "no_times")
    assert any(f"{n:,} of {2 * n:,} events have deposits and quantities of another" in one for one in without.remarks)
    assert not any("of another" in line for line in convert_measured(raw, tmp_path / "plain", runs=["004000"]).remarks)
    # A folder of others, times as dates.
    other = tmp_path / "other"
    other.mkdir()
    for name in ("matrices.npy", "features.npy"):
        values = np.load(once / name)
        np.save(other / name, np.concatenate([values, values]))
    seconds = np.load(once / "times.npy")
    dates = (1e6 * np.concatenate([seconds, seconds])).round().astype("datetime64[us]")
    np.save(other / "times.npy", dates)
    data = Dataset.open(other, labels=False)
    assert data.usable[:n].all()
    assert not data.usable[n:].any()
    np.testing.assert_allclose(data.files.times()[:n], seconds, atol=1e-6, rtol=0)
    milliseconds = 1e3 * np.concatenate([seconds, seconds])
    for times, message in (
        (dates[1:], "has shape"),
        (milliseconds.astype(np.float32), "has type float32"),
        (milliseconds, r": half of the times are above 1e\+10, which looks like ms since 1970: expected seconds"),
    ):
        np.save(other / "times.npy", times)
        with pytest.raises(InputError, match=rf"times\.npy ?{message}"):
            Dataset.open(other, labels=False).files.times()


def test_only_what_would_have_been_hit_is_dead() -> None:
    hits = np.zeros(KASCADE.grid_shape, dtype=np.int64)
    hits[KASCADE.has_station, 0], hits[KASCADE.has_muon, 1] = 60, 30
    hits[0, 3, 0] = hits[5, 6] = hits[0, 4, 1] = 0
    assert dead_detectors(hits) == {"dead_stations": [3, 86], "dead_muon_detectors": [4]}
    assert dead_detectors(hits // 3) == {"dead_stations": [], "dead_muon_detectors": []}, "20 and 10 hits may be none"
    assert dead_detectors(0 * hits)["dead_stations"] == []
    innermost = KASCADE.square_ring == 1
    hits[innermost] = 0
    assert set(np.flatnonzero(innermost & KASCADE.has_station)) <= set(dead_detectors(hits)["dead_stations"])


def test_a_station_with_a_dead_muon_detector_is_no_inner_one() -> None:
    outer = int(np.flatnonzero(KASCADE.has_muon)[0])
    array = KASCADE.without([], [outer])
    grids = np.zeros((1, *KASCADE.grid_shape), dtype=np.float32)
    grids.reshape(1, -1, 2)[0, outer, 0] = 300.0
    scalars = np.array([[15.5, 10.0, 0.0, 5.0, 4.0]], dtype=np.float32)
    dead, alive = (compute_chunk(np, grids, scalars, frozenset({"size"}), each) for each in (array, KASCADE))
    assert not array.has_muon.ravel()[outer]
    np.testing.assert_array_equal(array.no_muon, KASCADE.no_muon)
    assert dead["e_outer_lg"] == alive["e_outer_lg"] == pytest.approx(np.log10(300.0), abs=0.01)
    assert np.isnan([dead["e_inner_lg"], alive["e_inner_lg"]]).all(), "no inner station has a deposit"


def test_cells_that_do_not_exist_are_refused_by_name(raw: Path, tmp_path: Path) -> None:
    folder = convert_measured(raw, tmp_path / "sets", runs=["004000"]).folders[0]
    source = json.loads((folder / "source.json").read_text())
    for cells, message in (([300], "there is no cell 300, expected 0 to 255"), ("all", "dead_stations is no list of")):
        (folder / "source.json").write_text(json.dumps(source | {"dead_stations": cells}))
        (folder / "checksums.json").unlink(missing_ok=True)
        with pytest.raises(InputError, match=message):
            _ = Dataset.open(folder, labels=False).working


class Hostile:
    """Would run a command if its pickle were loaded."""

    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def times_file(path: Path, table: np.ndarray) -> Path:
    """Write a third archive of any content."""
    np.savez(path, extra_features=table)
    return path


def test_times_never_execute_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = np.zeros((4, 9), dtype=object)
    table[:, 8] = [datetime(2001, 2, 3, 4, 5, k, tzinfo=UTC) for k in range(4)]
    start = datetime(2001, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert read_times(times_file(tmp_path / "good.npz", table), 4).tolist() == [start + k for k in range(4)]
    with pytest.raises(InputError, match=r"shape \(4, 9\), expected \(5, 9 or more\)"):
        read_times(tmp_path / "good.npz", 5)
    foreign = (Hostile(), r"names (posix|nt)\.system"), (np.float64(3.0), r"names numpy\._?core\.multiarray\.scalar")
    for spoiled, message in (*foreign, (3.0, r"row 2, column 8 holds no date")):
        bad = table.copy()
        bad[2, 8] = spoiled
        with pytest.raises(InputError, match=message):
            read_times(times_file(tmp_path / "bad.npz", bad), 4)
    assert not (tmp_path / "executed").exists()


def test_times_of_simulated_runs_have_the_public_form(raw: Path) -> None:
    files = list(raw.glob("*_extra_features.npz"))
    assert files
    for file in files:
        table = np.load(file, allow_pickle=True)["extra_features"]  # written by this very program
        assert set(table[:, 0]) == {int(file.name.split("_")[0])}
        assert table[:, 1].tolist() == list(range(len(table)))
        assert (np.diff(read_times(file, len(table))) > 0).all()


@pytest.mark.parametrize(
    "program", [b"", b"\x80\x04.", b"\x80\x04]" * 50 + b".", pickle.dumps({"a": 1}), b"cos\nsystem\n(S'ls'\ntR."]
)
def test_damaged_times_are_one_line(program: bytes, tmp_path: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|O", "fortran_order": False, "shape": (2, 9)})
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("extra_features.npy", head.getvalue() + program)
    with pytest.raises(InputError, match=r"t\.npz") as error:
        read_times(tmp_path / "t.npz", 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "page",
    [
        b"<html>sign in</html>",
        b"not xml",
        b'<!DOCTYPE a [<!ENTITY b "c">]><ListBucketResult/>',
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>0</NextContinuationToken></ListBucketResult>",
    ],
)
def test_a_list_that_is_none_is_refused(bucket: Bucket, page: bytes) -> None:
    bucket.page = page
    with pytest.raises(InputError, match=r"no list of files|does not end"):
        list_files(bucket.url)


def test_runs_can_be_named_and_a_login_page_is_no_archive(bucket: Bucket, raw: Path, tmp_path: Path) -> None:
    assert download_measured(tmp_path, runs=["004010"], base_url=bucket.url) == ["004010"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["004010_features.npz", "004010_matrices.npz"]
    with pytest.raises(InputError, match=r"004011_matrices\.npz: the server answers 404"):
        download_measured(tmp_path, runs=["004011"], base_url=bucket.url)
    (raw / "009990_matrices.npz").write_text("<html>sign in</html>")
    with pytest.raises(InputError, match="no NPZ archive"):
        download_measured(tmp_path, runs=["009990"], base_url=bucket.url)
    (raw / "009990_matrices.npz").unlink()
    with pytest.raises(InputError, match="cannot be the name"):
        download_measured(tmp_path, runs=["../x"], base_url=bucket.url)


def test_truth_is_apart(raw: Path) -> None:
    with zipfile.ZipFile(raw / "004000_features.npz") as archive:
        assert set(archive.namelist()) == {"source.json", "features.npy"}
        message = json.loads(archive.read("source.json"))
    assert not {"dead_cells", "deposit_scale", "thrown"} & set(message)
    exposure = json.loads((raw / "exposure.json").read_text())
    assert exposure["live_time_s"] == pytest.approx(3 * 0.15 * 3600)
    assert set(SCALAR_NAMES) <= {"E", "Ze", "Az", "Ne", "Nmu"}


@pytest.mark.parametrize(("sense", "offset"), [(1, 0.0), (-1, 105.0), (-1, 270.0), (1, 180.0)])
def test_azimuths_are_compared_with_plane_fronts(sense: int, offset: float) -> None:
    rng = np.random.default_rng(4)
    n = 300
    origin, zenith = rng.uniform(0, 360, n), rng.uniform(12, 40, n)
    angle = np.radians(origin)[:, None, None]
    along = KASCADE.x_m * np.cos(angle) + KASCADE.y_m * np.sin(angle)
    times = 800 - along * np.sin(np.radians(zenith))[:, None, None] / 0.299792458
    hit = (rng.random(times.shape) < 0.2) & KASCADE.has_station
    times += rng.normal(0, 2, times.shape)
    times[5][hit[5]] = np.inf
    late = np.argwhere(hit[6])[0]
    times[6, late[0], late[1]] += 5_000
    result = front_azimuth(times, hit, KASCADE.x_m, KASCADE.y_m)
    assert np.isnan(result[5])
    turned = (np.delete(result - origin, [5, 6]) + 180) % 360 - 180
    assert np.abs(turned).max() < 5
    convention = azimuth_convention(result, (offset + sense * origin) % 360, zenith)
    assert convention.sense == sense
    assert abs((convention.offset_deg - offset + 180) % 360 - 180) < 1
    assert ("not as in" in convention.words) == ((sense, offset) != (1, 0.0))
    assert convention.significance == pytest.approx(np.sqrt(2 * convention.n_events), rel=0.01)
    turned = np.sqrt(np.nanmean(turned**2))
    assert convention.offset_error_deg == pytest.approx(turned / np.sqrt(n - 2), rel=0.5)
    assert "standard deviations, 299 events" in convention.words
    unrelated = azimuth_convention(result, rng.uniform(0, 360, n), zenith)
    assert "no relation" in unrelated.words
    assert unrelated.significance < 6


def test_few_events_do_not_make_a_convention() -> None:
    azimuth = np.linspace(20, 300, 5)
    convention = azimuth_convention(azimuth, azimuth, np.full(5, 20.0))
    assert convention.agreement > 0.99
    assert "no relation" in convention.words, "five events are 3 standard deviations"


def test_a_run_without_times_is_told(raw: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(raw, tmp_path / "raw")
    file = sorted(copy.glob("*_extra_features.npz"))[0]
    file.unlink()
    remarks = convert_measured(copy, tmp_path / "sets", times=True).remarks
    assert remarks == [f"{file} is missing: this run has no event times"], "no other file is suggested in its place"


def _azimuth_words(folder: Path) -> str:
    return next(one.outcome for one in folder_findings(folder) if one.what.strip() == "azimuth")


def test_doctor_says_which_convention_azimuths_obey(raw: Path, tmp_path: Path) -> None:
    """The same showers counted anticlockwise from +x, and clockwise from north as a compass does."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for kind in ("matrices", "features"):
        with np.load(raw / f"004000_{kind}.npz") as stored:
            np.savez(folder / f"004000_{kind}.npz", **{kind: stored[kind]})  # as the public files, of no known making
    words = _azimuth_words(folder)
    assert "Az counts anticlockwise" in words
    assert ": as in the simulated sets" in words
    with (
        zipfile.ZipFile(raw / "004000_features.npz") as stored,
        zipfile.ZipFile(folder / "004000_features.npz", "w") as new,
    ):
        features = np.load(io.BytesIO(stored.read("features.npy")))
        features[:, 4] = (105.0 - features[:, 4]) % 360.0
        content = io.BytesIO()
        np.save(content, features)
        new.writestr("features.npy", content.getvalue())
    words = _azimuth_words(folder)
    assert "Az counts clockwise" in words
    assert ": not as in the simulated sets" in words
    assert words.endswith("convert turns it")
    turned = convert_measured(folder, tmp_path / "turned", keep_arrival_times=True)
    (remark,) = (line for line in turned.remarks if "turned" in line)
    assert remark.endswith("azimuths of 1 run are turned: they count from +x towards +y, of the origin")
    assert "Az counts anticlockwise, 0.0" in _azimuth_words(turned.folders[0]) or "359." in _azimuth_words(
        turned.folders[0]
    )
    told = json.loads((turned.folders[0] / "source.json").read_text())["azimuth"]
    assert (told["clockwise"], told["of_north_deg"]) == (False, 105.0)
    assert told["turned_from"]["clockwise"]
    assert abs((told["turned_from"]["of_north_deg"] + 180) % 360 - 180) < 3
    converted = convert_measured(raw, tmp_path / "sets", runs=["004000"], keep_arrival_times=True).folders[0]
    assert "Az counts anticlockwise" in _azimuth_words(converted), "the same of a converted folder"
    north = float(_azimuth_words(converted).split("--azimuth-of-north ")[1].split()[0])
    assert abs(north - 105) < 3
    expected, is_like = np.load(converted / "features.npy")[:, 2], np.load(turned.folders[0] / "features.npy")[:, 2]
    apart = np.abs((is_like.astype(np.float64) - expected + 180) % 360 - 180)
    assert apart.max() < 5 * told["error_deg"] + 0.5, "the same azimuths as of the run that was counted our way"
    kept = json.loads((converted / "source.json").read_text())["azimuth"]
    assert (kept["clockwise"], kept["of_north_deg"]) == (False, pytest.approx(105, abs=3))
    scalars = np.load(converted / "features.npy")
    scalars[:, 2] = (105.0 - scalars[:, 2].astype(np.float32)) % 360.0
    np.save(converted / "features.npy", scalars)
    (converted / "checksums.json").unlink()
    assert "Az counts clockwise" in _azimuth_words(converted)
    significance = float(words.split("(")[1].split()[0])
    assert significance > 10


def test_doctor_says_what_archives_hold(raw: Path, tmp_path: Path) -> None:
    damaged(raw, tmp_path / "raw")
    message = {(result.what, result.outcome) for result in folder_findings(tmp_path / "raw")}
    assert any(what.strip() == "azimuth" and "as in the simulated sets" in words for what, words in message)
    assert any(what == "left out" and words.endswith("005000_matrices.npz holds no events") for what, words in message)
    assert any(what.strip() == "column Ze" and "row 7 holds 400" in words for what, words in message)
    assert any("cell (2, 1), e/gamma deposit holds -1" in words for _, words in message)
    assert any(
        what == "next" and words.startswith("python cli.py convert ") and "--times" in words for what, words in message
    )
    folders = convert_measured(tmp_path / "raw", tmp_path / "sets", protocol="2026").folders
    data = Dataset.open(folders[0], labels=False)
    with np.load(raw / f"{folders[0].name}_features.npz") as stored:
        np.testing.assert_array_equal(data.age, stored["features"][:, 7].astype(np.float32))
    with np.load(raw / f"{folders[0].name}_matrices.npz") as stored:
        np.testing.assert_array_equal(data.matrices[:], stored["matrices"][..., 1:])
    assert any("cannot be used" in result.what for result in folder_findings(tmp_path / "sets"))


def test_arrival_times_of_measured_events_are_kept_on_request(raw: Path, tmp_path: Path) -> None:
    folders = convert_measured(raw, tmp_path / "sets", protocol="2026", keep_arrival_times=True).folders
    with np.load(raw / f"{folders[0].name}_matrices.npz") as stored:
        expected = stored["matrices"][..., 0].astype(np.float16)
    np.testing.assert_array_equal(np.load(folders[0] / "arrival_ns.npy"), expected)
    message = {result.what: result.outcome for result in folder_findings(folders[0])}
    assert message["azimuth"].startswith("Az counts anticlockwise, ")
    assert ": as in the simulated sets" in message["azimuth"]
    plain = convert_measured(raw, tmp_path / "plain", protocol="2026").folders[0].parent
    with pytest.raises(InputError, match="arrival_times"):
        convert_measured(raw, plain, protocol="2026", keep_arrival_times=True)


def test_the_default_flux_is_that_of_published_spectra() -> None:
    """All particles up to lg(E/eV) = 15.6, in units of what experiments published."""
    points = pl.read_csv(Path(__file__).parents[2] / "analysis" / "spectra" / "published.csv")
    points = points.filter((pl.col("group") == "all") & (pl.col("energy_ev") < 10**15.6))
    ratios = {
        name: Sky().flux(np.log10(one["energy_ev"].to_numpy())).sum(axis=0) / one["value"].to_numpy()
        for (name,), one in points.group_by("experiment")
    }
    assert len(ratios) > 4
    np.testing.assert_allclose(ratios["LHAASO"], 1.0, atol=0.1)
    for name, ratio in ratios.items():
        assert 0.8 < np.median(ratio) < 1.5, name


def test_spectra_have_the_asked_slopes_and_knees() -> None:
    sky = Sky(photon_fraction=0.01)
    lg_energy = np.array([14.6, 14.7, 17.8, 17.9])
    flux = sky.flux(lg_energy)
    below = -np.log10(flux[:, 1] / flux[:, 0]) / 0.1
    above = -np.log10(flux[:, 3] / flux[:, 2]) / 0.1
    np.testing.assert_allclose(below, 2.7, atol=1e-3)
    np.testing.assert_allclose(above[:5], 3.1, atol=0.02)
    np.testing.assert_allclose(flux[5], 0.01 * flux[:5].sum(axis=0))
    at_knee = sky.flux(np.log10(sky.knees_pev() * 1e15))
    bend = 2.0 ** ((2.7 - 3.1) / sky.sharpness)
    np.testing.assert_allclose(
        np.diag(at_knee[:5]), sky.flux_1_pev * sky.abundances * sky.knees_pev() ** -2.7 * bend, rtol=1e-9
    )


def test_thrown_primaries_follow_the_fluxes() -> None:
    sky = Sky(photon_fraction=0.05)
    thrower = Thrower(sky)
    thrown = thrower.throw(200_000, np.random.default_rng(1))
    # Integral of a power law above 14.5, the knees far away: J0 E0^(1 - 2.7) / 1.7, all nuclei and photons.
    expected = 1.05 * sky.flux_1_pev * 1e15 * 10 ** (0.5 * 1.7) / 1.7 * sky.acceptance_m2_sr
    assert thrower.rate_hz == pytest.approx(expected, rel=0.02)
    edges = np.array([14.5, 14.8, 15.2, 15.7, 16.3])
    for k, mass in enumerate((1, 4, 12, 28, 56, 0)):
        mine = thrown.lg_energy[thrown.mass == mass]
        fine = np.linspace(14.5, 18.0, 7001)
        flux = sky.flux(fine)[k] * 10**fine
        share = [flux[(fine >= a) & (fine < b)].sum() / flux.sum() for a, b in itertools.pairwise(edges)]
        counts = np.histogram(mine, edges)[0]
        assert (np.abs(counts - len(mine) * np.array(share)) < 5 * np.sqrt(len(mine) * np.array(share)) + 5).all()


def test_runs_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text("runs = 2\nlive_time_h = 5.2\ncuts = 'test'\ndead_stations = 5\n")
    for workers in (1, 2):
        simulate_measured(tmp_path / "sky.toml", tmp_path / str(workers), seed=4, workers=workers)
    for file in sorted((tmp_path / "1").rglob("*.*")):
        same = tmp_path / "2" / file.relative_to(tmp_path / "1")
        assert same.read_bytes() == file.read_bytes(), file.name
    conditions = [json.loads((tmp_path / "1" / "truth" / f"00400{k}.json").read_text()) for k in (0, 1)]
    assert conditions[0]["dead_cells"] != conditions[1]["dead_cells"]
    with np.load(tmp_path / "1" / "004000_matrices.npz") as archive:
        grids = archive["matrices"].reshape(-1, 256, 3)
    quiet = np.flatnonzero((grids[..., 1] > 0).sum(axis=0) == 0)
    assert set(conditions[0]["dead_cells"]) <= set(quiet)
    assert len(quiet) < 30
    truth = pl.read_parquet(tmp_path / "1" / "truth" / "004000.parquet")
    assert truth.height == len(grids)


def test_deposits_drift_but_the_reconstruction_does_not_know() -> None:
    sky, world = Sky(runs=3, deposit_drift=0.1, dead_muon_detectors=4), load_settings()
    last = conditions_of_run(sky, world, 1, 2)
    assert last.deposit_scale == pytest.approx(1.1)
    assert last.detector.detector.electron_mev == pytest.approx(1.1 * world.detector.electron_mev)
    assert last.array.n_stations == KASCADE.n_stations
    assert last.array.n_muon_detectors == KASCADE.n_muon_detectors - len(last.dead_muon)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs = 0", "runs"),
        ("flux = 1", "flux"),
        ("model = 'none'", "unknown hadronic model"),
        ("runs = [", "not TOML"),
        ("runs = " + 5000 * "9", "not TOML"),
        ("#" * (1 << 20) + "\n", "too long for a TOML file"),
        ("[groups.neon]\nindex = 2", "neon"),
        ("lg_energy_min = 16\nlg_energy_max = 15", "lg_energy_max must be above"),
    ],
)
def test_a_sky_that_makes_no_sense_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_sky(tmp_path / "sky.toml")


def test_runs_of_another_sky_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text("runs = 1\nflux_1_pev = 6e-21\nlive_time_h = 0.02")
    (file,) = simulate_measured(tmp_path / "sky.toml", tmp_path / "raw")
    stamp = file.stat().st_mtime_ns
    simulate_measured(tmp_path / "sky.toml", tmp_path / "raw")
    assert file.stat().st_mtime_ns == stamp
    (tmp_path / "sky.toml").write_text("runs = 1\nflux_1_pev = 6e-21\nlive_time_h = 0.03")
    with pytest.raises(InputError, match="made otherwise"):
        simulate_measured(tmp_path / "sky.toml", tmp_path / "raw")


def test_the_pass_rate_is_that_of_the_evaluation_cuts_on_what_is_stored(raw: Path, tmp_path: Path) -> None:
    for protocol, cuts in (("v2", "test"), ("matched", "matched")):
        (folder,) = convert_measured(raw, tmp_path / protocol, runs=["004000"], protocol=protocol).folders
        row = run_list([folder]).row(0, named=True)
        data = Dataset.open(folder, labels=False)
        passed = int((data.evaluation_cuts.mask(data.scalar_frame()) & data.usable).sum())
        assert row["evaluation_cuts"] == cuts
        assert row[f"pass_{cuts}"] == passed / data.usable.sum()
        (said,) = (one.outcome for one in dataset_findings(folder) if one.what == "evaluation cuts")
        words = f"{cuts}: {passed:,} of {data.usable.sum():,} usable events pass ({100 * row[f'pass_{cuts}']:.2f} %)"
        assert said == words


def test_other_units_of_a_run_are_noticed(raw: Path, tmp_path: Path) -> None:
    other = _twice(raw, tmp_path / "raw")
    with np.load(other / "004000_features.npz") as stored:
        values = stored["features"]
    values[:, 3] = np.radians(values[:, 3])
    np.savez(other / "004000_features.npz", features=values)
    done = convert_measured(other, tmp_path / "out", times=True)
    assert not done.left_out
    assert any("Ze are below" in line and "radians: expected degrees" in line for line in done.remarks), done.remarks


def test_sums_of_a_run_by_hand() -> None:
    """Four events, one beyond the cuts; two stations and one muon detector are never hit."""
    grids = np.zeros((4, *KASCADE.grid_shape), np.float32)
    grids[0, ..., 0], grids[0, ..., 1] = 2.0 * KASCADE.has_station, 5.0 * KASCADE.has_muon
    rows, columns = np.nonzero(KASCADE.has_station & ~KASCADE.has_muon)
    grids[:, rows[:2], columns[:2], 0] = 0.0
    muon_row, muon_column = np.argwhere(KASCADE.has_muon)[3]
    grids[:, muon_row, muon_column, 1] = 0.0
    grids[1, rows[5], columns[5], 0] = 10.0
    scalars = np.tile(np.array([15.5, 10.0, 100.0, 5.5, 4.5]), (4, 1))
    scalars[2, 0] = 15.9
    scalars[3, 1] = 45.0  # too inclined
    summary = RunSummary()
    summary.add(grids[:2], scalars[:2], np.full(2, 1.0), np.array([30.0, 20.0]))
    summary.add(grids[2:], scalars[2:], np.full(2, 1.0), np.array([25.0, 40.0]))
    content = summary.as_json()
    assert (content["silent_stations"], content["silent_muon_detectors"]) == (2, 1)
    assert (content["n_events"], content["first_s"], content["last_s"]) == (4, 20.0, 40.0)
    assert content["passed"]["matched"] == 3
    n_e, n_mu = KASCADE.has_station.sum() - 2, KASCADE.has_muon.sum() - 1
    lg_e, lg_mu = np.log10(2.0 * n_e), np.log10(5.0 * n_mu)
    values = np.array([[15.5, 10, 5.5, 4.5, 1, n_e, n_mu, lg_e, lg_mu], [15.5, 10, 5.5, 4.5, 1, 1, 0, 1, 0],
                       [15.9, 10, 5.5, 4.5, 1, 0, 0, 0, 0]])  # fmt: skip
    np.testing.assert_allclose(content["sums"], [values.sum(axis=0), (values**2).sum(axis=0)], rtol=1e-6)
    mean, error = means_of(content)
    np.testing.assert_allclose(mean, [*values.mean(axis=0), 0.75], rtol=1e-6)
    # Of so few events a rate is as uncertain as one of them: a quarter, over the root of four.
    np.testing.assert_allclose(error, [*(values.std(axis=0) / np.sqrt(3)), 0.25], rtol=1e-5, atol=1e-5)
    many = content | {"n_events": 100, "passed": content["passed"] | {"test_age": 20}}
    assert means_of(many)[1][-1] == pytest.approx(0.04)


def test_the_page_has_every_name_of_a_sky_with_its_default() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "physics" / "measured.md").read_text(encoding="utf-8")
    given = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    assert set(given) == set(Sky.model_fields) - {"groups"}
    assert Sky.model_validate(given).model_dump() == Sky().model_dump()


@pytest.mark.parametrize(
    ("text", "meant"),
    [("photon_fracton = 1", "photon_fraction"), ("[groups.irn]", "iron"), ("[groups.iron]\nknee = 80.0", "knee_pev")],
)
def test_a_mistyped_name_of_a_sky_is_told(text: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "sky.toml").write_text(text)
    with pytest.raises(InputError, match=rf"did you mean {meant}\?"):
        load_sky(tmp_path / "sky.toml")


def test_room_is_announced_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sky.toml").write_text("runs = 3\nflux_1_pev = 6e-21\nlive_time_h = 0.02")
    simulate_measured(tmp_path / "sky.toml", tmp_path / "small", workers=1)
    assert "runs will take" not in caplog.text
    monkeypatch.setattr("showerstack.showers.simulation.measured.ANNOUNCED_BYTES", 0)
    simulate_measured(tmp_path / "sky.toml", tmp_path / "large", workers=1)
    assert caplog.text.count("3 runs will take about 0.0 GB") == 1
