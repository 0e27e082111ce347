"""What a run was like in a few numbers, and the list of all runs that shows which ones are off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showers import cuts
from showers.datasets.event_files import EventFiles
from showers.kascade import KASCADE
from showers.schema import SCALAR_NAMES, InputError
from showers.storage.files import atomic_path

MEANS = (*SCALAR_NAMES[:2], *SCALAR_NAMES[3:], "Age", "e_hits", "mu_hits", "lg_e_sum", "lg_mu_sum")
"""Whose means by run are listed: scalars but the azimuth, age, hit stations, lg of the deposits' sum (MeV)."""
OFF_SIGMAS = 5.0
"""A run is off where a mean differs from the median run by so many of its standard deviations (error and scatter)."""


@dataclass
class RunSummary:
    """Sums over a run's events, filled block by block."""

    run: str
    n_events: int = 0
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(cuts.CUT_SETS, 0))
    sums: np.ndarray = field(default_factory=lambda: np.zeros((2, len(MEANS))))
    """Sum and sum of squares of :data:`MEANS`, over events that pass the test's cuts."""
    hits: np.ndarray = field(default_factory=lambda: np.zeros(KASCADE.grid_shape, dtype=np.int64))
    first_s: float | None = None
    last_s: float | None = None

    def add(self, grids: np.ndarray, scalars: np.ndarray, age: np.ndarray, seconds: np.ndarray | None) -> None:
        """Add consecutive events: (n, 16, 16, 2) MeV, (n, 5), (n,) and (n,) seconds."""
        frame = cuts.scalar_frame(scalars, age)
        masks = {name: cut_set.mask(frame) for name, cut_set in cuts.CUT_SETS.items()}
        self.n_events += len(grids)
        for name, mask in masks.items():
            self.passed[name] += int(mask.sum())
        good = masks[cuts.TEST_WITH_AGE.name]
        here = grids[good].astype(np.float32)
        hit = here > 0
        self.hits += (grids > 0).sum(axis=0)
        with np.errstate(divide="ignore"):
            sums = np.log10(np.maximum(here.sum(axis=(1, 2)), 1.0))
        values = np.column_stack(
            [scalars[good][:, [0, 1, 3, 4]], age[good], hit.sum(axis=(1, 2)), sums],
        ).astype(np.float64)
        self.sums += np.stack([values.sum(axis=0), (values**2).sum(axis=0)])
        if seconds is not None and len(seconds):
            self.first_s = float(min(seconds.min(), self.first_s if self.first_s is not None else np.inf))
            self.last_s = float(max(seconds.max(), self.last_s if self.last_s is not None else -np.inf))

    def as_json(self) -> dict[str, Any]:
        """Return what ``source.json`` keeps."""
        quiet_e = KASCADE.has_station & (self.hits[..., 0] == 0)
        quiet_mu = KASCADE.has_muon & (self.hits[..., 1] == 0)
        return {
            "n_events": self.n_events,
            "passed": self.passed,
            "sums": self.sums.tolist(),
            "silent_stations": int(quiet_e.sum()),
            "silent_muon_detectors": int(quiet_mu.sum()),
            "first_s": self.first_s,
            "last_s": self.last_s,
        }


def run_list(folders: Sequence[Path]) -> pl.DataFrame:
    """Return one row a run: events, pass rates of the cuts, means with errors, and what is off.

    The live-time share is the run's share of the time between first and last events, null where times were not read.
    Means and errors are over events that pass the cuts with age; ``off`` names the means that lie more than 5 standard
    deviations from the median run, the scatter of the runs included, and pass rates likewise.

    Parameters
    ----------
    folders
        Dataset folders as the conversion of measured runs writes them.

    Raises
    ------
    InputError
        If a folder has no summary.
    """
    rows, means, errors = [], [], []
    for folder in folders:
        source = EventFiles.open(folder).source()
        summary = source.get("summary")
        if not isinstance(summary, dict):
            raise InputError(f"{folder} has no summary of a measured run in its source.json: convert the archive again")
        n, passed = summary["n_events"], summary["passed"]
        n_good = max(passed[cuts.TEST_WITH_AGE.name], 1)
        mean, square = np.asarray(summary["sums"]) / n_good
        error = np.sqrt(np.maximum(square - mean**2, 0.0) / n_good)
        rate = passed[cuts.TEST_WITH_AGE.name] / n
        means.append([*mean, rate])
        errors.append([*error, np.sqrt(max(rate * (1 - rate), 1 / n) / n)])
        timed = summary["first_s"] is not None
        rows.append(
            {
                "run": str(source.get("run", Path(folder).name)),
                "events": n,
                "seconds": summary["last_s"] - summary["first_s"] if timed else None,
                **{f"pass_{name}": passed[name] / n for name in cuts.CUT_SETS if name != cuts.NONE.name},
                **{f"mean_{name}": float(value) for name, value in zip(MEANS, mean, strict=True)},
                **{f"error_{name}": float(value) for name, value in zip(MEANS, error, strict=True)},
                "silent_stations": summary["silent_stations"],
                "silent_muon_detectors": summary["silent_muon_detectors"],
            }
        )
    off = _off(np.array(means), np.array(errors), (*MEANS, "pass rate"))
    table = pl.DataFrame(rows, infer_schema_length=None)
    whole = table["seconds"].cast(pl.Float64).sum() or None
    share = pl.col("seconds").cast(pl.Float64) / pl.lit(whole, dtype=pl.Float64)
    return table.with_columns(live_time_share=share, off=pl.Series(off, dtype=pl.String))


def _off(means: np.ndarray, errors: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return for each run the quantities that are off, (R,) comma-separated."""
    middle = np.median(means, axis=0)
    scatter = 1.4826 * np.median(np.abs(means - middle), axis=0)
    pull = np.abs(means - middle) / np.sqrt(
        errors**2 + np.maximum(scatter**2 - np.median(errors, axis=0) ** 2, 0.0) + 1e-30
    )
    return [", ".join(name for name, far in zip(names, row > OFF_SIGMAS, strict=True) if far) for row in pull]


def write_run_list(folders: Sequence[Path], out: Path) -> pl.DataFrame:
    """Write the list of runs as CSV or Parquet, by the name of ``out``; return it."""
    table = run_list(folders)
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{out}: name a .csv or .parquet file")
    with atomic_path(out) as temporary:
        if out.suffix.lower() == ".csv":
            table.write_csv(temporary)
        else:
            table.write_parquet(temporary)
    return table
