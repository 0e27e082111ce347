"""Measured runs beside each other: a few numbers on each, those that are off, and detectors that were dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError
from showerstack.runtime.files import atomic_path
from showerstack.showers import protocols
from showerstack.showers.array import DEAD_MUON_DETECTORS, DEAD_STATIONS, KASCADE
from showerstack.showers.event_files import EventFiles
from showerstack.showers.schema import SCALAR_NAMES

MEANS = (*SCALAR_NAMES[:2], *SCALAR_NAMES[3:], "Age", "e_hits", "mu_hits", "lg_e_sum", "lg_mu_sum")
"""Whose means by run are listed: scalars but the azimuth, age, hit stations, lg of the deposits' sum (MeV)."""
OFF_SIGMAS = 5.0
"""A run is off where a mean differs from the median run by so many of its standard deviations (error and scatter)."""


DEAD_CHANCE = 1e-6
"""A detector without any hit is dead where a working one would have none with a smaller probability than this."""


def dead_detectors(hits: np.ndarray) -> dict[str, list[int]]:
    """Return flat cells of dead stations, and of dead muon detectors at others, as ``source.json`` has them.

    From the number of events in which each detector has a deposit, (rows, columns, 2). A working detector is expected
    to have at least half as many hits as the median of those that have some on its square ring about the array's
    centre; on a ring without hits, as the smallest such median. A station whose e/gamma detectors are dead is missing
    as a whole.
    """
    least = -2 * np.log(DEAD_CHANCE)
    dead_by_channel = []
    for channel, installed in enumerate((KASCADE.has_station, KASCADE.has_muon)):
        n_hits, dead = hits[..., channel], np.zeros(installed.shape, dtype=bool)
        rings = [installed & (KASCADE.square_ring == ring) for ring in np.unique(KASCADE.square_ring[installed])]
        median = np.array([np.median(hit) if (hit := n_hits[ring & (n_hits > 0)]).size else np.inf for ring in rings])
        for ring, typical in zip(rings, np.where(np.isinf(median), median.min(), median), strict=True):
            if least < typical < np.inf:
                dead |= ring & (n_hits == 0)
        dead_by_channel.append(dead)
    stations, muon_detectors = dead_by_channel[0], dead_by_channel[1] & ~dead_by_channel[0]
    return {
        DEAD_STATIONS: np.flatnonzero(stations).tolist(), DEAD_MUON_DETECTORS: np.flatnonzero(muon_detectors).tolist()
    }  # fmt: skip


