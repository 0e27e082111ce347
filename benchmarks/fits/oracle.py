"""What the lateral fits would reach if they knew the simulated detector: how much of an error is not theirs.

A table that ``resolution.py`` writes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from showerstack.features.device import decode_float16, namespace
from showerstack.features.groups import FittedEvents, lateral
from showerstack.features.lateral.events import make_events
from showerstack.showers.dataset import Dataset
from showerstack.showers.response import PUBLISHED, StationResponse
from showerstack.showers.schema import TRUTH_FILE
from showerstack.showers.simulation.settings import Settings

QUANTITIES = {"lg Ne": ("fit_lg_ne", "lg_ne"), "age": ("fit_age", "age"), "lg Nmu": ("fit_lg_nmu", "lg_nmu")}
REPLICAS = 200
CHUNK = 2_048


def informed(settings: Settings) -> StationResponse:
    """Return the constants of the fits with those of a world in their places; lateral forms stay the published ones."""
    d, in_muons = settings.detector, settings.detector.punch_mev / settings.detector.muon_mev
    return PUBLISHED._replace(
        electron_deposit_mev=d.electron_mev,
        muon_deposit_mev=d.muon_mev,
        gamma_fraction=1.0 + d.photon_share,
        core_excess=d.photon_share_core,
        core_excess_scale_m=d.photon_core_m,
        electron_dispersion=1.0 + 1.0 / d.electron_shape,
        muon_in_electron_dispersion=1.0 + 1.0 / d.muon_in_electron_shape,
        muon_dispersion=1.0 + 1.0 / d.muon_shape,
        electron_strays=d.electron_stray,
        muon_strays=d.muon_stray,
        punch_through=d.punch * in_muons,
        punch_through_scale_m=d.punch_range_m,
        punch_through_dispersion=2.0 * in_muons,
        muon_age_mean=PUBLISHED.muon_age_mean + settings.shape.muon_age_offset,
        muon_age_spread=max(settings.shape.muon_age_spread, 0.01),
    )


def deviations(folder: Path, response: StationResponse) -> dict[str, np.ndarray]:
    """Return deviations from the truth of fits with the given constants, by quantity, (n,) each."""
    xp = namespace("cpu")
    data = Dataset.open(folder, labels=False)
    pieces = []
    for chunk in data.chunks(CHUNK):
        grids = decode_float16(np.ascontiguousarray(chunk.matrices))
        events = make_events(xp, grids, np.asarray(chunk.scalars, dtype=np.float32), response)
        pieces.append(lateral.compute(FittedEvents(events)))
    fitted = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    truth = pl.read_parquet(folder / TRUTH_FILE, glob=False)
    gaps = [fitted[f"fit_core_{axis}_m"] - truth[f"core_{axis}_m"].to_numpy() for axis in ("x", "y")]
    result = {"core, m": np.hypot(*gaps)}
    for name, (column, true) in QUANTITIES.items():
        gap = fitted[column] - truth[true].to_numpy()
        result[name] = np.abs(gap - np.nanmedian(gap))
    return result


def comparison(folder: Path, settings: Settings) -> str:
    """Return the table: 68 % widths with the published constants, with the world's own, and their paired difference."""
    rng = np.random.default_rng(3)
    published, known = deviations(folder, PUBLISHED), deviations(folder, informed(settings))
    rows = []
    for name, ours in published.items():
        both = np.stack([ours, known[name]])
        both = both[:, np.isfinite(both).all(axis=0)]
        widths = np.quantile(both, 0.68, axis=1)
        picks = (rng.integers(both.shape[1], size=both.shape[1]) for _ in range(REPLICAS))
        gains = [float(np.diff(np.quantile(both[:, pick], 0.68, axis=1))[0]) for pick in picks]
        low, high = np.quantile(gains, (0.025, 0.975))
        rows.append(
            f"| {name} | {widths[0]:.4f} | {widths[1]:.4f} | {widths[1] - widths[0]:+.4f} [{low:+.4f}, {high:+.4f}] |"
        )
    return "\n".join(
        [
            "## If the fits knew the default world's detector",
            "",
            "Half widths (68 %) of the same showers fitted with the published constants and with those of the simulated"
            " detector. What remains is the detector's own noise, which no choice of constants removes.",
            "",
            "| quantity | published constants | the world's constants | difference |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )
