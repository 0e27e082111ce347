"""The third task from end to end: simulated, stacked, predicted, verified and reported as the others are.

Another detector array goes the same way: 12 x 12 equal stations, each with a muon detector. A target becomes bins with
equal numbers of events.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.features.build import build_table
from showerstack.models.networks.data import cell_sources
from showerstack.models.onnx.graph import NotPortable
from showerstack.report.outcome import outcome
from showerstack.runtime.context import Context, PlainConsole
from showerstack.runtime.errors import InputError
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.array import DetectorArray, lattice, square_clusters
from showerstack.showers.card import ArrayCard
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, ENERGY
from showerstack.showers.simulation import simulate
from showerstack.showers.writer import write_dataset
from showerstack.stacking.config import StackConfig
from showerstack.stacking.estimates import POOL
from showerstack.stacking.events import ShowerEvents, binned
from showerstack.stacking.export.writer import combination_graph
from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.training.train import stack
from tests.program import call
from tests.report.conftest import make_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``energy_train`` (2,000 showers under the test's cuts) and ``energy_test`` (800)."""
    folder = tmp_path_factory.mktemp("energy")
    simulate(ENERGY, folder, n_train=2000, n_test=800, seed=5, train_cuts="test", workers=1)
    return folder


def test_labels_are_the_true_energies(data: Path) -> None:
    opened = Dataset.open(data / "energy_test", ENERGY)
    assert opened.labels is not None
    assert opened.labels.dtype == np.float32
    truth = pl.read_parquet(data / "energy_test" / "truth.parquet")["lg_energy"].to_numpy()
    np.testing.assert_array_equal(opened.labels, truth)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_stack_beats_the_reconstructed_energy(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    config = StackConfig(
        task="energy", data=data, run=run, preset="quick", learners=("quadratic_logit", "lightgbm"), folds=2,
        workers=1, device="cpu", pools=("average", "log_pool"),
        settings={"lightgbm": {"rounds": 40}},
    )  # fmt: skip
    stack(config)
    with np.load(run / "predictions.npz", allow_pickle=False) as stored:
        assert {"lg_energy", "lg_energy_error", "log_proba"} <= set(stored.files)
        estimate = stored["lg_energy"]
    truth, reconstructed = (np.load(data / "energy_test" / name) for name in ("labels_energy.npy", "features.npy"))
    assert np.std(estimate - truth) < 0.95 * np.std(reconstructed[:, 0].astype(float) - truth)
    PlainConsole().print(outcome(run, data).shown, soft_wrap=True)
    shown = capsys.readouterr().out
    assert "resolution" in shown
    assert "quadratic_logit" in shown


@pytest.mark.slow
def test_what_is_predicted_and_scored_is_the_pool(data: Path, tmp_path: Path) -> None:
    config = StackConfig(
        task="energy", data=data, run=tmp_path / "run", preset="quick", learners=("quadratic_logit", "pretrained"),
        folds=2, workers=1, device="cpu", pools=("log_pool",), settings={"pretrained": {"epochs": 1}},
    )  # fmt: skip
    result = stack(config)
    assert result.predictions is not None
    assert result.manifest.decision.chosen == POOL
    run = load(result.run)
    arrays = result.predictions.arrays
    again = predict(run, data / "energy_test", Context(device="cpu")).concatenated()
    for name in ("lg_energy", "lg_energy_error"):
        np.testing.assert_array_equal(run.test(run.shipped, name), arrays[name])
        np.testing.assert_array_equal(again.arrays[name], arrays[name])
    missed = arrays["lg_energy"] - np.load(data / "energy_test" / "labels_energy.npy")
    assert np.std(missed) < 0.9 * result.manifest.decision.posterior_mean["rms"]
    assert np.mean(np.abs(missed) < arrays["lg_energy_error"]) == pytest.approx(0.683, abs=0.1)
    with pytest.raises(NotPortable, match="pool of estimates"):
        combination_graph(run.chain)
    fit = (result.run / "learners" / "pretrained" / "fold-0" / "learner.json").stat().st_mtime_ns
    stack(config.model_copy(update={"prune": 0.0}))
    assert (result.run / "learners" / "pretrained" / "fold-0" / "learner.json").stat().st_mtime_ns == fit, "continued"


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
    return simulate(COMPOSITION, out, n_train=700, n_test=200, seed=5, array=ARRAY, workers=1)


def test_dataset_carries_its_array(folders):
    data = Dataset.open(folders[0])
    assert data.array == ARRAY
    # KASCADE's cuts are not applied in silence, and not on demand.
    assert data.evaluation_cuts.name == "none"
    for options in ({"train_cuts": "test"}, {"protocol": "matched"}):
        with pytest.raises(InputError, match="these cuts are KASCADE's, and twelve has none"):
            simulate(COMPOSITION, folders[0].parent / "cut", n_train=9, n_test=9, array=ARRAY, **options)
    assert data.matrices.shape == (700, SIDE, SIDE, 2)
    # Muon detectors everywhere: also where KASCADE has none.
    assert (data.matrices[:, 4:8, 4:8, 1] > 0).any()


def test_fits_find_core_and_size(folders):
    table = pl.read_parquet(build_table(folders[0], ctx=Context(workers=1)).parts())
    truth = pl.read_parquet(folders[0] / "truth.parquet")
    inside = (np.abs(truth["core_x_m"].to_numpy()) < 80) & (np.abs(truth["core_y_m"].to_numpy()) < 80)
    inside &= (truth["lg_ne"].to_numpy() > 4.8) & (truth["zenith_deg"].to_numpy() < 30)
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
        folds=2,
        workers=1,
        settings={"lenet": {"epochs": 2}, "lightgbm": {"rounds": 60}},
    )
    result = stack(config)
    assert [row.error for row in result.manifest.learners] == [None, None]
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


