"""Whole simulations: format, seeds, workers, cuts, reuse, and the cheap pre-selection.

Settings refuse what makes no sense, by name, and survive a round trip through TOML.
"""

import shutil
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.world.calibrate import write_settings
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError
from showerstack.runtime.files import hash_file
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, GAMMA, Task
from showerstack.showers.simulation import datasets, load_settings, simulate
from showerstack.showers.simulation.blocks import BlockJob, passes_cuts, simulate_block
from showerstack.showers.simulation.cascade import RARE
from showerstack.showers.simulation.reconstruction import Reconstructed
from showerstack.showers.simulation.settings import WORLDS, Settings
from showerstack.showers.writer import problems


def _hashes(folder: Path) -> dict[str, str]:
    return {file.name: hash_file(file) for file in sorted(folder.iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=lambda task: task.name)
def test_same_bytes_for_any_number_of_workers(task: Task, tmp_path: Path) -> None:
    made = [
        simulate(task, tmp_path / str(workers), n_train=4_000, n_test=300, seed=3, workers=workers)
        for workers in (1, 3)
    ]
    for one, three in zip(*made, strict=True):
        assert _hashes(one) == _hashes(three)


def test_format_and_source(tiny_gamma: Path) -> None:
    for split, n in (("train", 2_000), ("test", 1_000)):
        data = Dataset.open(tiny_gamma / f"gamma_{split}")
        data.validate()
        assert len(data) == n
        assert data.scalars.dtype == np.float16
        assert set(np.unique(data.labels)) == {0, 1}
        assert data.source["split"] == split
        assert data.source["cuts"] == "test"
        assert data.source["evaluation_cuts"] == "test"
        assert data.source["protocol"] == "v2"
        assert data.source["age"] is False
        assert data.age is None
    assert not (data.matrices[:, 7:9, 7:9] > 0).any()
    assert not (data.matrices[:, 4:12, 4:12, 1] > 0).any()


def test_seed_and_split_change_the_events(tmp_path: Path) -> None:
    a, a_test = simulate(COMPOSITION, tmp_path / "a", n_train=200, n_test=200, seed=1, train_cuts="test")
    b, _ = simulate(COMPOSITION, tmp_path / "b", n_train=200, n_test=200, seed=2, train_cuts="test")
    first = [np.asarray(Dataset.open(folder).scalars) for folder in (a, a_test, b)]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])


@pytest.mark.slow
def test_more_events_begin_with_the_same_ones(tmp_path: Path) -> None:
    few, _ = simulate(COMPOSITION, tmp_path / "a", n_train=500, n_test=1)
    many, _ = simulate(COMPOSITION, tmp_path / "b", n_train=3_000, n_test=1)
    assert np.array_equal(Dataset.open(few).matrices, Dataset.open(many).matrices[:500])


def test_composition_showers_do_not_depend_on_photon_constants(tmp_path: Path) -> None:
    default = load_settings()
    photons = {
        "spectrum__protons_per_photon": 3.0,
        "spectrum__photon_hard_share": 0.5,
        "spectrum__contamination": 0.1,
        "cascade__photon_lg_nmu_offset": 0.3,
        "cascade__photonuclear_scale": 9.0,
        "detector__punch_photon": 0.9,
    }
    first = simulate_block(BlockJob(COMPOSITION, "test", 3, "mix", "test", default), 0)
    second = simulate_block(BlockJob(COMPOSITION, "test", 3, "mix", "test", default.changed(**photons)), 0)
    assert len(first.grids) > 50
    np.testing.assert_array_equal(first.grids, second.grids)
    np.testing.assert_array_equal(first.event.lg_nmu, second.event.lg_nmu)
    gammas = simulate_block(BlockJob(GAMMA, "test", 3, "mix", "test", default), 0)
    others = simulate_block(BlockJob(GAMMA, "test", 3, "mix", "test", default.changed(**photons)), 0)
    assert not np.array_equal(gammas.grids, others.grids)


def test_cuts_hold_on_raw_values(tiny_composition: Path) -> None:
    scalars = np.asarray(Dataset.open(tiny_composition / "composition_test").scalars, dtype=np.float32)
    # Stored values are rounded after the cuts: the limits themselves may appear.
    assert scalars[:, 1].max() <= 30.0
    assert scalars[:, 3].min() >= np.float16(4.8)


def test_cuts_are_the_declared_ones() -> None:
    """Ze, Ne, Age and Nmu just inside and on each limit: on it no event passes, and Ze > 0 counts in ``matched``."""
    fine = {"lg_energy": 15.0, "zenith_deg": 20.0, "azimuth_deg": 1.0, "lg_ne": 5.0, "lg_nmu": 4.0, "age": 1.0}
    limits = [("zenith_deg", 30.0), ("lg_ne", 4.8), ("age", 0.2), ("age", 1.48), ("zenith_deg", 0.0), ("lg_nmu", 3.6)]
    rows = [fine, *(fine | {name: value} for name, value in limits)]
    columns = {name: np.array([row.get(name, 0.0) for row in rows]) for name in (f.name for f in fields(Reconstructed))}
    event = Reconstructed(**columns)
    assert passes_cuts(event, "test").tolist() == [True, False, False, False, False, True, True]
    assert passes_cuts(event, "matched").tolist() == [True] + 6 * [False]
    assert passes_cuts(event, "none").all()


