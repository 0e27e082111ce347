"""From local directions and times to right ascension and declination, by ``astropy`` (extra ``sky``)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from showerstack.runtime.errors import need

LONGITUDE_DEG, LATITUDE_DEG, HEIGHT_M = 8.4, 49.1, 110.0
"""KASCADE in Karlsruhe: degrees east and north, metres above the sea."""
CHUNK = 1 << 18
RESOLUTION_S = 300.0
"""Positions of Earth are computed so often and interpolated between, far within a thousandth of a degree."""


@dataclass(frozen=True)
class Azimuth:
    """What a stored azimuth means; the usual convention of astronomy is the default."""

    of_north_deg: float = 0.0
    """Stored azimuth of a shower that comes from the north."""
    clockwise: bool = True
    """Whether azimuths grow from north over east, seen from above."""

    def compass(self, azimuth_deg: np.ndarray) -> np.ndarray:
        """Return azimuths from north over east, (N,) degrees in [0, 360)."""
        turned = np.asarray(azimuth_deg, dtype=np.float64) - self.of_north_deg
        return np.mod(turned if self.clockwise else -turned, 360.0)


def equatorial(
    seconds: np.ndarray, zenith_deg: np.ndarray, azimuth_deg: np.ndarray, convention: Azimuth | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return where showers came from, ICRS; refraction is left out, as it does not bend showers.

    Parameters
    ----------
    seconds
        (N,) UTC, seconds since 1970-01-01.
    zenith_deg, azimuth_deg
        (N,) directions that showers come from.
    convention
        What the azimuths mean; clockwise from north if None.

    Returns
    -------
    Right ascension in [0, 360) and declination, (N,) float64 each, degrees.
    """
    need("sky", what="a sky map")
    from astropy import units
    from astropy.coordinates import ICRS, AltAz, EarthLocation
    from astropy.coordinates.erfa_astrom import ErfaAstromInterpolator, erfa_astrom
    from astropy.time import Time
    from astropy.utils.exceptions import AstropyWarning
    from astropy.utils.iers import conf

    site = EarthLocation.from_geodetic(LONGITUDE_DEG * units.deg, LATITUDE_DEG * units.deg, HEIGHT_M * units.m)
    compass = (convention or Azimuth()).compass(azimuth_deg)
    right_ascension, declination = np.empty(len(seconds)), np.empty(len(seconds))
    # Nothing is fetched: beyond the installed tables of Earth's rotation less than a second (0.004 deg) is not known.
    with (
        warnings.catch_warnings(),
        conf.set_temp("auto_download", False),
        conf.set_temp("iers_degraded_accuracy", "ignore"),
        erfa_astrom.set(ErfaAstromInterpolator(RESOLUTION_S * units.s)),
    ):
        warnings.simplefilter("ignore", AstropyWarning)
        for start in range(0, len(seconds), CHUNK):
            rows = slice(start, start + CHUNK)
            local = AltAz(
                az=compass[rows] * units.deg,
                alt=(90.0 - np.asarray(zenith_deg[rows], dtype=np.float64)) * units.deg,
                obstime=Time(np.asarray(seconds[rows], dtype=np.float64), format="unix", scale="utc"),
                location=site,
            )
            icrs = local.transform_to(ICRS())
            right_ascension[rows], declination[rows] = icrs.ra.deg, icrs.dec.deg
    return np.mod(right_ascension, 360.0), declination
