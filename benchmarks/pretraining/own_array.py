r"""What a network pretrained for an array of one's own gains there over training from scratch.

    python -m benchmarks.pretraining.own_array --arrays square --pretrain-only   # each array may have a process
    python -m benchmarks.pretraining.own_array --store

Two arrays that are not KASCADE, each a table of stations: a square of 10 x 10 stations 20 m apart, and KASCADE's
stations of which every second one has no muon detector. Two networks are pretrained for each, one from random and one,
with fewer showers, from the released weights. They and two others then learn from the same showers of a world that
pretraining has not seen, with the same showers apart for early stopping: ``mlp`` from scratch, and ``pretrained`` from
the released weights as they are, which know KASCADE alone. All are compared on the same test showers; nothing is chosen
there. Weights, showers and fits are kept below OUT, so that a killed run continues.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.learning.pretraining import DATA_SEED, VALID_SHARE, only
from benchmarks.shared.drawn import drawn
from benchmarks.shared.results import HELP, store
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.train import PretrainSettings, pretrain
from showerstack.models.pretraining.weights import SHIPPED, SHIPPED_SHA256, WEIGHTS_FILE, card_path
from showerstack.models.registry import create, spec
from showerstack.runtime.context import bar
from showerstack.runtime.files import atomic_path, hash_file, read_json, write_npz
from showerstack.showers.archives.station_lists import array_in
from showerstack.showers.array import KASCADE, lattice
from showerstack.showers.schema import COMPOSITION

WORLD = "harder"
SIZES = (5_000, 25_000)
N_TEST = 25_000
SCRATCH, RELEASED = "mlp", "pretrained, released weights"
OWN, CONTINUED = "pretrained, own weights", "pretrained, own weights from the released"
SYSTEMS = (SCRATCH, RELEASED, CONTINUED, OWN)
FOLDERS = {OWN: "weights", CONTINUED: "weights-shipped"}
"""Systems that start from weights for the array, and where these are kept below its folder."""
BATCH_SIZE = 256
CONTINUED_SHOWERS, CONTINUED_SEED = 240_000, 3
"""Of the weights that go on from the released ones; these know the showers of seeds 1 and 2."""


def square() -> pl.DataFrame:
    """Return 100 equal stations 20 m apart."""
    x_m, y_m = (plane.ravel() for plane in lattice(10, 20.0))
    area = np.full(100, 3.0)
    return pl.DataFrame({"x_m": x_m, "y_m": y_m, "electron_area_m2": area, "muon_area_m2": area})


def thinned() -> pl.DataFrame:
    """Return KASCADE's stations, of which every second one has no muon detector."""
    row, column = np.divmod(KASCADE.cells, KASCADE.x_m.shape[1])
    planes = {name: getattr(KASCADE, name).ravel()[KASCADE.cells] for name in ("x_m", "y_m", "electron_area_m2")}
    muon = KASCADE.muon_area_m2.ravel()[KASCADE.cells] * ((row + column) % 2)
    return pl.DataFrame(planes).with_columns(pl.Series("muon_area_m2", muon))


ARRAYS = {"square": square, "thinned": thinned}


def stations_file(name: str, out: Path) -> Path:
    """Return the table of an array's stations, written where it is missing."""
    file = out / name / "stations.parquet"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            ARRAYS[name]().with_row_index("id").write_parquet(temporary)
    return file


def weights_of(name: str, system: str, showers: int, out: Path) -> Path:
    """Return the weights for an array, pretrained as far as they are not yet."""
    array, folder = array_in(stations_file(name, out)), out / name / FOLDERS[system]
    if system == CONTINUED:
        how: dict[str, Any] = {"start": SHIPPED, "start_sha256": SHIPPED_SHA256, "seed": CONTINUED_SEED}
        showers = CONTINUED_SHOWERS
    else:
        how = {}
    settings = PretrainSettings.of_batches(BATCH_SIZE, showers=showers, array=array, **how)
    card = card_path(folder / WEIGHTS_FILE)
    if card.exists() and read_json(card)["rounds"] == settings.rounds:
        return folder / WEIGHTS_FILE
    return pretrain(folder, settings, bars=bar)


@dataclass(frozen=True)
class ArraySets:
    """Showers of an array, and the weights for it by system."""

    train: Batch
    test: Batch
    weights: dict[str, Path]

    def start_of(self, system: str) -> dict[str, Any]:
        """Return the settings by which a system starts from weights for the array; none for others."""
        file = self.weights.get(system)
        return {} if file is None else {"weights": str(file), "weights_sha256": hash_file(file)}


