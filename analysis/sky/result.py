"""A sky map on disk: a table with units in its columns' names, and provenance."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from analysis.photons.events import LG_NE_MIN
from analysis.sky.coordinates import HEIGHT_M, LATITUDE_DEG, LONGITUDE_DEG
from analysis.sky.sky_map import MIN_EXPECTED, SkyMap
from showers.storage.files import atomic_path, write_json
from stacking.run.provenance import git_revision, versions

MAP_PARQUET, MAP_CSV, MAP_FILE = "sky_map.parquet", "sky_map.csv", "sky_map.json"


def map_table(found: SkyMap) -> pl.DataFrame:
    """Return one row a pixel, from south to north and by right ascension."""
    ra_low, ra_high, dec_low, dec_high = found.pixels.borders().T
    return pl.DataFrame(
        {
            "ra_deg": (ra_low + ra_high) / 2,
            "dec_deg": (dec_low + dec_high) / 2,
            "ra_low_deg": ra_low,
            "ra_high_deg": ra_high,
            "dec_low_deg": dec_low,
            "dec_high_deg": dec_high,
            "solid_angle_sr": found.pixels.solid_angle_sr(),
            "counts": found.counts,
            "expected_counts": found.expected,
            "relative_exposure": found.relative_exposure,
            "significance_sigma": found.significance,
        }
    ).with_columns(pl.col("significance_sigma").fill_nan(None))


def write_map(found: SkyMap, out: Path) -> None:
    """Write ``sky_map.parquet``, ``sky_map.csv`` and ``sky_map.json``."""
    out.mkdir(parents=True, exist_ok=True)
    table, options, highest = map_table(found), found.options, found.highest
    with atomic_path(out / MAP_PARQUET) as temporary:
        table.write_parquet(temporary)
    with atomic_path(out / MAP_CSV) as temporary:
        table.write_csv(temporary)
    write_json(
        out / MAP_FILE,
        {
            "data": [folder.name for folder in options.data],
            "data_fingerprints": list(found.fingerprints),
            "cuts": f"Ze < {options.zenith_max_deg:g} deg, Ne > {LG_NE_MIN} (lg)",
            "run": options.run.resolve().name if options.run else None,
            "share": options.share if options.run else None,
            "score_threshold": found.score_threshold,
            "events": found.events,
            "frame": "ICRS",
            "site": {"longitude_deg": LONGITUDE_DEG, "latitude_deg": LATITUDE_DEG, "height_m": HEIGHT_M},
            "azimuth": {
                "of_north_deg": options.azimuth.of_north_deg,
                "clockwise_from_above": options.azimuth.clockwise,
            },
            "scrambles": options.scrambles,
            "window_h": options.window_h,
            "seed": options.seed,
            "significance": f"Li and Ma 1983, equation 17; none below {MIN_EXPECTED:g} expected counts",
            "highest": None
            if highest is None
            else dict(zip(("pixel", "significance_sigma", "p_value_after_trials"), highest, strict=True)),
            "remarks": list(found.remarks),
            "versions": versions(),
            "git_revision": git_revision(),
        },
    )
