"""Raw archives: read back by the converter, with arrival times that follow the shower front."""

from pathlib import Path

import numpy as np
import pytest

from showers.convert import convert
from showers.dataset import Dataset
from showers.schema import COMPOSITION, GAMMA, InputError
from showers.simulation import load_settings
from showers.simulation.arrival import LIGHT_M_PER_NS, arrival_times
from showers.simulation.blocks import BlockJob, simulate_block
from showers.simulation.raw import simulate_raw


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