def loss_of(array: str, n: int, seed: int, system: str, sets: ArraySets, out: Path) -> np.ndarray:
    """Return the log-loss of each test shower (N,), of a fit that is made where it is not kept."""
    start = sets.start_of(system)
    tag = "" if system == SCRATCH else "-" + start.get("weights_sha256", SHIPPED_SHA256)[:8]
    file = out / "fits" / f"{array}-{n}-{seed}-{system.replace(', ', '_').replace(' ', '_')}{tag}.npz"
    if not file.exists():
        entry = spec(system.partition(",")[0])
        assert isinstance(entry.features, str)
        columns = feature_set(entry.features, sets.train.columns)
        # Released weights are refused on another array: here they are to be compared there.
        known = KASCADE if system == RELEASED else sets.train.array
        events, test = (replace(only(batch, columns), array=known) for batch in (sets.train, sets.test))
        rows = np.random.default_rng([n, seed]).permutation(len(events))[:n]
        n_valid = round(VALID_SHARE * n)
        train, valid = (events.take(np.sort(part)) for part in (rows[n_valid:], rows[:n_valid]))
        learner = create(entry, COMPOSITION.classes, overrides=start)
        learner.fit(train, valid, seed=seed)
        log_p = learner.predict_log_proba(replace(test, labels=None))
        loss = -log_p[np.arange(len(log_p)), sets.test.labels]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_npz(file, loss=loss)
        print(f"{file.stem}: {loss.mean():.4f}", flush=True)
    with np.load(file) as kept:
        return np.asarray(kept["loss"], dtype=np.float64)


def summary(results: dict[tuple[str, int, str], np.ndarray]) -> str:
    """Return a table: log-losses, differences to ``mlp`` and, where they are there, to released weights; of all seeds.

    Parameters
    ----------
    results
        (seeds, N) log-loss of each test shower by array, size and system.
    """
    head = ("array", "training showers", "system", "log-loss", "minus `mlp`", "single seeds", "minus released weights")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for (array, n, system), losses in results.items():
        gaps = losses - results[array, n, SCRATCH]
        cells = [array, f"{n:,}", system, _with_error(losses.mean(axis=0), "{:.4f}")]
        single = ", ".join(f"{gap:+.4f}" for gap in gaps.mean(axis=1))
        cells += ["", ""] if system == SCRATCH else [_with_error(gaps.mean(axis=0), "{:+.4f}"), single]
        released = results.get((array, n, RELEASED))
        is_own = system in FOLDERS and released is not None
        cells.append(_with_error((losses - released).mean(axis=0), "{:+.4f}") if is_own else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_error(values: np.ndarray, form: str) -> str:
    return f"{form.format(values.mean())} ± {values.std(ddof=1) / len(values) ** 0.5:.4f}"


def made(weights: dict[str, dict[str, Path]]) -> str:
    """Return a table of what the weights were made from; the log-loss is that in random worlds that are told."""
    head = ("array", "start", "stations", "muon detectors", "showers", "processor minutes", "log-loss")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, files in weights.items():
        for system, file in files.items():
            card = read_json(card_path(file))
            array = card["array"]
            cells = [name, "released" if system == CONTINUED else "random", array["stations"], array["muon_detectors"]]
            cells += [f"{card['showers']:,}", f"{60 * card['cpu_hours']:.1f}"]
            cells += [f"{card['log_loss']['composition']:.4f}"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, pretrain and train what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/own_array"), help="folder of weights, showers and fits")
    parser.add_argument("--arrays", default=",".join(ARRAYS))
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--showers", type=int, default=1_440_000, help="drawn from a random start")
    parser.add_argument("--pretrain-only", action="store_true", help="end when the weights are there")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.set_num_threads(1)
    weights, results = dict[str, dict[str, Path]](), dict[tuple[str, int, str], np.ndarray]()
    for name in options.arrays.split(","):
        weights[name] = {
            system: weights_of(name, system, options.showers, options.out)
            for system in options.systems
            if system in FOLDERS
        }
        if options.pretrain_only:
            continue
        array = array_in(stations_file(name, options.out))
        train, test = (
            drawn(WORLD, COMPOSITION.name, n, seed=DATA_SEED, split=split, data=options.out / "data", array=array)[0]
            for n, split in ((max(SIZES), "train"), (N_TEST, "test"))
        )
        sets = ArraySets(train, test, weights[name])
        for n in SIZES:
            for system in options.systems:
                seeds = [loss_of(name, n, int(seed), system, sets, options.out) for seed in options.seeds.split(",")]
                results[name, n, system] = np.stack(seeds)
    text = made(weights)
    if results and SCRATCH in options.systems:
        text += f"\n\n{summary(results)}\n\n±: one standard error of the test showers, of means over the seeds."
    print(text)
    if options.store:
        print(store("own_array", "Pretraining for an array of one's own", text, worlds=(WORLD,), weights="shipped"))


if __name__ == "__main__":
    main()
