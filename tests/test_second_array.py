"""Another detector array goes through the whole chain: 12 x 12 equal stations, each with a muon detector."""

import numpy as np
import polars as pl
import pytest

from features.build import build_table
from models.networks.data import cell_sources
from runtime.errors import InputError
from showers.array import DetectorArray, lattice, square_clusters
from showers.dataset import Dataset
from showers.schema import COMPOSITION
from showers.simulation.datasets import simulate
from stacking.run.config import StackConfig
from stacking.train import stack

SIDE, PITCH_M = 12, 15.0
X_M, Y_M = lattice(SIDE, PITCH_M)
ARRAY = DetectorArray(
    name="twelve",
    pitch_m=PITCH_M,
    x_m=X_M,
    y_m=Y_M,
    electron_area_m2=np.full((SIDE, SIDE), 2.0),
    muon_area_m2=np.full((SIDE, SIDE), 3.0),
    cluster=square_clusters(SIDE, 4),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("twelve")
    return simulate(COMPOSITION, out, n_train=700, n_test=200, seed=5, train_cuts="test", array=ARRAY, workers=2)


def test_dataset_carries_its_array(folders):
    data = Dataset.open(folders[0])
    assert data.array == ARRAY
    assert data.matrices.shape == (700, SIDE, SIDE, 2)
    # Muon detectors everywhere: also where KASCADE has none.
    assert (data.matrices[:, 4:8, 4:8, 1] > 0).any()


def test_fits_find_core_and_size(folders):
    table = pl.read_parquet(build_table(folders[0], workers=1).parts())
    truth = pl.read_parquet(folders[0] / "truth.parquet")
    inside = (np.abs(truth["core_x_m"].to_numpy()) < 80) & (np.abs(truth["core_y_m"].to_numpy()) < 80)
    core = np.hypot(table["fit_core_x_m"] - truth["core_x_m"], table["fit_core_y_m"] - truth["core_y_m"]).to_numpy()
    assert np.nanmedian(core[inside]) < 5.0
    size = (table["fit_lg_ne"] - truth["lg_ne"]).to_numpy()[inside]
    assert abs(np.nanmedian(size)) < 0.1
    assert np.nanstd(size) < 0.25


def test_stack_with_a_network_on_the_grids(folders, tmp_path):
    config = StackConfig(
        task="composition",
        data=folders[0].parent,
        run=tmp_path / "run",
        learners=("lightgbm", "lenet"),
        fast=False,
        folds=2,
        workers=1,
        settings={"lenet": {"epochs": 2}},
    )
    result = stack(config)
    assert [row.get("error") for row in result.manifest["learners"]] == [None, None]
    labels = np.load(folders[1] / COMPOSITION.label_file)
    log_proba = result.predictions.log_proba
    assert -log_proba[np.arange(len(labels)), labels].mean() < np.log(5) - 0.1


def test_symmetries_need_a_symmetric_array():
    assert np.array_equal(np.sort(cell_sources(ARRAY), axis=1)[3], np.arange(ARRAY.n_cells))
    area = np.full((SIDE, SIDE), 2.0)
    area[0, 1] = 1.0
    lopsided = DetectorArray("lopsided", PITCH_M, X_M, Y_M, area, ARRAY.muon_area_m2, ARRAY.cluster)
    with pytest.raises(InputError, match="lopsided is not symmetric"):
        cell_sources(lopsided)
