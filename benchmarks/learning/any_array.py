r"""What the network that was pretrained on many arrays gains at arrays that it has not seen.

    python -m benchmarks.learning.any_array --store
    python -m benchmarks.learning.any_array --grid --seeds 1 --worlds harder --systems mlp pretrained --store
    python -m benchmarks.learning.any_array --arrays "37 stations, 3,000 m" --alone 1400000 --worlds harder
    python -m benchmarks.learning.any_array --drawn 4 --body-rate 0.3 --worlds harder --seeds 1

At KASCADE and six other arrays of :mod:`benchmarks.fits.arrays` learners are trained on the same showers of a world and
judged on the same test showers; nothing is chosen there. ``mlp`` is trained from scratch, ``pretrained`` starts from
the weights for any array, and for comparison from KASCADE's. Energies and cores follow the array, without KASCADE's
cuts. Showers and fits are kept below OUT, so that a killed run continues.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fits.arrays import cases, stations
from benchmarks.learning.pretraining import DATA_SEED, VALID_SHARE, only
from benchmarks.shared.drawn import FOREIGN, drawn
from benchmarks.shared.results import HELP, store
from showerstack.features.catalogue import feature_set
from showerstack.models.base.learner import Batch
from showerstack.models.pretraining.arrays import draw_array
from showerstack.models.pretraining.learner import PretrainedLearner
from showerstack.models.pretraining.train import PretrainSettings, pretrain
from showerstack.models.pretraining.weights import ANY, ANY_FILE, ANY_SHA256, SHIPPED_SHA256, next_seed, weights_file
from showerstack.models.registry import create, spec
from showerstack.runtime.files import hash_file, write_npz
from showerstack.scoring.metrics.losses import event_losses
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.schema import TASKS

ARRAYS = (
    "KASCADE",
    "KASCADE, no muon detectors",
    "16 stations, sea level",
    "37 stations, 3,000 m",
    "81 tanks, as on ice",
    "dense, high, large muon detectors",
    "dense carpet, 2,200 m",
)
"""KASCADE, and six that no pretraining has drawn; the last two lie beyond its ranges, in area and spacing."""
SPACINGS_M, DEPTHS_G_CM2 = (15, 30, 60, 120), (650, 800, 1000)
"""Of the square arrays of 64 stations with detectors of 2 m2 of both kinds, which ``--grid`` compares."""
SCRATCH, STARTED, KASCADES = "mlp", "pretrained", "pretrained, KASCADE's weights"
SYSTEMS = (SCRATCH, STARTED, KASCADES)
FOREIGN_AT = ("37 stations, 3,000 m",)
"""Where the world of other lateral functions and gains is compared."""
N_TEST = 10_000
DRAWN = 680
"""Part of the seed of drawn arrays."""


def square_arrays() -> dict[str, DetectorArray]:
    """Return the arrays of the grid in spacing and depth, by name."""
    made = [
        stations(f"{spacing} m, {depth} g/cm2", spacing, 8, depth, 2.0, 2.0, triangular=False)
        for spacing in SPACINGS_M
        for depth in DEPTHS_G_CM2
    ]
    return {array.name: array for array in made}


def loss_of(
    where: tuple[str, str, str], n: int, seed: int, system: str, sets: tuple[Batch, Batch], start: dict[str, Any],
    out: Path,
) -> np.ndarray:  # fmt: skip
    """Return the log-loss of each test shower (N,), of a fit that is made where it is not kept.

    Parameters
    ----------
    where
        Task, world and array.
    start
        Settings of the learner that starts from the weights for any array.
    """
    overrides = start if system == STARTED else {}
    tags = {STARTED: f"{start['weights_sha256'][:8]}-{start['body_rate']:g}", KASCADES: SHIPPED_SHA256[:8]}
    name = "-".join((*where, str(n), str(seed), system, *([tags[system]] if system in tags else [])))
    file = out / "fits" / f"{name.replace(', ', '_').replace(' ', '_').replace('/', '_')}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_npz(file, loss=_fitted_loss(TASKS[where[0]].classes, n, seed, system, sets, overrides))
    with np.load(file) as kept:
        return np.asarray(kept["loss"], dtype=np.float64)


def _fitted_loss(
    classes: tuple[str, ...], n: int, seed: int, system: str, sets: tuple[Batch, Batch], overrides: dict[str, Any]
) -> np.ndarray:
    entry = spec(system.partition(",")[0])
    assert isinstance(entry.features, str)
    columns = feature_set(entry.features, sets[0].columns)
    # KASCADE's weights are refused on another array: here they are to be compared there.
    known = KASCADE if system == KASCADES else sets[0].array
    events, test = (replace(only(batch, columns), array=known) for batch in sets)
    rows = np.random.default_rng([n, seed]).permutation(len(events))[:n]
    n_valid = round(VALID_SHARE * n)
    train, valid = (events.take(np.sort(part)) for part in (rows[n_valid:], rows[:n_valid]))
    learner = create(entry, classes, overrides=overrides)
    learner.fit(train, valid, seed=seed)
    assert sets[1].labels is not None
    return event_losses(learner.predict_log_proba(replace(test, labels=None)), sets[1].labels)


def alone(array: DetectorArray, showers: int, out: Path) -> Path:
    """Return weights that went on from those for any array with so many showers of one array alone."""
    settings = PretrainSettings.of_batches(
        PretrainSettings.batch_size, start=ANY, start_sha256=ANY_SHA256, array=array, showers=showers,
        seed=next_seed(ANY),
    )  # fmt: skip
    return pretrain(out / f"alone-{array.digest[:8]}-{showers}", settings)


HEAD = (
    "task",
    "world",
    "array",
    "training showers",
    *(f"`{name}`" for name in SYSTEMS[:2]),
    "difference",
    "with KASCADE's weights",
)


def row_of(where: tuple[str, str, str], n: int, losses: dict[str, np.ndarray]) -> str:
    """Return a line of the table; ``losses`` (seeds, N) by system."""
    cells = [*where, f"{n:,}"] + [f"{losses[name].mean():.4f}" if name in losses else "" for name in SYSTEMS[:2]]
    for name in SYSTEMS[1:]:
        if name in losses and SCRATCH in losses:
            gap = (losses[name] - losses[SCRATCH]).mean(axis=0)
            cells.append(f"{gap.mean():+.4f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.4f}")
        else:
            cells.append("")
    return f"| {' | '.join(cells)} |"


def _of_mean(errors: np.ndarray) -> float:
    """Return the standard error of a mean of independent values."""
    return float(np.sqrt((errors**2).sum()) / max(len(errors), 1))


def main() -> None:
    """Parse, train what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench/any_array"), help="folder of showers and fits")
    parser.add_argument(
        "--weights", type=Path, default=ANY_FILE, help="weights for any array, or their folder (default: the released)"
    )
    parser.add_argument("--tasks", default="composition")
    parser.add_argument("--worlds", default=f"harder,{FOREIGN}")
    parser.add_argument("--arrays", nargs="+", choices=ARRAYS, default=ARRAYS)
    parser.add_argument("--grid", action="store_true", help="at square arrays, by spacing and depth")
    parser.add_argument("--drawn", type=int, default=0, help="at so many drawn arrays, on which settings are chosen")
    parser.add_argument(
        "--body-rate", type=float, default=PretrainedLearner.defaults["body_rate"], help="of the weights for any array"
    )
    parser.add_argument(
        "--alone", type=int, default=0, help="showers of the one array that --arrays names, which the weights see first"
    )
    parser.add_argument("--sizes", default="5000")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--store", action="store_true", help=HELP)
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    torch.set_num_threads(1)
    known = {case.name: case.array for case in cases()}
    file = (
        alone(known[options.arrays[0]], options.alone, options.out) if options.alone else weights_file(options.weights)
    )
    start = {"weights": str(file), "weights_sha256": hash_file(file), "body_rate": options.body_rate}
    sizes = [int(n) for n in options.sizes.split(",")]
    drawn_arrays = [draw_array(np.random.default_rng([DRAWN, k])) for k in range(options.drawn)]
    by_name = {f"drawn {k}": array for k, array in enumerate(drawn_arrays)}
    by_name = by_name or (square_arrays() if options.grid else known)
    rows = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    gains: dict[tuple[str, int], list[tuple[float, float]]] = {}
    print("\n".join(rows), flush=True)
    for task in options.tasks.split(","):
        for world in options.worlds.split(","):
            here = by_name if options.grid or options.drawn else options.arrays
            for name in FOREIGN_AT if world == FOREIGN else here:
                array = by_name[name]
                train, test = (
                    drawn(
                        world, task, n, seed=DATA_SEED, split=split, data=options.out / "data", array=array,
                        elsewhere=array != KASCADE,
                    )[0]
                    for n, split in ((max(sizes), "train"), (N_TEST, "test"))
                )  # fmt: skip
                where = (task, world, name)
                for n in sizes:
                    losses = {
                        system: np.stack(
                            [
                                loss_of(where, n, int(seed), system, (train, test), start, options.out)
                                for seed in options.seeds.split(",")
                            ]
                        )
                        for system in options.systems
                    }
                    rows.append(row_of(where, n, losses))
                    if array != KASCADE and world != FOREIGN and {SCRATCH, STARTED} <= losses.keys():
                        gap = (losses[STARTED] - losses[SCRATCH]).mean(axis=0)
                        one = (float(gap.mean()), float(gap.std(ddof=1)) / len(gap) ** 0.5)
                        gains.setdefault((task, n), []).append(one)
                    print(rows[-1], flush=True)
    means = ["Mean differences at other arrays than KASCADE, foreign worlds apart:", ""]
    for (task, n), values in gains.items():
        gain, errors = np.array(values).T
        means.append(f"* {task}, {n:,} showers, {len(gain)} arrays: {gain.mean():+.4f} ± {_of_mean(errors):.4f}")
    print("", *means, sep="\n")
    if options.store:
        words = (
            f"Log-loss of {N_TEST:,} test showers, means of training seeds {options.seeds}; ±: one standard error of "
            "the test showers. Differences are to `mlp`. Weights for any array: "
            f"{start['weights_sha256'][:8]}, body rate {options.body_rate:g}."
        )
        name = "any_array_grid" if options.grid else "any_array"
        store(
            name, "One network for any array", "\n".join([words, "", *rows, "", *means]), worlds=(), weights="any-array"
        )


if __name__ == "__main__":
    main()