def test_reused_showers_share_truth_and_group(tmp_path: Path) -> None:
    folder, _ = simulate(COMPOSITION, tmp_path, n_train=2_000, n_test=10, reuse=5)
    data = Dataset.open(folder)
    truth = pl.read_parquet(folder / "truth.parquet")
    assert np.array_equal(truth["shower"].to_numpy(), data.groups)
    counts = truth.group_by("shower").agg(
        pl.len(), pl.col("lg_energy").n_unique().alias("energies"), pl.col("core_x_m").n_unique().alias("cores")
    )
    assert counts["len"].max() == 5
    assert counts["energies"].max() == 1
    assert (counts["cores"] == counts["len"]).all()


@pytest.mark.slow
def test_preselection_loses_less_than_a_thousandth() -> None:
    job = BlockJob(COMPOSITION, "train", 11, "mix", "test", load_settings())
    without = replace(job, preselect=False)
    kept, every = ([len(simulate_block(j, block)) for block in range(15)] for j in (job, without))
    assert sum(every) > 2_500
    assert 0 <= sum(every) - sum(kept) <= max(0.001 * sum(every), 1.0)


def test_truth_is_never_needed_or_read(tmp_path: Path) -> None:
    from showerstack.features.build import build_table

    folder, _ = simulate(COMPOSITION, tmp_path / "a", n_train=300, n_test=1, train_cuts="test")
    before = build_table(folder, tmp_path / "t1", ctx=Context(workers=1))
    (folder / "truth.parquet").write_text("poison")
    after = build_table(folder, tmp_path / "t2", ctx=Context(workers=1))
    assert np.array_equal(before.matrix(before.columns), after.matrix(after.columns), equal_nan=True)
    assert before.fingerprint == after.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "geisha"}, "unknown hadronic model 'geisha'"),
        ({"world": "flat"}, "unknown world 'flat'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(COMPOSITION, tmp_path, **({"n_train": 10, "n_test": 10} | options))
    assert not any(tmp_path.iterdir())


def test_only_the_benchmarks_tasks_can_be_simulated(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be simulated"):
        simulate(Task("muons", ("a", "b"), "labels.npy"), tmp_path, n_train=10, n_test=10)


def test_existing_sets_are_kept(tmp_path: Path) -> None:
    (tmp_path / "composition_test").mkdir()
    with pytest.raises(InputError, match="composition_test exists already"):
        simulate(COMPOSITION, tmp_path, n_train=10, n_test=10)
    assert not (tmp_path / "composition_train").exists()


@pytest.mark.slow
def test_an_interrupted_simulation_goes_on_with_the_second_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(out: Path, **options: int) -> list[dict[str, str]]:
        return [_hashes(folder) for folder in simulate(COMPOSITION, out, **({"n_train": 20, "n_test": 10} | options))]

    whole = wanted(tmp_path / "whole")
    wanted(tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "composition_test")
    before = (tmp_path / "cut" / "composition_train").stat().st_mtime_ns
    assert wanted(tmp_path / "cut") == whole
    assert (tmp_path / "cut" / "composition_train").stat().st_mtime_ns == before, "the finished set is kept"
    for options, message in (
        ({"seed": 2}, "differs in seed: choose"),
        ({"n_train": 21}, "with 20 events instead of 21"),
    ):
        with pytest.raises(InputError, match=message):
            wanted(tmp_path / "cut", **options)
    monkeypatch.setattr(datasets, "SIMULATION_VERSION", 0)
    with pytest.raises(InputError, match="differs in simulation_version: choose"):
        wanted(tmp_path / "cut")


@pytest.mark.slow
def test_a_damaged_set_is_not_taken_for_a_finished_one(tmp_path: Path) -> None:
    simulate(COMPOSITION, tmp_path, n_train=20, n_test=10)
    file = tmp_path / "composition_train" / "matrices.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"matrices\.npy is not the file that was written"):
        simulate(COMPOSITION, tmp_path, n_train=20, n_test=10)
    simulate(COMPOSITION, tmp_path, n_train=20, n_test=10, overwrite=True)
    assert problems(tmp_path / "composition_train") == []


@pytest.mark.slow
def test_protocol_2026_is_stored_in_float32_with_the_age(tmp_path: Path) -> None:
    for task, age in ((COMPOSITION, True), (GAMMA, False)):
        for folder in simulate(task, tmp_path, n_train=300, n_test=100, model="qgs", protocol="2026"):
            data = Dataset.open(folder, task)
            assert data.matrices.dtype == data.scalars.dtype == np.float32
            assert np.load(folder / "features.npy").shape[1] == (6 if age else 5)
            assert (data.age is not None) == age
            assert data.protocol == "2026"
            assert not (folder / "age.npy").exists()
    with pytest.raises(InputError, match="no protocol 'matched' for task 'gamma'"):
        simulate(GAMMA, tmp_path / "other", n_train=3, n_test=3, protocol="matched")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[detector]\nelectron_mev = -1.0", r"detector\.electron_mev.*greater than 0"),
        ("[detector]\nelectron_stray = 1.5", r"detector\.electron_stray"),
        ("[detector]\nelectron_cap_mev = 70000.0", r"detector\.electron_cap_mev"),
        ("[spectrum]\nlg_energy_max = 25.0", r"spectrum\.lg_energy_max"),
        ("[spectrum]\nlg_energy_min = 18.2\nlg_energy_max = 18.1", "must be above lg_energy_min"),
        ("[shape]\nage_max = 1.56", r"age_max = 1\.56 must be below 1\.55"),
        ("[shape]\nage_min = 1.5\nage_max = 1.4", "lower limits of the shapes"),
        ("[detektor]\nelectron_mev = 9.0", r"detektor: unknown key"),
        ("[detector]\nelectron_mew = 9.0", r"detector\.electron_mew: unknown key"),
        ("[detector]\nelectron_mev = nan", r"detector\.electron_mev"),
        ("detector = 3", "detector must be a table"),
        ("[detector", "not TOML"),
        ("seed = " + 5000 * "9", "not TOML"),
    ],
)
def test_bad_settings_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "world.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_settings(file)


