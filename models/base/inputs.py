"""From named columns to a network's inputs, and from true quantities to its targets: standardised, of order one.

Directions become vectors, heavy tails are compressed. Scales are fitted on training events only. Missing values become
0, the centre of the column, and a column that is often missing also gives an input that says so. Targets are true
quantities of a shower, which the network estimates beside the class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import polars as pl

from showerstack.models.base.learner import Batch, check_finite_or_missing
from showerstack.runtime.errors import InputError

ZENITH, AZIMUTH = "Ze", "Az"
VECTORS: tuple[tuple[str, str], ...] = (("fit_core_x_m", "fit_core_y_m"),)
"""Columns that are the x and y component of a vector in the array's plane."""
VECTOR_SCALE_M = 50.0
"""Vectors are divided by this: half the radius of the disc in which cores lie, about."""
CLIP = 4.0
"""Standardised inputs are cut at this many standard deviations where the tail is :data:`CUT`; vectors always."""
CUT, LOGARITHM = "cut", "logarithm"
"""What becomes of a standardised input far from the centre: cut at :data:`CLIP`, or compressed by :func:`soft_tail`."""
SOFT_FROM = 3.0
HEAVY_TAIL = 12.0
"""A column whose 0.1..99.9 % range exceeds this many half-widths (16..84 %) is compressed by a signed logarithm."""
OFTEN_MISSING = 0.005
"""Share of missing values from which a column gets a flag input."""
FIT_EVENTS = 200_000
"""Quantiles are taken from at most this many training events, evenly spaced."""


