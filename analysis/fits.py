"""Events and limits as FITS files that gamma-ray astronomy's programs open, by ``astropy`` (extra ``sky``).

Event lists follow GADF 0.3 (open-gamma-ray-astro/gamma-astro-data-formats: events, time, hduclass): an HDU ``EVENTS``
and one of good times, ``GTI``. Limits are flux points with upper limits in its format of spectral energy distributions.
What gammapy needs is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import need
from showerstack.runtime.files import atomic_path

LONGITUDE_DEG, LATITUDE_DEG, HEIGHT_M = 8.4, 49.1, 110.0
"""KASCADE in Karlsruhe: degrees east and north, metres above the sea."""
EVENTS_FITS, LIMITS_FITS = "events.fits", "limits.fits"
REFERENCE_MJD = 51544
"""1 January 2000, 0 h TT: times are seconds since then."""
M2_PER_CM2 = 1e-4
EV_PER_TEV = 1e12
DENSITY = "cm-2 s-1 TeV-1"


@dataclass(frozen=True)
class SkyEvents:
    """Events on the sky; (N,) float64 each."""

    seconds: np.ndarray
    """UTC, seconds since 1970."""
    ra_deg: np.ndarray
    dec_deg: np.ndarray
    zenith_deg: np.ndarray
    compass_deg: np.ndarray
    """Azimuth from north over east."""
    lg_energy: np.ndarray
    """lg(E/eV)."""
    run: np.ndarray
    """(N,) int64 number of the run, in the order given."""
    row: np.ndarray
    """(N,) int64 row in it."""


def write_sky_events(events: SkyEvents, file: Path, live_time_s: float | None) -> None:
    """Write an event list; its good times are those from the first to the last event of each run.

    Where the live time is not known, LIVETIME and DEADC are left out.

    Raises
    ------
    InputError
        If ``astropy`` is not installed.
    """
    need("sky", what="a FITS file")
    from astropy.io import fits
    from astropy.table import Table

    met = _terrestrial(events.seconds)
    order = np.argsort(met, kind="stable")
    columns: dict[str, Any] = {
        "EVENT_ID": (events.run * 10_000_000 + events.row)[order].astype(np.int64),
        "TIME": met[order],
        "RA": events.ra_deg[order],
        "DEC": events.dec_deg[order],
        "ENERGY": 10.0 ** events.lg_energy[order] / EV_PER_TEV,
        "ALT": 90.0 - events.zenith_deg[order],
        "AZ": events.compass_deg[order],
    }
    units = {"TIME": "s", "RA": "deg", "DEC": "deg", "ENERGY": "TeV", "ALT": "deg", "AZ": "deg"}
    spans = np.array([(met[events.run == k].min(), met[events.run == k].max()) for k in np.unique(events.run)])
    shared = {
        "HDUCLASS": "GADF", "HDUDOC": "https://gamma-astro-data-formats.readthedocs.io", "HDUVERS": "0.3",
        "MJDREFI": REFERENCE_MJD, "MJDREFF": 0.0, "TIMEUNIT": "s", "TIMESYS": "TT", "TIMEREF": "LOCAL",
        "TSTART": float(spans.min()), "TSTOP": float(spans.max()),
    }  # fmt: skip
    ontime = float((spans[:, 1] - spans[:, 0]).sum())
    head = shared | {
        "HDUCLAS1": "EVENTS", "OBS_ID": 1, "ONTIME": ontime, "OBS_MODE": "DRIFT",
        "ALT_PNT": 90.0, "AZ_PNT": 0.0,
        "EQUINOX": 2000.0, "RADECSYS": "ICRS", "ORIGIN": "showerstack", "TELESCOP": "KASCADE", "INSTRUME": "KASCADE",
        "CREATOR": "showerstack", "GEOLON": LONGITUDE_DEG, "GEOLAT": LATITUDE_DEG, "ALTITUDE": HEIGHT_M,
        "RA_PNT": float(events.ra_deg[order[0]]), "DEC_PNT": LATITUDE_DEG,
    }  # fmt: skip
    if live_time_s is not None and ontime > 0:
        head |= {"LIVETIME": live_time_s, "DEADC": min(live_time_s / ontime, 1.0)}
    tables = []
    for name, content, entries in (
        ("EVENTS", columns, head),
        ("GTI", {"START": spans[:, 0], "STOP": spans[:, 1]}, shared | {"HDUCLAS1": "GTI"}),
    ):
        table = Table(content)
        for column, unit in (units | {"START": "s", "STOP": "s"}).items():
            if column in table.colnames:
                table[column].unit = unit
        hdu = fits.BinTableHDU(table, name=name)
        hdu.header.update(entries)
        tables.append(hdu)
    with atomic_path(file) as temporary:
        fits.HDUList([fits.PrimaryHDU(), *tables]).writeto(temporary, overwrite=True, output_verify="exception")


def _terrestrial(seconds: np.ndarray) -> np.ndarray:
    """Return seconds of TT since the reference from UTC seconds since 1970, leap seconds counted."""
    from astropy.time import Time

    reference = Time(REFERENCE_MJD, format="mjd", scale="tt")
    return np.asarray((Time(np.asarray(seconds, dtype=np.float64), format="unix", scale="utc").tt - reference).sec)


def write_limits_fits(limits: pl.DataFrame, file: Path, level: float) -> bool:
    """Write differential limits on the flux of photons; return whether there are any.

    Parameters
    ----------
    limits
        As ``limits.csv``; rows of energy bins with a limit on the flux are taken.
    level
        Confidence level.

    Raises
    ------
    InputError
        If ``astropy`` is not installed.
    """
    need("sky", what="a FITS file")
    from astropy.table import Table

    column = "limit_photons_m2_sr_s_eV"
    rows = limits.filter((pl.col("range") == "bin") & pl.col(column).is_not_null())
    if rows.is_empty():
        return False
    low, high = (10.0 ** rows[f"lg_energy_{side}_eV"].to_numpy() / EV_PER_TEV for side in ("low", "high"))
    # Per steradian: a diffuse flux, which the format has no unit for; UNIT_SR says so.
    flux = rows[column].to_numpy() * M2_PER_CM2 * EV_PER_TEV
    table = Table(
        {
            "e_ref": np.sqrt(low * high), "e_min": low, "e_max": high, "dnde": np.full(len(flux), np.nan),
            "dnde_ul": flux, "is_ul": np.ones(len(flux), bool),
        },
        units={"e_ref": "TeV", "e_min": "TeV", "e_max": "TeV", "dnde": DENSITY, "dnde_ul": DENSITY},
    )  # fmt: skip
    table.meta |= {"SED_TYPE": "dnde", "UL_CONF": level, "UNIT_SR": "dnde_ul is per steradian"}
    with atomic_path(file) as temporary:
        table.write(temporary, format="fits", overwrite=True)
    return True
