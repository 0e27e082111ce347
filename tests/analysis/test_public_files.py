"""The documented paths from public files and from simulated raw archives to limits, a sky map and a data check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from showerstack.showers.archives.convert import convert
from showerstack.showers.archives.measured import convert_measured, measured_folders
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import GAMMA
from showerstack.showers.simulation.measured import simulate_measured
from showerstack.showers.simulation.raw import simulate_raw
from showerstack.stacking.config import StackConfig
from showerstack.stacking.training.train import stack
from tests.program import call

STACK = {"task": "gamma", "preset": "quick", "learners": ("quadratic_logit",), "folds": 2, "workers": 1}


def _refused(*words: str | Path) -> str:
    """Return what a command says that is refused, in one line."""
    return call("cli.py", *words, code=2).stderr.replace("\n", " ")


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with converted sets and measured runs, simulated in the forms of the public files, and a gamma run."""
    folder = tmp_path_factory.mktemp("public")
    simulate_raw(GAMMA, folder / "raw", 24_000, seed=2, workers=1)
    convert(folder / "raw", folder, GAMMA, protocol="2026")
    fluxes = folder / "fluxes.toml"
    fluxes.write_text("runs = 2\nlive_time_h = 1.2\nstart = 2001-01-01T00:00:00Z\n")
    simulate_measured(fluxes, folder / "measured_raw", seed=3, workers=1)
    convert_measured(folder / "measured_raw", folder / "measured", protocol="2026", times=True)
    stack(StackConfig(data=folder, run=folder / "run", device="cpu", **STACK))
    return folder


@pytest.mark.slow
def test_limits_from_public_files(public: Path) -> None:
    out = public / "limits"
    events = ("--data", public / "measured", "--simulation", public / "gamma_test")
    words = ("gamma-limit", "--run", public / "run", *events, "--out", out, "--toys", "100")
    assert "no energy bin can be used" in _refused(*words), "no bin has enough events"
    shown = call("cli.py", *words, "--bins", "14.5,17")
    text = (shown.stdout + shown.stderr).replace("\n", " ")
    assert "the number of generated primaries is not known" in text
    assert "live time of the runs' own events" in text, "no exposure was given"
    limits = json.loads((out / "gamma_limit.json").read_text())
    assert limits["exposure_from"] == "live time of the runs"
    assert limits["live_time_s"] == pytest.approx(2 * 1.2 * 3600, rel=0.02)
    measured = [len(Dataset.open(one, labels=False)) for one in measured_folders(public / "measured")]
    assert next(iter(limits["cut_flow"].values())) == sum(measured)
    assert limits["limits"][0]["limit_fraction"] > 0
    assert limits["limits"][0]["limit_photons_m2_sr_s_eV"] is None, "unknown, not 0"
    assert limits["transfer"]["relative_error_models"] is None


@pytest.mark.slow
def test_a_sky_map_of_public_files(public: Path) -> None:
    pytest.importorskip("astropy_healpix")
    shown = call("cli.py", "sky-map", "--data", public / "measured", "--out", public / "sky", "--nside", "8")
    assert "showers in" in shown.stdout
    assert (public / "sky" / "sky_map.json").exists()


@pytest.mark.slow
def test_limits_with_a_simulated_archive_that_was_converted(public: Path, tmp_path: Path) -> None:
    """Who threw the primaries is known, but raw archives do not say under which cuts: no flux, and no traceback."""
    simulate_raw(GAMMA, tmp_path / "raw", 5000, seed=3, workers=1)
    convert(tmp_path / "raw", tmp_path, GAMMA, protocol="2026")
    words = ("gamma-limit", "--run", public / "run", "--data", public / "measured", "--out", tmp_path / "limits")
    options = ("--simulation", tmp_path / "gamma_train", "--toys", "100", "--bins", "14.5,17")
    call("cli.py", *words, *options)
    result = json.loads((tmp_path / "limits" / "gamma_limit.json").read_text())
    assert not result["efficiency_and_migration_known"]
    assert result["photon_energy"]["resolution_lg"] > 0, "true energies are there"


@pytest.mark.slow
def test_wrong_uses_end_in_one_line_that_names_the_remedy(public: Path) -> None:
    run, data, out = public / "run", public / "measured", public / "wrong"
    limits = ("gamma-limit", "--run", run, "--data", data, "--out", out)
    check = ("datacheck", "--run", run, "--out", public / "wrong.html")
    for words, message in (
        (
            (*limits, "--simulation", measured_folders(data)[0]),
            " has no labels_gamma.npy: it is not labelled for the task",
        ),
        ((*limits, "--seed", "-1"), "Invalid value for '--seed'"),
        ((*check, "--data", data, "--seed", "-1"), "Invalid value for '--seed'"),
        ((*check, "--data", public / "missing"), "missing is not a folder"),
        (("sky-map", "--data", data, "--out", out, "--seed", "-1"), "Invalid value for '--seed'"),
        (
            ("sky-map", "--data", data, "--out", out, "--azimuth-of-north", "nan"),
            "--azimuth-of-north nan: expected a number",
        ),
        (("sky-map", "--data", data, "--out", out, "--azimuth-of-north", "1000"), "--azimuth-of-north 1000: give"),
    ):
        assert message in _refused(*words), words


def test_places_for_results_are_checked_before_the_work(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    for command in ("spectra", "gamma-limit", "sky-map"):
        run = () if command == "sky-map" else ("--run", tmp_path / "none")
        assert "taken is a file, not a folder" in _refused(command, *run, "--data", tmp_path / "none", "--out", taken)
    for command in ("spectra", "gamma-limit", "sky-map"):
        run = () if command == "sky-map" else ("--run", tmp_path / "none")
        said = _refused(command, *run, "--data", tmp_path, "--out", tmp_path / "out", "--unblind")
        assert "--unblind" in said
    said = _refused("datacheck", "--run", tmp_path, "--data", tmp_path, "--out", tmp_path / "check.txt")
    assert "check.txt: choose a name that ends in .html" in said
