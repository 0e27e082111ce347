"""From local directions and times to right ascension and declination, by ``astropy`` (extra ``sky``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from showerstack.runtime.errors import InputError, need
from showerstack.runtime.shared import Setting, ignored
from showerstack.showers.array import KASCADE, DetectorArray
from showerstack.showers.atmosphere import altitude_of

CHUNK = 1 << 18
RESOLUTION_S = 300.0
"""Positions of Earth are computed so often and interpolated between, far within a thousandth of a degree."""
YEARS_BEYOND_TABLE = 10.0
"""So long after its end the installed table of Earth's rotation is gone on with. UT1 - UTC has stayed within 0.9 s, or
0.004 degrees of right ascension, since 1972."""
MJD_OF_1970 = 40_587
"""Modified Julian date of 1970-01-01."""
DAY_S = 86_400.0


@dataclass(frozen=True)
class ArraySite:
    """Where an array stands."""

    longitude_deg: float
    """East."""
    latitude_deg: float
    """North."""
    height_m: float
    """Above the sea."""

    @classmethod
    def of(cls, array: DetectorArray) -> ArraySite:
        """Return the site that an array's card gives; KASCADE's own.

        Raises
        ------
        InputError
            Where the card gives none.
        """
        if array == KASCADE:
            return KARLSRUHE
        site = array.card.site
        if missing := [name for name in ("latitude_deg", "longitude_deg") if name not in site]:
            raise InputError(
                f"array {array.name}: its card has no {' and no '.join(missing)} in [site], without which showers have "
                "no place on the sky: say them in array.toml, and convert again"
            )
        depth = array.depth_g_cm2
        height = 0.0 if depth is None else float(altitude_of(depth))
        return cls(site["longitude_deg"], site["latitude_deg"], height)


KARLSRUHE = ArraySite(8.4, 49.1, 110.0)
"""KASCADE's."""


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


def _set_astropy(position: bool) -> Callable[[], None]:
    from astropy import units
    from astropy.coordinates.erfa_astrom import ErfaAstromInterpolator, erfa_astrom
    from astropy.utils.iers import conf

    stack = ExitStack()
    stack.enter_context(conf.set_temp("auto_download", False))
    stack.enter_context(conf.set_temp("auto_max_age", None))
    stack.enter_context(conf.set_temp("iers_degraded_accuracy", "ignore"))
    stack.enter_context(erfa_astrom.set(ErfaAstromInterpolator(RESOLUTION_S * units.s)))
    return stack.close


_ASTROPY = Setting(_set_astropy)


@contextmanager
def _installed_tables() -> Iterator[None]:
    """Let astropy take the installed table of Earth's rotation as it is, however old; nothing is fetched."""
    from astropy.utils.exceptions import AstropyWarning

    with (
        _ASTROPY.held(True),
        ignored(AstropyWarning),
        ignored(Warning, "ERFA function .*dubious year"),  # later than leap seconds are announced
    ):
        yield


def known_times() -> tuple[float, float]:
    """Return between which times Earth's rotation is known to 0.004 degrees, UTC, seconds since 1970-01-01."""
    need("sky", what="a sky map")
    from astropy.utils.iers import earth_orientation_table

    with _installed_tables():
        days = earth_orientation_table.get()["MJD"].value
    first, last = ((float(day) - MJD_OF_1970) * DAY_S for day in (days[0], days[-1]))
    return first, last + YEARS_BEYOND_TABLE * 365.25 * DAY_S


def equatorial(
    seconds: np.ndarray,
    zenith_deg: np.ndarray,
    azimuth_deg: np.ndarray,
    convention: Azimuth | None = None,
    site: ArraySite = KARLSRUHE,
) -> tuple[np.ndarray, np.ndarray]:
    """Return where showers came from, ICRS; refraction is left out, as it does not bend showers.

    Parameters
    ----------
    seconds
        (N,) UTC, seconds since 1970-01-01, within :func:`known_times`.
    zenith_deg, azimuth_deg
        (N,) directions that showers come from.
    convention
        What the azimuths mean; clockwise from north if None.
    site
        Where they were seen.

    Returns
    -------
    Right ascension in [0, 360) and declination, (N,) float64 each, degrees.
    """
    need("sky", what="a sky map")
    from astropy import units
    from astropy.coordinates import ICRS, AltAz, EarthLocation
    from astropy.time import Time

    place = EarthLocation.from_geodetic(
        site.longitude_deg * units.deg, site.latitude_deg * units.deg, site.height_m * units.m
    )
    compass = (convention or Azimuth()).compass(azimuth_deg)
    right_ascension, declination = np.empty(len(seconds)), np.empty(len(seconds))
    with _installed_tables():
        for start in range(0, len(seconds), CHUNK):
            rows = slice(start, start + CHUNK)
            local = AltAz(
                az=compass[rows] * units.deg,
                alt=(90.0 - np.asarray(zenith_deg[rows], dtype=np.float64)) * units.deg,
                obstime=Time(np.asarray(seconds[rows], dtype=np.float64), format="unix", scale="utc"),
                location=place,
            )
            icrs = local.transform_to(ICRS())
            right_ascension[rows], declination[rows] = icrs.ra.deg, icrs.dec.deg
    return np.mod(right_ascension, 360.0), declination