@dataclass
class RunSummary:
    """Sums over a run's events, filled block by block."""

    scalar_type: Any = np.float16
    """In which the folder stores scalars: cuts are made on what is stored, as everywhere."""
    n_events: int = 0
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(protocols.CUT_SETS, 0))
    sums: np.ndarray = field(default_factory=lambda: np.zeros((2, len(MEANS))))
    """Sum and sum of squares of :data:`MEANS`, over events that pass the test's cuts."""
    hits: np.ndarray = field(default_factory=lambda: np.zeros(KASCADE.grid_shape, dtype=np.int64))
    first_s: float | None = None
    last_s: float | None = None

    def add(self, grids: np.ndarray, scalars: np.ndarray, age: np.ndarray, seconds: np.ndarray | None) -> None:
        """Add consecutive events: (n, 16, 16, 2) MeV, (n, 5), (n,) and (n,) seconds."""
        frame = protocols.scalar_frame(scalars.astype(self.scalar_type), age)
        masks = {name: cut_set.mask(frame) for name, cut_set in protocols.CUT_SETS.items()}
        self.n_events += len(grids)
        for name, mask in masks.items():
            self.passed[name] += int(mask.sum())
        good = masks[protocols.TEST_WITH_AGE.name]
        deposits = grids[good].astype(np.float32)
        hit = deposits > 0
        self.hits += (grids > 0).sum(axis=0)
        with np.errstate(divide="ignore"):
            sums = np.log10(np.maximum(deposits.sum(axis=(1, 2)), 1.0))
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
    Rates are of usable events, and the pass rate of a run is that of its evaluation cuts, as ``doctor`` has it. Means
    and errors are over events that pass the cuts with age; ``off`` names the means that lie more than 5 standard
    deviations from the median run, the scatter of the runs included, and the pass rate likewise. Dead detectors are
    flat cells (16 row + column) between blanks.
    """
    rows, means, errors = [], [], []
    for folder in folders:
        source = EventFiles.open(folder).source()
        summary = source.get("summary")
        if not isinstance(summary, dict):
            raise InputError(f"{folder} is no measured run of an archive: its source.json has no summary of one")
        n, passed = summary["n_events"], summary["passed"]
        cuts = str(source.get("evaluation_cuts", protocols.TEST_WITH_AGE.name))
        mean, error = means_of(summary, cuts)
        means.append(mean)
        errors.append(error)
        has_times = summary["first_s"] is not None
        rows.append(
            {
                "run": str(source.get("run", Path(folder).name)),
                "events": n,
                "seconds": summary["last_s"] - summary["first_s"] if has_times else None,
                "evaluation_cuts": cuts,
                **{
                    f"pass_{name}": passed[name] / n if n else None
                    for name in protocols.CUT_SETS
                    if name != protocols.NONE.name
                },
                **{f"mean_{name}": float(value) for name, value in zip(MEANS, mean[:-1], strict=True)},
                **{f"error_{name}": float(value) for name, value in zip(MEANS, error[:-1], strict=True)},
                "silent_stations": summary["silent_stations"],
                "silent_muon_detectors": summary["silent_muon_detectors"],
                **{
                    name: " ".join(map(str, source[name])) if name in source else None
                    for name in (DEAD_STATIONS, DEAD_MUON_DETECTORS)
                },
            }
        )
    off = _quantities_off(np.array(means), np.array(errors), (*MEANS, "pass rate"))
    table = pl.DataFrame(rows, infer_schema_length=None)
    total_s = table["seconds"].cast(pl.Float64).sum() or None
    share = pl.col("seconds").cast(pl.Float64) / pl.lit(total_s, dtype=pl.Float64)
    return table.with_columns(live_time_share=share, off=pl.Series(off, dtype=pl.String))


def means_of(summary: Mapping[str, Any], cuts: str = protocols.TEST_WITH_AGE.name) -> tuple[np.ndarray, np.ndarray]:
    """Return :data:`MEANS` of a run's summary and the pass rate of cuts, and their errors; NaN where none passes."""
    n, n_passed = summary["n_events"], summary["passed"][protocols.TEST_WITH_AGE.name]
    mean, square = np.asarray(summary["sums"]) / n_passed if n_passed else np.full((2, len(MEANS)), np.nan)
    error = np.sqrt(np.maximum(square - mean**2, 0.0) / max(n_passed, 1))
    rate = summary["passed"][cuts] / n if n else np.nan
    rate_error = np.sqrt(max(rate * (1 - rate), 1 / n) / n) if n else np.nan
    return np.append(mean, rate), np.append(error, rate_error)


def _quantities_off(means: np.ndarray, errors: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return for each run the quantities that are off, (R,) comma-separated."""
    known = ~np.isnan(means).any(axis=1)  # runs of which no event passes have no means
    middle, scatter, typical_error = (np.zeros(len(names)) for _ in range(3))
    if known.any():
        middle = np.median(means[known], axis=0)
        scatter = 1.4826 * np.median(np.abs(means[known] - middle), axis=0)
        typical_error = np.median(errors[known], axis=0)
    deviation = np.abs(means - middle) / np.sqrt(errors**2 + np.maximum(scatter**2 - typical_error**2, 0.0) + 1e-30)
    return [", ".join(name for name, far in zip(names, row > OFF_SIGMAS, strict=True) if far) for row in deviation]


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