@pytest.fixture
def target_data(tmp_path: Path) -> Path:
    """A folder whose true energies lie 0.1 above the reconstructed ones, give or take 0.05."""
    folder = make_dataset(tmp_path / "energy_train", ENERGY, np.full(3000, 15.0), np.random.default_rng(2))
    (folder / "checksums.json").unlink()
    reconstructed = np.load(folder / "features.npy")[:, 0].astype(np.float32)
    true = reconstructed + np.random.default_rng(3).normal(0.1, 0.05, 3000)
    np.save(folder / "labels_energy.npy", true.astype(np.float32))
    return folder


def test_bins_hold_equal_numbers_of_events_under_the_cuts(target_data: Path) -> None:
    opened = Dataset.open(target_data, ENERGY)
    result = binned(opened)
    passing = opened.evaluation_cuts.mask(opened.scalar_frame()) & opened.usable
    assert 0 < passing.sum() < 3000
    counts = np.bincount(result.labels[passing], minlength=ENERGY.n_classes)
    assert counts.max() - counts.min() <= 10, "equal energies stay together"
    assert result.offsets.mean() == pytest.approx(0.1, abs=0.005)
    events = ShowerEvents(target_data, target_data, ENERGY, labelled=True)
    np.testing.assert_array_equal(events.known().labels, result.labels)
    with pytest.raises(InputError, match="labels are not read here"):
        ShowerEvents(target_data, target_data, ENERGY).known()


def test_true_values_that_cannot_be_are_refused(target_data: Path, tmp_path: Path) -> None:
    values = np.load(target_data / "labels_energy.npy")
    values[17] = 8.0
    np.save(target_data / "labels_energy.npy", values)
    with pytest.raises(InputError, match=r"labels_energy.npy: row 17 holds 8, expected lg\(E/eV\) from 13 to 21"):
        Dataset.open(target_data, ENERGY)
    (target_data / "labels_energy.npy").unlink()
    with pytest.raises(InputError, match="the public sets hold no true values"):
        Dataset.open(target_data, ENERGY)
    with write_dataset(tmp_path / "made", 2, ENERGY, source={}) as writer:
        writer.put(0, np.zeros((2, 16, 16, 2)), np.full((2, 5), 15.0), np.array([15.25, 15.5]))
    np.testing.assert_array_equal(np.asarray(Dataset.open(tmp_path / "made", ENERGY).labels), [15.25, 15.5])


