"""A map of the sky: counts of measured showers, what is expected without sources, the significance of the difference.

Folders are taken one after the other: memory is that of the largest run. The map on disk is a HEALPix FITS file, a
table of the pixels in view with units in its columns' names, and provenance.

Without sources, directions are as they were measured and times are exchanged between events. An event keeps zenith and
azimuth, and with them what the array sees from there; it gets the time of another event of the same run and period, so
that interruptions and rates stay as they were (Cassiday et al., Nuclear Physics B Proc. Suppl. 14A (1990) 291;
Alexandreas et al., Nuclear Instruments and Methods A 328 (1993) 570).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.special import log_ndtr, xlogy

from showerstack.analysis.events import label_remarks, open_run, scalars
from showerstack.analysis.options import SkyOptions
from showerstack.analysis.photons.events import read_data, search_cuts
from showerstack.analysis.sky.coordinates import (
    DAY_S,
    KARLSRUHE,
    ArraySite,
    Azimuth,
    equatorial,
    known_times,
)
from showerstack.runtime.code import git_revision, versions
from showerstack.runtime.context import Context
from showerstack.runtime.errors import InputError, need
from showerstack.runtime.files import atomic_path, write_json
from showerstack.runtime.logs import remark
from showerstack.showers.array import KASCADE
from showerstack.showers.azimuth import AZIMUTH
from showerstack.showers.dataset import Dataset
from showerstack.showers.identity import refuse_shared
from showerstack.showers.schema import GAMMA, TIMES_FILE
from showerstack.showers.units import time_remarks

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class SkyPixels:
    """HEALPix pixels of the whole sky, ICRS, in rings (K. Gorski et al., Astrophysical Journal 622 (2005) 759)."""

    nside: int
    """Pixels along a side of each of the 12 base pixels, a power of two."""

    def __len__(self) -> int:
        return 12 * self.nside**2

    @property
    def solid_angle_sr(self) -> float:
        """Solid angle of each pixel."""
        return 4 * np.pi / len(self)

    def counts(self, ra_deg: np.ndarray, dec_deg: np.ndarray) -> np.ndarray:
        """Return how many directions lie in each pixel, (P,) int64."""
        from astropy import units
        from astropy_healpix import lonlat_to_healpix

        pixel = lonlat_to_healpix(ra_deg * units.deg, dec_deg * units.deg, self.nside, order="ring")
        return np.bincount(pixel, minlength=len(self))

    def centres(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return right ascension and declination of some pixels' centres, (N,) degrees each."""
        from astropy_healpix import healpix_to_lonlat

        ra, dec = healpix_to_lonlat(pixels, self.nside, order="ring")
        return ra.deg, dec.deg

    def corners(self, pixels: np.ndarray) -> np.ndarray:
        """Return (N, 4, 2) right ascension and declination of corners; the former within 180 of the centre's."""
        from astropy_healpix import boundaries_lonlat

        ra, dec = boundaries_lonlat(pixels, 1, self.nside, order="ring")
        centre = self.centres(pixels)[0][:, None]
        return np.stack([centre + np.mod(ra.deg - centre + 180.0, 360.0) - 180.0, dec.deg], axis=-1)


def periods(seconds: np.ndarray, window_s: float) -> np.ndarray:
    """Return the period of each event of one run, (N,) int64: equal parts of the run, each about ``window_s`` long."""
    first, last = float(seconds.min()), float(seconds.max())
    n = max(round((last - first) / window_s), 1)
    width = (last - first) / n
    if width <= 0:
        return np.zeros(len(seconds), dtype=np.int64)
    return np.minimum(((seconds - first) / width).astype(np.int64), n - 1)


