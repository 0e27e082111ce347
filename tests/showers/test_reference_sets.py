"""Every number of simulated events, sets, archives and runs, beside the numbers they gave before.

Counts are drawn from densities in float32: sums and moments are compared to 1e-4, so that rounding changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars import selectors

from showerstack.showers.archives.raw import read_times
from showerstack.showers.array import KASCADE
from showerstack.showers.dataset import Dataset
from showerstack.showers.schema import COMPOSITION, ENERGY, GAMMA, Task
from showerstack.showers.simulation import blocks, simulate
from showerstack.showers.simulation import measured as measured_runs
from showerstack.showers.simulation.blocks import (
    PRIMARIES_PER_BLOCK,
    BlockJob,
    SimulatedEvents,
    passes_cuts,
    random_generator,
    simulate_block,
)
from showerstack.showers.simulation.cascade import RARE
from showerstack.showers.simulation.fronts import arrival_times
from showerstack.showers.simulation.measured import conditions_of_run, measured_columns, run_name, simulate_measured
from showerstack.showers.simulation.raw import reconstructed_columns, simulate_raw, true_columns
from showerstack.showers.simulation.reconstruction import Reconstructed
from showerstack.showers.simulation.settings import load_settings
from showerstack.showers.simulation.sky import Sky
from tests.references import summary

Reference = Callable[..., None]
ROUNDED = 1e-4
WORLD = load_settings("gammas").changed(
    spectrum__lg_energy_min=14.6, spectrum__contamination=0.2, spectrum__protons_per_photon=3.0
)
JOBS = {
    "composition": BlockJob(COMPOSITION, "train", 5, "mix", "none", WORLD, reuse=2),
    "gamma": BlockJob(GAMMA, "test", 6, "epos", "test", WORLD, reuse=3, proposal=RARE),
    "matched": BlockJob(COMPOSITION, "test", 7, "qgs", "matched", WORLD, array=KASCADE.without([5, 6], [20])),
    "unselected": BlockJob(GAMMA, "test", 7, "mix", "test", WORLD, reuse=5, preselect=False),
}


class Bars:
    """Progress bars that remember what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    @contextmanager
    def __call__(self, title: str, unit: str) -> Iterator[Callable[..., None]]:
        """Open a bar."""
        yield lambda done, total, *_: self.told.append((title, done, total))


def by_column(values: np.ndarray) -> list[dict[str, float]]:
    """Return the moments of each column of the last axis."""
    return [summary(values[..., k]) for k in range(values.shape[-1])]