def test_a_run_on_simulated_showers_predicts_what_an_own_array_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of measured events become float32 and hold no sizes: so does a set that is simulated for them."""
    monkeypatch.chdir(tmp_path)
    lists = tmp_path / "tanks"
    lists.mkdir()
    x_m, y_m = (one.ravel() for one in lattice(5, 60.0))
    stations = {"id": np.arange(25), "x_m": x_m, "y_m": y_m, "electron_area_m2": np.full(25, 10.0)}
    pl.DataFrame(stations).write_parquet(lists / "stations.parquet")
    response = "electron_deposit_mev = 2400.0\nthreshold_mev = 480.0\nsaturation_mev = 2e6"
    (lists / "array.toml").write_text(f'name = "tanks"\naltitude_m = 1400.0\n[response]\n{response}\n')
    rng = np.random.default_rng(3)
    event, station = np.nonzero(rng.random((60, 25)) < 0.5)
    signals = {"event": event, "station": station, "electron_mev": 500 + rng.exponential(9000.0, len(event))}
    pl.DataFrame(signals).write_parquet(lists / "signals.parquet")
    angles = {"event": np.arange(60), "Ze": rng.uniform(1, 29, 60), "Az": rng.uniform(0, 360, 60)}
    pl.DataFrame(angles).write_parquet(lists / "events.parquet")
    asked = ("simulate", "--task", "composition", "--groups", "proton,iron", "--array", "tanks/stations.parquet",
             "--train", "300", "--test", "100", "--workers", "1")  # fmt: skip
    call("cli.py", *asked, "--out", "sizes")
    call("cli.py", *asked, "--out", "own", "--without", "E,Ne,Nmu")
    simulated = Dataset.open(tmp_path / "own" / "composition_train")
    assert (simulated.matrices.dtype, simulated.scalars.dtype) == (np.float32, np.float32)
    assert float(np.max(simulated.matrices)) > 65_504, "a station saturates at 2,000 GeV, as its card says"
    assert simulated.quantities == ("Ze", "Az")
    call("cli.py", "convert", "tanks", "--out", "measured")
    for data in ("sizes", "own"):
        config = StackConfig(
            task="composition", data=tmp_path / data, run=tmp_path / f"run_{data}", learners=("quadratic_logit",),
            folds=2, workers=1,
        )  # fmt: skip
        stack(config)
    to = ("--data", "measured/tanks", "--out", "told.npz")
    for more in ((), ("--no-table",)):
        said = call("cli.py", "predict", "--run", "run_sizes", *to, *more, code=2).stderr
        assert "showers that lack it can be trained on as well: simulate --without Ne" in said.replace("\n", " ")
    call("cli.py", "predict", "--run", "run_own", *to)
    with np.load("told.npz") as told:
        assert np.isfinite(told["log_proba"]).all()
        assert len(told["log_proba"]) == 60
    with pytest.raises(InputError, match=r"quantities left out \(--without Ne\): KASCADE's sets have them all"):
        simulate(COMPOSITION, tmp_path / "no", n_train=3, n_test=3, without=("Ne",))


def test_simulated_stations_without_a_signal_have_no_time(tmp_path: Path) -> None:
    """0 is a time in sets of other arrays than KASCADE."""
    timed = replace(ARRAY, card=ArrayCard(depth_g_cm2=1000.0, times={"resolution_ns": 2.0}))
    folder, _ = simulate(COMPOSITION, tmp_path, n_train=150, n_test=1, seed=5, array=timed, workers=1)
    data = Dataset.open(folder)
    times_ns = np.load(folder / "arrival_ns.npy")
    np.testing.assert_array_equal(np.isnan(times_ns), np.asarray(data.matrices)[..., 0] == 0)
    assert not [line for line in data.remarks if "of the first" in line]


def test_stations_with_muon_detectors_alone_have_no_other_signals(tmp_path: Path) -> None:
    alone = np.zeros((SIDE, SIDE), dtype=bool)
    alone[::2, ::2] = True
    mixed = replace(ARRAY, electron_area_m2=np.where(alone, 0.0, 2.0), card=ArrayCard(depth_g_cm2=1000.0))
    folder, _ = simulate(COMPOSITION, tmp_path / "mixed", n_train=300, n_test=1, seed=5, array=mixed, workers=1)
    grids = np.asarray(Dataset.open(folder).matrices)
    assert not grids[:, alone, 0].any(), "strays too need a detector"
    share = (grids[..., 1] > 0).mean(axis=0)
    assert share[alone].mean() == pytest.approx(share[~alone].mean(), rel=0.2)
    blind = replace(mixed, electron_area_m2=np.zeros((SIDE, SIDE)))
    with pytest.raises(InputError, match="array twelve has no e/gamma detectors, whose signals trigger"):
        simulate(COMPOSITION, tmp_path / "blind", n_train=3, n_test=3, array=blind)


def test_a_simulated_set_written_as_lists_is_predicted_alike(tmp_path: Path) -> None:
    """Of an array with muon detectors at places of their own."""
    lists = tmp_path / "lists"
    lists.mkdir()
    x_m, y_m = (one.ravel() for one in lattice(7, 20.0))
    alone = np.arange(49) % 4 == 1
    areas = {"electron_area_m2": np.where(alone, 0.0, 2.0), "muon_area_m2": np.where(alone, 6.0, 0.0)}
    pl.DataFrame({"id": np.arange(49), "x_m": x_m, "y_m": y_m, **areas}).write_parquet(lists / "stations.parquet")
    (lists / "array.toml").write_text("altitude_m = 500.0\n")
    own = tmp_path / "own"
    _, test = simulate(
        COMPOSITION, own, n_train=500, n_test=120, seed=5, array=array_in(lists / "stations.parquet"), workers=1
    )
    config = StackConfig(
        task="composition", data=own, run=tmp_path / "run", learners=("quadratic_logit",), folds=2, workers=1
    )
    stack(config)
    data = Dataset.open(test, labels=False)
    deposits = np.asarray(data.matrices).reshape(len(data), -1, 2)
    event, cell = np.nonzero(deposits.any(axis=-1))
    away = np.hypot(data.array.x_m.ravel()[cell, None] - x_m, data.array.y_m.ravel()[cell, None] - y_m)
    signals = {name: deposits[event, cell, k] for k, name in enumerate(("electron_mev", "muon_mev"))}
    pl.DataFrame({"event": event, "station": away.argmin(axis=1), **signals}).write_parquet(lists / "signals.parquet")
    scalars = {name: np.asarray(data.scalars)[:, k] for k, name in enumerate(data.quantities)}
    pl.DataFrame({"event": np.arange(len(data)), **scalars}).write_parquet(lists / "events.parquet")
    call("cli.py", "convert", lists, "--out", tmp_path / "converted")
    ctx = Context(device="cpu", workers=1)
    one, other = (
        predict(load(tmp_path / "run"), folder, ctx).concatenated().log_proba
        for folder in (test, tmp_path / "converted" / "lists")
    )
    np.testing.assert_allclose(one, other, atol=1e-5)
    assert one.std() > 0.1