def test_unknown_world_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="default, harder, easier"):
        load_settings("hardest")


def test_worlds_differ() -> None:
    assert len({load_settings(world).digest() for world in WORLDS}) == len(WORLDS)


def test_file_changes_only_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "world.toml"
    file.write_text("[trigger]\nstations = 5\n")
    assert load_settings(file) == load_settings().changed(trigger__stations=5)


@pytest.mark.parametrize("start", [Settings(), load_settings()], ids=["plain", "default world"])
def test_round_trip(tmp_path: Path, start: Settings) -> None:
    settings = start.changed(cascade__lg_ne_offset=-0.1234, detector__muon_mev=8.0, trigger__stations=6)
    write_settings(tmp_path / "w.toml", settings, "A world.")
    content = (tmp_path / "w.toml").read_text()
    assert "muon_mev = 8.0" in content
    assert "punch_photon_range_m" not in content, "what has its usual value need not be said"
    assert load_settings(tmp_path / "w.toml") == settings


def test_default_world_is_a_file_that_the_program_wrote(tmp_path: Path) -> None:
    shipped = (
        resources.files("showerstack.showers.simulation").joinpath("worlds/default.toml").read_text(encoding="utf-8")
    )
    write_settings(tmp_path / "w.toml", load_settings(), shipped.splitlines()[0].removeprefix("# "))
    assert (tmp_path / "w.toml").read_text(encoding="utf-8") == shipped, "moved by hand, or with an outdated meaning"


def test_wrong_name_in_changed_is_refused() -> None:
    with pytest.raises(InputError, match=r"cascade\.nonsense"):
        Settings().changed(cascade__nonsense=1.0)


@pytest.mark.slow
def test_rare_hadrons_come_with_their_weights(tmp_path: Path) -> None:
    wanted = {"n_train": 600, "n_test": 300, "train_cuts": "test", "seed": 5, "proposal": RARE}
    first = simulate(GAMMA, tmp_path / "a", **wanted, workers=1, reuse=3)
    again = simulate(GAMMA, tmp_path / "b", **wanted, workers=3, reuse=3)
    for one, other in zip(first, again, strict=True):
        assert _hashes(one) == _hashes(other)
        data = Dataset.open(one)
        assert data.source["rare"] == {"share": 0.6, "mean": 5.0}
        weights = np.load(one / "weight.npy")
        assert weights.dtype == np.float32
        assert (weights[data.labels == 0] == 1.0).all(), "gammas keep the natural density"
        assert weights[data.labels == 1].min() < 0.1
        assert weights.max() < 1.93
        np.testing.assert_array_equal(pl.read_parquet(one / "truth.parquet")["weight"].to_numpy(), weights)
        np.testing.assert_allclose(data.weights, weights / weights.mean(dtype=np.float64), rtol=1e-6)
        assert len(np.unique(np.column_stack([data.groups, data.weights]), axis=0)) == len(np.unique(data.groups))
        assert problems(one) == []
    with pytest.raises(InputError, match="differs in rare"):
        simulate(GAMMA, tmp_path / "a", **(wanted | {"proposal": None}), reuse=3)
    with pytest.raises(InputError, match="belong to the task gamma"):
        simulate(COMPOSITION, tmp_path / "c", n_train=1, n_test=1, proposal=RARE)