def table_of(frame: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return the moments of the columns of numbers."""
    numeric = (series for series in frame if series.dtype.is_numeric())
    return {series.name: summary(series.to_numpy()) for series in numeric}


def moments(values: Any) -> Any:
    """Return moments of arrays, by column where there are two dimensions or more."""
    values = np.asarray(values)
    return summary(values) if values.ndim == 1 else by_column(values)


def of_events(events: SimulatedEvents) -> dict[str, Any]:
    """Return the moments of what a block holds."""
    weight = {} if events.weight is None else {"weight": summary(events.weight)}
    parts = {"rows": events.rows, "grids": events.grids, "group": events.group, "labels": events.labels}
    got = {"n": len(events)} | {name: moments(values) for name, values in (parts | vars(events.event)).items()}
    return got | weight | {"scalars": summary(events.scalars), "truth": table_of(events.truth)}


@pytest.mark.parametrize("name", JOBS)
def test_blocks(name: str, reference: Reference) -> None:
    """A block with its raw columns, arrival times and first events."""
    job = JOBS[name]
    events = simulate_block(job, 2)
    first = events.head(7)
    reference(
        {
            "all": of_events(events),
            "head": first.scalars.sum() + first.grids.sum() + first.group.sum() + first.rows.sum(),
            "times": summary(arrival_times(events, np.random.default_rng(31))),
            "reconstructed": [summary(column) for column in reconstructed_columns(events, job.task)[:, [0, 4]].T],
            "all reconstructed": summary(reconstructed_columns(events, job.task)),
            "true": summary(true_columns(events, job.task)),
            "measured": summary(measured_columns(events)),
        },
        rtol=ROUNDED,
    )


def test_random_numbers_of_blocks(reference: Reference) -> None:
    """Streams by task, split, seed, block, model and whether rare showers are thrown; a block has 4,096 primaries."""
    some = [
        BlockJob(task, split, seed, model, "none", WORLD, proposal=proposal)
        for task in (COMPOSITION, GAMMA, ENERGY)
        for split, seed in (("train", 1), ("test", 2))
        for model, proposal in (("mix", None), ("qgs", None), ("epos", RARE), ("sibyll", None), ("mix", RARE))
    ]
    drawn = [random_generator(job, *number).random() for job in some for number in ((0,), (1,), (3, 4))]
    assert len(set(drawn)) == len(drawn)
    reference({"drawn": np.array(drawn), "primaries": PRIMARIES_PER_BLOCK})


def test_more_models_have_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of rare showers lies between those of the first three models and all later ones."""
    monkeypatch.setattr(blocks, "MODELS", dict.fromkeys(["qgs", "epos", "sibyll", "fourth", "fifth"]))
    jobs = [BlockJob(GAMMA, "train", 1, model, "none", WORLD) for model in ("qgs", "epos", "sibyll", "fourth", "fifth")]
    jobs.append(BlockJob(GAMMA, "train", 1, "mix", "none", WORLD, proposal=RARE))
    assert len({random_generator(job, 0).random() for job in jobs}) == len(jobs)


def test_cuts_of_events() -> None:
    """The test's cuts on unrounded quantities; what is exactly at a limit does not pass."""
    zenith_deg = np.array([29.999, 30.0, 10.0, 10.0, 10.0])
    lg_ne = np.array([4.801, 5.0, 4.8, 5.0, 5.0])
    age = np.array([1.0, 1.0, 1.0, 1.48, 0.2])
    zero, n = np.zeros(5), 5
    event = Reconstructed(np.full(n, 15.0), zero, zero, zenith_deg, zero, lg_ne, np.full(n, 4.5), age)
    assert passes_cuts(event, "test").tolist() == [True, False, False, False, False]
    assert passes_cuts(event, "none").all()


def of_set(folder: Path, task: Task) -> dict[str, Any]:
    """Return the moments of all files of a dataset folder."""
    data = Dataset.open(folder, task)
    source = {name: value for name, value in data.source.items() if not isinstance(value, str) and name != "array"}
    arrays = {path.stem: moments(np.load(path).astype(np.float64)) for path in sorted(folder.glob("*.npy"))}
    truth = pl.read_parquet(folder / "truth.parquet")
    some = [summary(truth.select(kind).to_numpy()) for kind in (selectors.float(), selectors.integer())]
    return {"source": source, "truth": some} | arrays


SETS: dict[str, tuple[Task, dict[str, Any]]] = {
    "rare": (GAMMA, {"reuse": 2, "proposal": RARE, "settings": WORLD, "train_cuts": "test"}),
    "matched": (COMPOSITION, {"protocol": "matched", "model": "qgs", "world": "harder"}),
    "energy": (ENERGY, {"protocol": "2026", "model": "epos", "array": KASCADE.without([9], [])}),
}


@pytest.mark.parametrize("name", SETS)
def test_sets(name: str, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRIMARIES_PER_BLOCK", 150)
    (task, options), bars = SETS[name], Bars()
    folders = simulate(task, tmp_path, n_train=45, n_test=25, seed=8, workers=1, bars=bars, **options)
    told = [list(one[1:]) for one in bars.told]
    reference({"progress": told} | {folder.name: of_set(folder, task) for folder in folders}, rtol=ROUNDED)


@pytest.mark.parametrize("task", [COMPOSITION, GAMMA], ids=lambda task: task.name)
def test_raw_archives(task: Task, reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PRIMARIES_PER_BLOCK", 60)
    bars = Bars()
    files = simulate_raw(task, tmp_path, 230, seed=9, world="gammas", workers=1, reuse=2, bars=bars)
    assert [file.stat().st_size > 0 for file in files] == [True] * len(files)
    got: dict[str, Any] = {"progress": [list(one[1:]) for one in bars.told]}
    for file in files:
        with np.load(file) as archive:
            (key,) = (name for name in archive.files if not name.endswith("json"))
            got[file.stem] = by_column(archive[key].astype(np.float64))
    reference(got, rtol=ROUNDED)


SKY = Sky(
    flux_1_pev=6e-21,
    runs=3,
    live_time_h=0.01,
    pause_h=0.25,
    photon_fraction=0.1,
    dead_stations=4.0,
    dead_muon_detectors=6.0,
    deposit_drift=0.2,
    model="mix",
    zenith_max_deg=35.0,
)


def test_conditions_of_runs(reference: Reference) -> None:
    runs = [conditions_of_run(SKY, WORLD, seed, number) for seed in (1, 2) for number in range(3)]
    one = conditions_of_run(SKY.model_copy(update={"runs": 1, "dead_stations": 1e4}), WORLD, 1, 0)
    assert len(one.dead) == KASCADE.n_stations // 2
    assert [run_name(k) for k in range(5)] == ["004000", "004001", "004010", "004011", "004020"]
    reference(
        {
            "runs": [
                vars(run)
                | {"start": run.start.timestamp(), "dead": summary(np.array(run.dead)), "array": run.array.n_stations}
                | {"dead_muon": summary(np.array(run.dead_muon)), "muons": run.array.n_muon_detectors}
                | {
                    "detector": [
                        getattr(run.detector.detector, f"{name}_mev") for name in ("electron", "muon", "punch")
                    ]
                }
                for run in runs
            ],
            "scale of one run": one.deposit_scale,
        }
    )


def test_measured_runs(reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_runs, "PRIMARIES_PER_BLOCK", 150)
    (tmp_path / "sky.toml").write_text(
        "runs = 2\nflux_1_pev = 6e-21\nlive_time_h = 0.02\nphoton_fraction = 0.1\n"
        "dead_stations = 3\ndeposit_drift = 0.2\n"
        "lg_energy_min = 14.7\n"
    )
    bars = Bars()
    files = simulate_measured(tmp_path / "sky.toml", tmp_path / "raw", seed=3, workers=1, bars=bars)
    assert bars.told == [("simulate runs", 1, 2), ("simulate runs", 2, 2)]
    truth = tmp_path / "raw" / "truth" / "004001.parquet"
    truth.unlink()
    simulate_measured(tmp_path / "sky.toml", tmp_path / "raw", seed=3, workers=1)
    assert truth.exists(), "a run without its truth is made again"
    got: dict[str, Any] = {"exposure": json.loads((tmp_path / "raw" / "exposure.json").read_text())}
    for file in files:
        run = file.stem.removesuffix("_matrices")
        with np.load(file) as grids, np.load(file.with_name(f"{run}_features.npz")) as features:
            got[run] = {
                "grids": by_column(grids["matrices"].astype(np.float64)),
                "features": by_column(features["features"].astype(np.float64)),
            }
            n = len(features["features"])
        with np.load(file.with_name(f"{run}_extra_features.npz"), allow_pickle=True) as extra:
            table = extra["extra_features"]
        assert table[:, 0].tolist() == [int(run)] * n
        assert table[:, 1].tolist() == list(range(n))
        got[run]["times"] = summary(read_times(file.with_name(f"{run}_extra_features.npz"), n) - 946_684_800)
        got[run]["truth"] = table_of(pl.read_parquet(tmp_path / "raw" / "truth" / f"{run}.parquet"))
        got[run]["conditions"] = json.loads((tmp_path / "raw" / "truth" / f"{run}.json").read_text())
    reference(got, rtol=ROUNDED)