def scramble(seconds: np.ndarray, period: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the times (N,) in another order, exchanged within periods."""
    # Events of a period, in their order and in a random one, take the same places.
    in_order = np.lexsort((np.arange(len(seconds)), period))
    at_random = np.lexsort((rng.random(len(seconds)), period))
    exchanged = np.empty_like(seconds)
    exchanged[in_order] = seconds[at_random]
    return exchanged


def li_ma(on: np.ndarray, off: np.ndarray, alpha: float | np.ndarray) -> np.ndarray:
    """Return the significance of counts by Li and Ma, Astrophysical Journal 272 (1983) 317, equation 17.

    Parameters
    ----------
    on
        Counts where a source is looked for.
    off
        Counts of the background measurement.
    alpha
        Exposure of the first divided by that of the second, so that ``alpha * off`` counts are expected.

    Returns
    -------
    Standard deviations, negative for a deficit; NaN where both counts are zero.
    """
    n_on, n_off = np.asarray(on, dtype=np.float64), np.asarray(off, dtype=np.float64)
    n_total = n_on + n_off
    with np.errstate(divide="ignore", invalid="ignore"):
        from_on = xlogy(n_on, (1 + alpha) / alpha * n_on / n_total)
        from_off = xlogy(n_off, (1 + alpha) * n_off / n_total)
    significance = np.sqrt(2 * np.maximum(from_on + from_off, 0.0)) * np.sign(n_on - alpha * n_off)
    return np.where(n_total > 0, significance, np.nan)


def after_trials(significance: float, trials: int) -> float:
    """Return the probability that the largest of so many independent standard normal numbers is at least this one."""
    return float(-np.expm1(trials * log_ndtr(significance)))


MIN_EXPECTED = 10.0
"""Pixels with fewer expected counts have no significance: equation 17 needs about so many."""


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
    site: ArraySite = KARLSRUHE

    @property
    def expected(self) -> np.ndarray:
        """Counts expected without sources."""
        return self.scrambled_counts / self.options.scrambles

    @property
    def relative_exposure(self) -> np.ndarray:
        """Expected counts, the largest is 1."""
        return np.asarray(self.expected / max(float(self.expected.max()), 1e-300))

    @property
    def significance(self) -> np.ndarray:
        """Standard deviations by Li and Ma; NaN where fewer than 10 counts are expected."""
        li_ma_values = li_ma(self.counts, self.scrambled_counts, 1.0 / self.options.scrambles)
        return np.where(self.expected >= MIN_EXPECTED, li_ma_values, np.nan)

    @property
    def highest(self) -> tuple[int, float, float] | None:
        """Pixel of the largest significance, this, and its probability without sources after all trials."""
        values = self.significance
        if np.isnan(values).all():
            return None
        best = int(np.nanargmax(values))
        return best, float(values[best]), after_trials(float(values[best]), int(np.isfinite(values).sum()))


def sky_map(options: SkyOptions, ctx: Context = Context()) -> SkyMap:
    """Make the map."""
    need("sky", what="a sky map")
    pixels = SkyPixels(options.nside)
    counts, off = np.zeros(len(pixels), dtype=np.int64), np.zeros(len(pixels), dtype=np.int64)
    remarks: list[str] = []
    prints: list[str] = []
    datasets = _open_folders(options, remarks, prints)
    site = ArraySite.of(datasets[0].array)
    azimuth = stated_azimuth(options) or azimuth_of(datasets, remarks)
    options = replace(options, azimuth_of_north=azimuth.of_north_deg, clockwise=azimuth.clockwise)
    chosen_rows, threshold = _choose_rows(options, remarks, ctx)
    events = 0
    with ctx.bars("sky map", "runs") as progress:
        for number, dataset in enumerate(datasets):
            directions = _directions(
                dataset, options.zenith_max_deg, None if chosen_rows is None else chosen_rows[number]
            )
            if directions is not None:
                events += len(directions[0])
                counts_of_run, scrambled_of_run = count_run(directions, options, pixels, number, site)
                counts += counts_of_run
                off += scrambled_of_run
            progress(number + 1, len(datasets))
    if not events:
        raise InputError(
            f"{options.data[0]}: no event passes {', '.join(_names_of_cuts(datasets[0], options.zenith_max_deg))}"
        )
    remark(LOG, remarks)
    return SkyMap(options, pixels, counts, off, events, threshold, tuple(prints), tuple(remarks), site)


def _open_folders(options: SkyOptions, remarks: list[str], prints: list[str]) -> list[Dataset]:
    """Return the folders, all of which have times."""
    datasets = []
    for folder in options.data:
        dataset = Dataset.open(folder, labels=False)
        if not dataset.files.has(TIMES_FILE):
            raise InputError(
                f"{folder} has no event times ({TIMES_FILE}), without which showers have no place on the sky: download "
                "and convert the measured runs with --times"
            )
        if dataset.fingerprint() in prints:
            raise InputError(f"{folder} holds the same events as another folder of --data")
        remarks += label_remarks(dataset) + time_remarks(str(folder), dataset.files.times(), dataset.array)
        prints.append(dataset.fingerprint())
        datasets.append(dataset)
        here, first = dataset.array.complete, datasets[0].array.complete
        if not here.is_like(first) or here.card.site != first.card.site:
            raise InputError(f"{folder} is of another array or site than {datasets[0].path}: map them apart")
    refuse_shared([("--data", dataset) for dataset in datasets])
    return datasets


def stated_azimuth(options: SkyOptions) -> Azimuth | None:
    """Return what the options say of azimuths; None where they leave it to the runs."""
    if options.azimuth_of_north is None and options.clockwise is None:
        return None
    return Azimuth(options.azimuth_of_north or 0.0, options.clockwise is not False)


def azimuth_of(datasets: Sequence[Dataset], remarks: list[str]) -> Azimuth:
    """Return how the azimuths of runs count: KASCADE's say it themselves, of other arrays the card says where x points.

    Raises
    ------
    InputError
        Where another array's card does not say it.
    """
    array = datasets[0].array
    if array == KASCADE:
        return known_azimuth([each.source for each in datasets], remarks)
    if "x_azimuth_deg" not in array.card.site:
        raise InputError(
            f"array {array.name}: its card does not say where +x points: give x_azimuth_deg in [site] of array.toml "
            "and convert again, or --azimuth-of-north and --clockwise or --anticlockwise"
        )
    return Azimuth(array.card.site["x_azimuth_deg"], clockwise=False)


def known_azimuth(sources: Sequence[Mapping[str, Any]], remarks: list[str]) -> Azimuth:
    """Return how the azimuths of runs count, from their ``source.json``; a remark where some or all do not say."""
    known = [source[AZIMUTH] for source in sources if AZIMUTH in source]
    if not known:
        remarks.append(
            "nothing is known of how azimuths count: they are taken clockwise from north; doctor finds it where there "
            "are arrival times, and --azimuth-of-north and --clockwise say it"
        )
        return Azimuth()
    if len(known) < len(sources):
        remarks.append(
            f"{len(sources) - len(known)} of {len(sources)} runs do not show how azimuths count: as the others"
        )
    first = known[0]
    for other in known[1:]:
        apart = abs((other["of_north_deg"] - first["of_north_deg"] + 180.0) % 360.0 - 180.0)
        if other["clockwise"] != first["clockwise"] or apart > 5 * np.hypot(first["error_deg"], other["error_deg"]):
            raise InputError(
                "azimuths count otherwise in some runs than in others: map them apart, or say --azimuth-of-north"
            )
    return Azimuth(float(first["of_north_deg"]), bool(first["clockwise"]))


def _choose_rows(options: SkyOptions, remarks: list[str], ctx: Context) -> tuple[list[np.ndarray] | None, float | None]:
    """Return each folder's rows with the highest gamma scores, and the lowest of these scores; None without a run."""
    if options.run is None:
        return None, None
    run = open_run(options.run, GAMMA.name, "sky-map")
    events, _, new_remarks, _ = read_data(run, options.data, options.zenith_max_deg, ctx)
    remarks += [line for line in new_remarks if line not in remarks]
    kept = max(round(options.share * len(events)), 1)
    threshold = float(np.partition(events.score, len(events) - kept)[len(events) - kept])
    high = events.take(events.score >= threshold)
    return [high.row[high.folder == k] for k in range(len(options.data))], threshold


def _names_of_cuts(dataset: Dataset, zenith_max_deg: float) -> list[str]:
    return [cut.name for cut in search_cuts(zenith_max_deg).applicable(scalars(dataset))]


def _directions(dataset: Dataset, zenith_max_deg: float, rows: np.ndarray | None) -> tuple[np.ndarray, ...] | None:
    """Return times (s), zenith angles and azimuths (deg) of a folder's events under the cuts; or None."""
    columns = scalars(dataset)
    kept = np.flatnonzero(search_cuts(zenith_max_deg).mask(columns)) if rows is None else rows
    seconds = dataset.files.times()[kept]
    bad = np.flatnonzero(~np.isfinite(seconds))
    if bad.size:
        raise InputError(f"{dataset.path / TIMES_FILE}: row {kept[bad[0]]} holds no time ({bad.size} bad rows)")
    first, last = known_times()
    outside = np.flatnonzero((seconds < first) | (seconds > last))
    if outside.size:
        when, limits = _date(seconds[outside[0]]), f"{_date(first)} to {_date(last)}"
        raise InputError(
            f"{dataset.path / TIMES_FILE}: row {kept[outside[0]]} is of {when} ({outside.size} such rows), and Earth's "
            f"rotation is known from {limits}: are these UTC seconds since 1970? Later times need a newer "
            "astropy-iers-data"
        )
    return (np.asarray(seconds), columns["Ze"][kept], columns["Az"][kept]) if len(kept) else None


def _date(seconds: float) -> str:
    """Return the day of a time in seconds since 1970; the year alone beyond what a calendar can hold."""
    days = float(seconds) / DAY_S
    return str(np.datetime64(int(days), "D")) if abs(days) < 2e6 else f"the year {1970 + days / 365.2425:.3g}"


def count_run(
    values: tuple[np.ndarray, ...], options: SkyOptions, pixels: SkyPixels, number: int, site: ArraySite = KARLSRUHE
) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of one folder by pixel, measured and summed over all scramblings."""
    rng = np.random.default_rng((options.seed, number))
    seconds, zenith_deg, azimuth_deg = values
    period = periods(seconds, 3600.0 * options.window_h)
    off = np.zeros(len(pixels), dtype=np.int64)
    for _ in range(options.scrambles):
        off += pixels.counts(
            *equatorial(scramble(seconds, period, rng), zenith_deg, azimuth_deg, stated_azimuth(options), site)
        )  # fmt: skip
    return pixels.counts(*equatorial(seconds, zenith_deg, azimuth_deg, stated_azimuth(options), site)), off


MAP_FITS, MAP_PARQUET, MAP_CSV, MAP_FILE = "sky_map.fits", "sky_map.parquet", "sky_map.csv", "sky_map.json"


def map_table(sky: SkyMap) -> pl.DataFrame:
    """Return one row a pixel in which something is measured or expected, by number."""
    pixels = np.flatnonzero((sky.counts > 0) | (sky.scrambled_counts > 0))
    ra_deg, dec_deg = sky.pixels.centres(pixels)
    return pl.DataFrame(
        {
            "pixel": pixels,
            "ra_deg": ra_deg,
            "dec_deg": dec_deg,
            "counts": sky.counts[pixels],
            "expected_counts": sky.expected[pixels],
            "relative_exposure": sky.relative_exposure[pixels],
            "significance_sigma": sky.significance[pixels],
        }
    ).with_columns(pl.col("significance_sigma").fill_nan(None))


def write_fits(sky: SkyMap, file: Path) -> None:
    """Write the whole sky as a HEALPix FITS file: a row a pixel, in rings, ICRS; NaN where there is no significance."""
    from astropy.io import fits

    columns = [
        fits.Column("COUNTS", "K", unit="ct", array=sky.counts),
        fits.Column("EXPECTED", "D", unit="ct", array=sky.expected),
        fits.Column("EXPOSURE", "D", array=sky.relative_exposure),
        fits.Column("SIGNIFICANCE", "D", array=sky.significance),
    ]
    table = fits.BinTableHDU.from_columns(columns, name="SKY_MAP")
    table.header.extend(
        [
            ("PIXTYPE", "HEALPIX", "HEALPix pixelisation"),
            # Of the conventions that gammapy knows, others give a map of zeros to whoever names no column.
            ("HPX_CONV", "HEALPY", "convention, for gammapy"),
            ("ORDERING", "RING", "rings from north to south"),
            ("NSIDE", sky.pixels.nside, "resolution parameter"),
            ("FIRSTPIX", 0, "first pixel"),
            ("LASTPIX", len(sky.pixels) - 1, "last pixel"),
            ("INDXSCHM", "IMPLICIT", "a row's number is the pixel's"),
            ("OBJECT", "FULLSKY", "sky coverage"),
            ("COORDSYS", "C", "equatorial"),
            ("RADESYS", "ICRS", "reference frame"),
            ("EVENTS", sky.events, "showers in the map"),
            ("SCRAMBLE", sky.options.scrambles, "exchanges of times"),
        ]
    )
    with atomic_path(file) as temporary:
        fits.HDUList([fits.PrimaryHDU(), table]).writeto(temporary, overwrite=True)


def write_map(sky: SkyMap, out: Path) -> None:
    """Write ``sky_map.fits``, ``sky_map.parquet``, ``sky_map.csv`` and ``sky_map.json``."""
    out.mkdir(parents=True, exist_ok=True)
    table, options, highest = map_table(sky), sky.options, sky.highest
    azimuth = stated_azimuth(options) or Azimuth()
    write_fits(sky, out / MAP_FITS)
    with atomic_path(out / MAP_PARQUET) as temporary:
        table.write_parquet(temporary)
    with atomic_path(out / MAP_CSV) as temporary:
        table.write_csv(temporary)
    write_json(
        out / MAP_FILE,
        {
            "data": [folder.name for folder in options.data],
            "blinding": options.blinding.as_json(options.data),
            "data_fingerprints": list(sky.fingerprints),
            "cuts": _names_of_cuts(Dataset.open(options.data[0], labels=False), options.zenith_max_deg),
            "run": options.run.resolve().name if options.run else None,
            "share": options.share if options.run else None,
            "score_threshold": sky.score_threshold,
            "events": sky.events,
            "frame": "ICRS",
            "nside": options.nside,
            "ordering": "ring",
            "site": asdict(sky.site),
            "azimuth": {
                "of_north_deg": azimuth.of_north_deg,
                "clockwise_from_above": azimuth.clockwise,
            },
            "scrambles": options.scrambles,
            "window_h": options.window_h,
            "seed": options.seed,
            "significance": f"Li and Ma 1983, equation 17; none below {MIN_EXPECTED:g} expected counts",
            "highest": None
            if highest is None
            else dict(zip(("pixel", "significance_sigma", "p_value_after_trials"), highest, strict=True)),
            "remarks": list(sky.remarks),
            "versions": versions(),
            "git_revision": git_revision(),
        },
    )
