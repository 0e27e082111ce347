"""What the signals of stations say of the detectors themselves: mean of a single particle, threshold, saturation.

A station that is hit while most of its neighbours are silent has mostly been hit by one particle. If a share p of the
neighbours is hit, the mean number of particles a station is lambda = -ln(1 - p), and that of a hit one lambda / p: the
mean signal over that is the mean of one particle. Photons that convert and muons count with it: for the e/gamma channel
it is the deposit a particle far from the axis, which is what the fits need. Near the axis, where the only station that
is hit may be hit by many, nothing is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from showerstack.showers.array import DetectorArray

NEIGHBOURS = 8
"""Nearest stations that are looked at."""
MOST_HIT = 3
"""With more of them hit a station does not count: there are too many particles."""
MIN_SIGNALS = 100
"""With fewer signals of that kind the mean is not determined."""
MAX_SHARE = 0.4
"""With more of such stations hit, silence does not mean few particles."""
HIGHEST_SHARE = 0.01
"""Share of the largest signals that is held at the value below: rare hadrons, late coincidences."""
LEAST_AT_LIMIT = 5
"""So many equal largest (or smallest) signals are no chance."""
NEAR = 1e-3
"""Signals that differ by this share count as equal."""


@dataclass(frozen=True)
class Calibration:
    """Of one channel, in the unit of its signals; None where the data do not tell."""

    n_signals: int
    """Signals of stations among silent ones."""
    particle: float | None
    """Mean of a single particle that arrives vertically."""
    particle_error: float | None
    """Statistical; the systematic one is up to 50 % (``benchmarks/results/arrays.md``)."""
    threshold: float | None
    """Smallest signal, where many are near to it."""
    saturation: float | None
    """Largest signal, where several are equal to it."""
    largest: float
    """Largest signal."""

    def words(self, unit: str) -> str:
        """Return what was found, and how sure it is."""
        if self.particle is None:
            few = f"{self.n_signals} signals, {MIN_SIGNALS} needed"
            why = few if self.n_signals < MIN_SIGNALS else "stations beside silent ones are hit by more than one"
            single = f"single particle not determined ({why})"
        else:
            single = (
                f"single particle {self.particle:.3g} ± {self.particle_error:.1g} {unit} (statistical, and up to 50 %; "
                f"{self.n_signals:,} signals)"
            )
        low = "threshold not seen" if self.threshold is None else f"threshold {self.threshold:.3g} {unit}"
        none = f"no saturation up to {self.largest:.3g} {unit}"
        high = none if self.saturation is None else f"saturation {self.saturation:.3g} {unit}"
        return f"{single}, {low}, {high}"


def calibrate(
    array: DetectorArray, signals: np.ndarray, channel: int, zenith_deg: np.ndarray | None = None
) -> Calibration:
    """Return what the signals of a channel say.

    Parameters
    ----------
    signals
        (n, rows, columns, 2) of any unit.
    channel
        0 e/gamma, 1 muon.
    zenith_deg
        (n,): a particle's path, and its signal, grow as 1 / cos(zenith); None takes all as vertical.
    """
    cells = np.flatnonzero(array.has_muon if channel else array.has_electron)
    seen = np.nan_to_num(np.asarray(signals, np.float64).reshape(len(signals), -1, 2)[:, cells, channel])
    cosine = 1.0 if zenith_deg is None else np.cos(np.deg2rad(np.nan_to_num(zenith_deg)))[:, None]
    hits = seen[seen > 0]
    if not hits.size or len(cells) < 2:
        return Calibration(0, None, None, None, None, 0.0)
    x, y = array.x_m.ravel()[cells], array.y_m.ravel()[cells]
    n = min(NEIGHBOURS, len(cells) - 1)
    nearest = np.argsort(np.hypot(x[:, None] - x, y[:, None] - y), axis=1, kind="stable")[:, : n + 1]
    around = (seen > 0)[:, nearest[:, 1:]].sum(axis=2)
    few = (around <= MOST_HIT) & (around > 0)
    # The core is near the largest signal; of a small array a third at most lies there.
    few[np.arange(len(seen))[:, None], nearest[seen.argmax(axis=1), : len(cells) // 3 + 1]] = False
    single = (seen * cosine)[few & (seen > 0)]
    particle = error = None
    # The share of hit stations where as few neighbours are hit.
    share = float((seen > 0)[few].mean()) if single.size else 1.0
    if single.size >= MIN_SIGNALS and share < MAX_SHARE:
        per_hit = -np.log1p(-share) / share
        held = np.minimum(single, np.quantile(single, 1.0 - HIGHEST_SHARE))
        particle = float(held.mean() / per_hit)
        error = float(held.std() / np.sqrt(held.size) / per_hit)
    low, high = float(hits.min()), float(hits.max())
    return Calibration(
        n_signals=int(single.size),
        particle=particle,
        particle_error=error,
        threshold=low if np.count_nonzero(hits < 1.1 * low) >= LEAST_AT_LIMIT else None,
        saturation=high if np.count_nonzero(hits > high * (1.0 - NEAR)) >= LEAST_AT_LIMIT else None,
        largest=high,
    )


SIGNAL_UNITS = {"in eV": 1e6, "in keV": 1e3, "in GeV": 1e-3}
"""Other units of deposits: how many make one MeV."""
NEAR_UNIT, FAR_FROM_ONE = 2.5, 10.0
"""Single particles that agree with a unit within the first factor are of that unit; beyond the second from what the
card says they are of no unit that is known."""
CHANNEL_NAMES = ("e/gamma", "muon")


def signal_remarks(
    name: str, array: DetectorArray, signals: np.ndarray, zenith_deg: np.ndarray | None = None
) -> list[str]:
    """Return remarks on signals, (n, rows, columns, 2) MeV, whose single particles are far from what the card says."""
    remarks = []
    response = array.response
    for channel, expected in enumerate((response.electron_deposit_mev, response.muon_deposit_mev)):
        found = calibrate(array, signals, channel, zenith_deg)
        if found.particle is None:
            continue
        likely = {"in MeV": 1.0, 'in units of a particle (unit = "mip")': 1.0 / expected, **SIGNAL_UNITS}
        ratio = found.particle / expected
        near = min(likely, key=lambda one: abs(np.log(ratio / likely[one])))
        if 1 / NEAR_UNIT < ratio / likely[near] < NEAR_UNIT:
            if near == "in MeV":
                continue
            hint = f"are signals {near}?"
        elif 1 / FAR_FROM_ONE < ratio < FAR_FROM_ONE:
            continue
        else:
            hint = f"say {'muon' if channel else 'electron'}_deposit_mev in array.toml"
        remarks.append(
            f"{name}: a single particle gives {found.particle:.3g} MeV in the {CHANNEL_NAMES[channel]} channel, "
            f"the array's card has {expected:g}: {hint}"
        )
    return remarks
