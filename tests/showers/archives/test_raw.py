"""Raw archives: read back by the converter, with arrival times that follow the shower front."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from runtime.errors import InputError
from showers.archives.convert import convert
from showers.dataset import Dataset
from showers.schema import COMPOSITION, GAMMA
from showers.simulation import load_settings
from showers.simulation.blocks import BlockJob, simulate_block
from showers.simulation.raw import LIGHT_M_PER_NS, arrival_times, simulate_raw
from stacking.run.read import is_simulated


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
