"""Counts of measured showers on the sky, what would be there without sources, and the significance of the difference.

Folders are taken one after the other: memory is that of the largest run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.photons.events import LG_NE_MIN, passes, read_data
from analysis.reading import label_remarks, open_run, scalars
from analysis.sky.coordinates import LATITUDE_DEG, Azimuth, equatorial, need_astropy
from analysis.sky.pixels import SkyPixels
from analysis.sky.scrambling import periods, scrambled
from analysis.sky.significance import after_trials, li_ma
from showers.datasets.dataset import Dataset
from showers.execution.progress import Bars, silent
from showers.schema import GAMMA, TIMES_FILE, InputError

MIN_EXPECTED = 10.0
"""Pixels with fewer expected counts have no significance: equation 17 needs about so many."""


@dataclass(frozen=True)
class SkyOptions:
    """What was asked for."""

    data: list[Path]
    """Dataset folders with event times."""
    zenith_max_deg: float = 30.0
    pixel_deg: float = 1.5
    scrambles: int = 20
    window_h: float = 24.0
    """Times are exchanged within about so many hours."""
    azimuth: Azimuth = field(default_factory=Azimuth)
    run: Path | None = None
    """Gamma run whose scores choose events."""
    share: float = 0.01
    """Share of the events that is kept, highest scores first; only with a run."""
    seed: int = 1
    anyway: bool = False
    trusted: bool = False

    def checked(self) -> SkyOptions:
        """Return these options, or say in one line which cannot be."""
        limits = {
            "--zenith-max": (self.zenith_max_deg, 1.0, 60.0), "--pixel": (self.pixel_deg, 0.1, 30.0),
            "--scrambles": (self.scrambles, 2, 1000), "--window": (self.window_h, 0.5, 1e4),
            "--share": (self.share, 1e-6, 1.0),
        }  # fmt: skip
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise InputError(f"{name} {value:g}: expected a number from {low:g} to {high:g}")
        return self


@dataclass(frozen=True)
class SkyMap:
    """Counts by pixel, (P,) each."""

    options: SkyOptions
    pixels: SkyPixels
    counts: np.ndarray
    scrambled_counts: np.ndarray
    """Summed over all scramblings."""
    events: int
    score_threshold: float | None
    fingerprints: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def expected(self) -> np.ndarray:
        """Counts expected without sources."""
        return self.scrambled_counts / self.options.scrambles

    @property
    def relative_exposure(self) -> np.ndarray:
        """Expected counts by solid angle, the largest is 1."""
        found = self.expected / self.pixels.solid_angle_sr()
        return np.asarray(found / max(float(found.max()), 1e-300))

    @property
    def significance(self) -> np.ndarray:
        """Standard deviations by Li and Ma; NaN where fewer than 10 counts are expected."""
        found = li_ma(self.counts, self.scrambled_counts, 1.0 / self.options.scrambles)
        return np.where(self.expected >= MIN_EXPECTED, found, np.nan)

    @property
    def highest(self) -> tuple[int, float, float] | None:
        """Pixel of the largest significance, this, and its probability without sources after all trials."""
        values = self.significance
        if np.isnan(values).all():
            return None
        best = int(np.nanargmax(values))
        return best, float(values[best]), after_trials(float(values[best]), int(np.isfinite(values).sum()))


def sky_map(options: SkyOptions, *, bars: Bars = silent) -> SkyMap:
    """Make the map.

    Raises
    ------
    InputError
        If ``astropy`` is missing, an option is out of range, a folder has no event times or is given twice, or no event
        passes the cuts.
    """
    options.checked()
    need_astropy()
    reach = options.zenith_max_deg
    pixels = SkyPixels.between(LATITUDE_DEG - reach, LATITUDE_DEG + reach, options.pixel_deg)
    counts, off = np.zeros(len(pixels), dtype=np.int64), np.zeros(len(pixels), dtype=np.int64)
    remarks: list[str] = []
    prints: list[str] = []
    opened = _opened(options, remarks, prints)
    chosen, threshold = _chosen(options, remarks, bars)
    events = 0
    with bars("sky map", "runs") as progress:
        for number, dataset in enumerate(opened):
            found = _directions(dataset, options.zenith_max_deg, None if chosen is None else chosen[number])
            if found is not None:
                events += len(found[0])
                mine, scrambled_mine = count_run(found, options, pixels, number)
                counts += mine
                off += scrambled_mine
            progress(number + 1, len(opened))
    if not events:
        raise InputError(
            f"{options.data[0]}: no event passes zenith < {options.zenith_max_deg:g} deg and lg Ne > {LG_NE_MIN}"
        )
    return SkyMap(options, pixels, counts, off, events, threshold, tuple(prints), tuple(remarks))


def _opened(options: SkyOptions, remarks: list[str], prints: list[str]) -> list[Dataset]:
    """Return the folders, all of which have times."""
    found = []
    for folder in options.data:
        dataset = Dataset.open(folder, labels=False)
        if not dataset.files.has(TIMES_FILE):
            raise InputError(
                f"{folder} has no event times ({TIMES_FILE}), without which showers have no place on the sky: download "
                "and convert the measured runs with --times"
            )
        if dataset.fingerprint() in prints:
            raise InputError(f"{folder} holds the same events as another folder of --data")
        remarks += label_remarks(dataset)
        prints.append(dataset.fingerprint())
        found.append(dataset)
    return found


def _chosen(options: SkyOptions, remarks: list[str], bars: Bars) -> tuple[list[np.ndarray] | None, float | None]:
    """Return each folder's rows with the highest gamma scores, and the lowest of these scores; None without a run."""
    if options.run is None:
        return None, None
    bundle = open_run(options.run, GAMMA.name, "sky-map", trusted=options.trusted)
    events, _, said = read_data(bundle, options.data, options.zenith_max_deg, anyway=options.anyway, bars=bars)
    remarks += [line for line in said if line not in remarks]
    kept = max(round(options.share * len(events)), 1)
    threshold = float(np.partition(events.score, len(events) - kept)[len(events) - kept])
    high = events.take(events.score >= threshold)
    return [high.row[high.folder == k] for k in range(len(options.data))], threshold


def _directions(dataset: Dataset, zenith_max_deg: float, rows: np.ndarray | None) -> tuple[np.ndarray, ...] | None:
    """Return times (s), zenith angles and azimuths (deg) of a folder's events under the cuts; None without any."""
    columns = scalars(dataset)
    kept = np.flatnonzero(passes(columns, zenith_max_deg)) if rows is None else rows
    seconds = dataset.files.array(TIMES_FILE, (), (np.float64,), len(dataset))[kept]
    bad = np.flatnonzero(~np.isfinite(seconds))
    if bad.size:
        raise InputError(f"{dataset.path / TIMES_FILE}: row {kept[bad[0]]} holds no time ({bad.size} bad rows)")
    return (np.asarray(seconds), columns["Ze"][kept], columns["Az"][kept]) if len(kept) else None


def count_run(
    found: tuple[np.ndarray, ...], options: SkyOptions, pixels: SkyPixels, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of one folder by pixel, measured and summed over all scramblings."""
    rng = np.random.default_rng((options.seed, number))
    seconds, zenith_deg, azimuth_deg = found
    period = periods(seconds, 3600.0 * options.window_h)
    off = np.zeros(len(pixels), dtype=np.int64)
    for _ in range(options.scrambles):
        off += pixels.counts(
            *equatorial(scrambled(seconds, period, rng), zenith_deg, azimuth_deg, options.azimuth)
        )  # fmt: skip
    return pixels.counts(*equatorial(seconds, zenith_deg, azimuth_deg, options.azimuth)), off