@dataclass
class InputTransform:
    """Turns columns into network inputs; see :meth:`fit` and :meth:`apply`.

    Inputs are, in order: plain columns, vector components, missing flags.
    """

    columns: tuple[str, ...]
    """Columns asked for, in order."""
    plain: tuple[str, ...] = ()
    vectors: tuple[tuple[str, str], ...] = ()
    """Pairs of columns; the pair (Ze, Az) means the horizontal direction of arrival."""
    flagged: tuple[str, ...] = ()
    log_scale: np.ndarray = field(default_factory=lambda: np.empty(0))
    """(P,) float64: scale of the signed logarithm of each plain column, 0 for none."""
    centre: np.ndarray = field(default_factory=lambda: np.empty(0))
    width: np.ndarray = field(default_factory=lambda: np.empty(0))
    absent: tuple[str, ...] = ()
    """Columns that these events do not have at all: they count as missing values."""
    tail: str = CUT
    """:data:`CUT`, as the shipped pretrained weights were trained, or :data:`LOGARITHM`."""

    @classmethod
    def fit(cls, batch: Batch, columns: tuple[str, ...], *, tail: str = CUT) -> Self:
        """Learn scales from training events; columns that never vary are left out."""
        vectors, in_vectors = _vectors_among(columns)
        step = max(1, len(batch) // FIT_EVENTS)
        rows = slice(None, None, step)
        plain, scales, centres, widths, flagged = [], [], [], [], []
        for name in columns:
            values = column_values(batch, name)[rows].astype(np.float64)
            present = values[~np.isnan(values)]
            if len(present) < (1 - OFTEN_MISSING) * len(values) and len(present):
                flagged.append(name)
            if name in in_vectors or not len(present) or present.min() == present.max():
                continue
            scale = _log_scale(present)
            squeezed = signed_log(present, scale)
            plain.append(name)
            scales.append(scale)
            centres.append(float(np.median(squeezed)))
            widths.append(_half_width(squeezed))
        if not plain and not vectors:
            raise InputError("none of the inputs varies: all are constant or missing")
        return cls(
            columns=tuple(columns),
            plain=tuple(plain),
            vectors=tuple(vectors),
            flagged=tuple(flagged),
            log_scale=np.array(scales),
            centre=np.array(centres),
            width=np.array(widths),
            tail=tail,
        )

    @classmethod
    def nominal(cls, columns: tuple[str, ...]) -> Self:
        """Return the inputs that these columns give if all of them vary and none is ever missing."""
        vectors, in_vectors = _vectors_among(columns)
        return cls(columns, tuple(name for name in columns if name not in in_vectors), tuple(vectors))

    @property
    def n_inputs(self) -> int:
        """Number of inputs the network gets."""
        return len(self.plain) + 2 * len(self.vectors) + len(self.flagged)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Positions of the vectors' components among the inputs."""
        first = len(self.plain)
        return tuple((first + 2 * k, first + 2 * k + 1) for k in range(len(self.vectors)))

    def position(self, name: str) -> int | None:
        """Return the position of a plain column among the inputs, None if it is not there."""
        return self.plain.index(name) if name in self.plain else None

    def apply(self, batch: Batch) -> np.ndarray:
        """Return (n, n_inputs) float32, C-ordered, finite."""
        if batch.table is not None:
            check_finite_or_missing(batch)
        missing = [name for name in self.columns if name not in self.absent and not has_column(batch, name)]
        if missing:
            raise InputError(
                f"the events lack {len(missing)} of the {len(self.columns)} columns this network was trained on: "
                f"{', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"
            )
        out = np.zeros((len(batch), self.n_inputs), dtype=np.float32)
        for k, name in enumerate(self.plain):
            if name in self.absent:
                continue
            values = signed_log(column_values(batch, name).astype(np.float64), float(self.log_scale[k]))
            values = (values - self.centre[k]) / self.width[k]
            out[:, k] = np.clip(values, -CLIP, CLIP) if self.tail == CUT else soft_tail(values)
        for (x, y), pair in zip(self.pairs, self.vectors, strict=True):
            out[:, x], out[:, y] = _vector(batch, pair)
        first = len(self.plain) + 2 * len(self.vectors)
        for k, name in enumerate(self.flagged):
            out[:, first + k] = name in self.absent or np.isnan(column_values(batch, name))
        return np.nan_to_num(out, copy=False, nan=0.0)

    def state(self) -> dict[str, Any]:
        """Return what JSON needs to rebuild this; float64 survives JSON exactly."""
        return {
            "columns": self.columns,
            "plain": self.plain,
            "vectors": self.vectors,
            "flagged": self.flagged,
            "log_scale": self.log_scale,
            "centre": self.centre,
            "width": self.width,
            "absent": self.absent,
            "tail": self.tail,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from :meth:`state`."""
        return cls(
            columns=tuple(state["columns"]),
            plain=tuple(state["plain"]),
            vectors=tuple((x, y) for x, y in state["vectors"]),
            flagged=tuple(state["flagged"]),
            log_scale=np.asarray(state["log_scale"], dtype=np.float64),
            centre=np.asarray(state["centre"], dtype=np.float64),
            width=np.asarray(state["width"], dtype=np.float64),
            absent=tuple(state.get("absent", ())),
            tail=str(state.get("tail", CUT)),
        )


def has_column(batch: Batch, name: str) -> bool:
    """Return whether table or scalars hold this column."""
    return (batch.table is not None and name in batch.columns) or (
        batch.scalars is not None and name in batch.scalar_columns
    )


def column_values(batch: Batch, name: str) -> np.ndarray:
    """Return one column (n,) float32, from the table where it has it, else from the scalars."""
    if batch.table is not None and name in batch.columns:
        return batch.table[:, batch.columns.index(name)]
    assert batch.scalars is not None
    return batch.scalars[:, batch.scalar_columns.index(name)]


def signed_log(values: np.ndarray, scale: float) -> np.ndarray:
    """Return ``sign(v) ln(1 + |v| / scale)``; with scale 0 the values themselves."""
    return np.sign(values) * np.log1p(np.abs(values) / scale) if scale > 0 else values


def soft_tail(values: np.ndarray) -> np.ndarray:
    """Return standardised values, those beyond :data:`SOFT_FROM` as ``3 + ln(1 + |x| - 3)``: smooth, strictly rising.

    Sizes at the highest energies are many widths from the centre of a steep spectrum; cut there, all would be the same.
    """
    size = np.abs(values)
    return np.sign(values) * (np.minimum(size, SOFT_FROM) + np.log1p(np.maximum(size - SOFT_FROM, 0.0)))


def _vectors_among(columns: tuple[str, ...]) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the vectors that the columns hold, and the columns that enter only as their components."""
    names = set(columns)
    vectors = [pair for pair in VECTORS if set(pair) <= names]
    if {ZENITH, AZIMUTH} <= names:
        vectors.append((ZENITH, AZIMUTH))
    return vectors, {name for pair in vectors for name in pair} - {ZENITH}


def _log_scale(present: np.ndarray) -> float:
    low, high = np.quantile(present, [0.001, 0.999])
    if high - low <= HEAVY_TAIL * _half_width(present):
        return 0.0
    typical = float(np.median(np.abs(present)))
    return typical if typical > 0 else float(np.mean(np.abs(present)))


def _half_width(values: np.ndarray) -> float:
    low, high = np.quantile(values, [0.16, 0.84])
    width = float(high - low) / 2.0
    return width if width > 0 else float(values.std()) or 1.0


def _vector(batch: Batch, pair: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    first, second = (column_values(batch, name).astype(np.float64) for name in pair)
    if pair == (ZENITH, AZIMUTH):
        zenith, azimuth = np.radians(first), np.radians(second)
        # Scaled to order one for zeniths up to 40 deg; no shift, so that it turns with the array.
        return 2.0 * np.sin(zenith) * np.cos(azimuth), 2.0 * np.sin(zenith) * np.sin(azimuth)
    limit = CLIP
    return np.clip(first / VECTOR_SCALE_M, -limit, limit), np.clip(second / VECTOR_SCALE_M, -limit, limit)


@dataclass(frozen=True)
class Target:
    """A true quantity; the network's targets are ``(value - centre) / width``."""

    name: str
    unit: str
    meaning: str
    centre: float
    width: float


TARGETS: tuple[Target, ...] = (
    Target("lg_energy", "lg(E/eV)", "primary energy", 15.4, 0.4),
    Target("lg_ne", "lg", "electron number", 5.1, 0.5),
    Target("lg_nmu", "lg", "muon number", 4.4, 0.5),
    Target("xmax", "g/cm2", "depth of maximum", 550.0, 60.0),
    Target("age", "1", "lateral age", 1.0, 0.12),
    Target("lg_mass", "1", "lg of the mass number; hadrons only", 0.9, 0.65),
    Target("core_outward_m", "m", "core minus fitted core, away from the array's centre", 0.0, 2.0),
    Target("core_sideways_m", "m", "core minus fitted core, to the left of that direction", 0.0, 2.0),
)
"""In the order of the network's outputs."""
TARGET_CLIP = 6.0
"""Standardised targets are cut here: a fit that went astray teaches nothing."""


def targets_of(
    truth: pl.DataFrame, fit_x_m: np.ndarray, fit_y_m: np.ndarray, *, limit: float = TARGET_CLIP
) -> np.ndarray:
    """Return (n, T) float32 standardised targets, NaN where a quantity has no meaning.

    Parameters
    ----------
    truth
        What really happened: :attr:`showerstack.showers.simulation.blocks.SimulatedEvents.truth`.
    fit_x_m, fit_y_m
        (n,) core of the lateral fit.
    limit
        Beyond it they are cut, for a network that learns them; errors are measured without one.
    """
    mass = truth["mass"].to_numpy().astype(np.float64)
    dx_m = truth["core_x_m"].to_numpy() - fit_x_m
    dy_m = truth["core_y_m"].to_numpy() - fit_y_m
    r_m = np.maximum(np.hypot(fit_x_m, fit_y_m), 1e-3)
    values = {
        "lg_mass": np.where(mass > 0, np.log10(np.maximum(mass, 1.0)), np.nan),
        "core_outward_m": (dx_m * fit_x_m + dy_m * fit_y_m) / r_m,
        "core_sideways_m": (dy_m * fit_x_m - dx_m * fit_y_m) / r_m,
    }
    columns = [values[t.name] if t.name in values else truth[t.name].to_numpy().astype(np.float64) for t in TARGETS]
    scaled = [np.clip((c - t.centre) / t.width, -limit, limit) for c, t in zip(columns, TARGETS, strict=True)]
    return np.column_stack(scaled).astype(np.float32)
