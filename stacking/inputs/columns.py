"""What each column of a user's table is, learned from the training table, and how it becomes float32.

Quantities are numbers, also those written as text with gaps such as ``NA``; true and false are 1 and 0; points in time
are seconds. Other text is a category. Missing values are NaN in all of them. Rows that are there twice, in the training
table or in training and test, are remarked on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError

NUMBER, CATEGORY, TIME = "number", "category", "time"
GAPS = ("", "na", "n/a", "nan", "null", "none", "?", "-", ".", "#n/a", "missing")
"""Text that stands for a missing number, in any case of letters."""
CATEGORY_GAPS = ("", "na", "n/a", "nan", "null", "?")
"""Text that stands for a missing category."""
FREE_TEXT_LEVELS, FREE_TEXT_SHARE = 100, 0.5
"""A column of text with more different values than this, in more than this share of its rows, is no category."""
FAR = 1e30
"""Larger numbers are divided by the largest of their column, so that float32 holds them."""


@dataclass(frozen=True)
class Column:
    """One column of the training table."""

    name: str
    kind: str
    """``number``, ``category`` or ``time``."""
    offset: float = 0.0
    """Subtracted first: float32 has 7 digits, and time stamps or serial numbers may need more."""
    scale: float = 1.0
    """Divided by then."""
    levels: tuple[str, ...] = ()
    """Of a category, in alphabetical order: the position is the code."""

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Column:
        """Read what :meth:`as_json` returned."""
        return cls(**{**content, "levels": tuple(content["levels"])})

    def encoded(self, values: pl.Series, file: Path) -> np.ndarray:
        """Return (N,) float32, NaN where missing or a level that training did not have.

        Raises
        ------
        InputError
            If a value is infinite, or text where training had numbers; file, row and column are named.
        """
        if self.kind == CATEGORY:
            text = _text(values, CATEGORY_GAPS)
            codes = pl.Series(range(len(self.levels)), dtype=pl.Int64)
            result = text.replace_strict(
                pl.Series(self.levels, dtype=pl.String), codes, default=None, return_dtype=pl.Int64
            )
            return result.cast(pl.Float32).fill_null(float("nan")).to_numpy()
        exact = _numbers(values)
        if exact is None:
            bad = _first_text(values)
            raise InputError(f"{file}: row {bad}, column {self.name!r} holds {values[bad]!r}, expected a number")
        if np.isinf(exact).any():
            row = int(np.flatnonzero(np.isinf(exact))[0])
            raise InputError(f"{file}: row {row}, column {self.name!r} is infinite, expected a number or nothing")
        with np.errstate(over="ignore"):
            found32 = ((exact - self.offset) / self.scale).astype(np.float32)
        # Beyond float32 only where new rows are far outside training: the largest number says that as well.
        return np.clip(found32, -np.finfo(np.float32).max, np.finfo(np.float32).max)

    def unknown(self, values: pl.Series) -> list[str]:
        """Return the levels of new rows that training did not have."""
        if self.kind != CATEGORY:
            return []
        return sorted(set(_text(values, CATEGORY_GAPS).drop_nulls().unique().to_list()) - set(self.levels))


@dataclass(frozen=True)
class Plan:
    """All columns that learners see, in the order of the training table."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(column.name for column in self.columns)

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the categories."""
        return tuple(column.name for column in self.columns if column.kind == CATEGORY)

    def encoded(self, frame: pl.DataFrame, file: Path) -> pl.DataFrame:
        """Return the columns as float32."""
        return pl.DataFrame({column.name: column.encoded(frame[column.name], file) for column in self.columns})

    def as_json(self) -> list[dict[str, Any]]:
        """Return JSON content."""
        return [column.as_json() for column in self.columns]

    @classmethod
    def from_json(cls, content: Sequence[Mapping[str, Any]]) -> Plan:
        """Read what :meth:`as_json` returned."""
        return cls(tuple(Column.from_json(one) for one in content))


def plan(
    frame: pl.DataFrame, file: Path, reserved: set[str], wanted: Sequence[str] | None = None
) -> tuple[Plan, list[str]]:
    """Return what the columns of a training table are, and remarks on what a user may not expect.

    Parameters
    ----------
    frame
        The training table as read.
    file
        Where it is from, for messages.
    reserved
        Columns that no learner sees: label, group, identifiers.
    wanted
        The columns to use; None for all others.

    Raises
    ------
    InputError
        If a wanted column is missing or reserved, or no column is left.
    """
    for name in wanted or ():
        if name not in frame.columns:
            raise InputError(f"{file} has no column {name!r}: it has {', '.join(frame.columns[:20])}")
        if name in reserved:
            raise InputError(f"column {name!r} is label, group or identifier: it cannot be an input too")
    names = wanted or [name for name in frame.columns if name not in reserved]
    remarks: list[str] = []
    columns = []
    for name in names:
        result, words = _column(name, frame[name], requested=wanted is not None)
        columns += [result] if result else []
        remarks += [f"{file}: column {name!r} {words}"] if words else []
    if not columns:
        raise InputError(f"{file} has no usable column beside {', '.join(sorted(reserved)) or 'those left out'}")
    return Plan(tuple(columns)), remarks


def _column(name: str, values: pl.Series, *, requested: bool) -> tuple[Column | None, str]:
    if values.null_count() == len(values):
        return None, "is empty: it is ignored"
    if values.dtype.is_nested() or values.dtype in (pl.Binary, pl.Object):
        return None, f"holds {values.dtype}: it is ignored"
    if not requested and name.startswith("unnamed_") and _counts_rows(values):
        return None, "has no name and counts the rows: it is ignored"
    exact = _numbers(values)
    if exact is None:
        return _category(name, values)
    kind = TIME if values.dtype.is_temporal() or _as_time(values) is not None else NUMBER
    offset, scale = _fitting_float32(exact)
    words = []
    if kind == NUMBER and values.dtype == pl.String:
        gaps = sorted(set(values.drop_nulls().unique().to_list()) - set(_text(values, GAPS).drop_nulls().unique()))
        words += [f"counts {', '.join(map(repr, gaps[:5]))} as missing numbers"] if gaps else []
    if offset:
        words.append(f"is taken relative to {offset:.10g}, so that its last digits are not lost")
    if name.casefold() in ("id", "index", "row", "row_id", "rownames") and _all_differ(values):
        words.append("looks like an identifier: leave it out with --id")
    return Column(name, kind, offset, scale), "; ".join(words)


def _category(name: str, values: pl.Series) -> tuple[Column | None, str]:
    text = _text(values, CATEGORY_GAPS)
    levels = sorted(text.drop_nulls().unique().to_list())
    if len(levels) > FREE_TEXT_LEVELS and len(levels) > FREE_TEXT_SHARE * len(values):
        return None, f"holds {len(levels)} different texts in {len(values)} rows: it is ignored"
    return Column(name, CATEGORY, levels=tuple(levels)), ""


def _numbers(values: pl.Series) -> np.ndarray | None:
    """Return (N,) float64 with NaN where missing, or None if a value is no number, time, true or false."""
    if values.dtype.is_temporal():
        return _seconds(values)
    if values.dtype == pl.String:
        cleaned = _text(values, GAPS)
        result = cleaned.cast(pl.Float64, strict=False)
        if result.null_count() != cleaned.null_count():
            in_time = _as_time(values)
            return None if in_time is None else _numbers(in_time)
        return result.fill_null(float("nan")).to_numpy()
    if not (values.dtype.is_numeric() or values.dtype == pl.Boolean):
        return None
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _seconds(values: pl.Series) -> np.ndarray:
    """Return (N,) float64 seconds, whatever unit the column stores: since 1970, since midnight, or of a duration."""
    if values.dtype == pl.Time:
        return values.to_physical().cast(pl.Float64).fill_null(float("nan")).to_numpy() / 1e9
    kind = pl.Duration("us") if values.dtype == pl.Duration else pl.Datetime("us")
    return values.cast(kind).to_physical().cast(pl.Float64).fill_null(float("nan")).to_numpy() / 1e6


def _as_time(values: pl.Series) -> pl.Series | None:
    """Return text as points in time, or None if some of it is none."""
    if values.dtype != pl.String:
        return None
    cleaned = _text(values, GAPS)
    if not cleaned.drop_nulls().str.contains(r"^\d{4}-\d\d-\d\d").all():
        return None
    try:
        result = cleaned.str.to_datetime(strict=False, time_unit="us")
    except pl.exceptions.PolarsError:
        return None
    return result if result.null_count() == cleaned.null_count() else None


def _text(values: pl.Series, gaps: Sequence[str]) -> pl.Series:
    """Return trimmed text, null where it stands for nothing."""
    trimmed = values.cast(pl.String).str.strip_chars()
    lowered = trimmed.str.to_lowercase().is_in(list(gaps))
    return trimmed.set(lowered.fill_null(True), None)


def _first_text(values: pl.Series) -> int:
    cleaned = _text(values, GAPS)
    wrong = cleaned.is_not_null() & cleaned.cast(pl.Float64, strict=False).is_null()
    return int(wrong.arg_true()[0]) if wrong.any() else 0


def _fitting_float32(exact: np.ndarray) -> tuple[float, float]:
    """Return offset and scale with which float32 keeps apart what float64 does; 0 and 1 where it does anyway."""
    present = exact[np.isfinite(exact)]
    if not len(present):
        return 0.0, 1.0
    largest = float(np.abs(present).max())
    if largest > FAR:
        return 0.0, largest
    different = len(np.unique(present))
    if len(np.unique(present.astype(np.float32))) == different:
        return 0.0, 1.0
    offset = float(present.min())
    return (offset, 1.0) if largest > 1e3 * float(np.ptp(present)) else (0.0, 1.0)


def _counts_rows(values: pl.Series) -> bool:
    if not values.dtype.is_integer() or values.null_count():
        return False
    steps = np.diff(values.to_numpy())
    return bool(len(steps)) and bool((steps == 1).all())


def _all_differ(values: pl.Series) -> bool:
    return values.n_unique() == len(values)


def repeated_remarks(train: pl.DataFrame, labels: np.ndarray, test: pl.DataFrame | None) -> list[str]:
    """Return remarks on equal rows, all columns that learners see compared.

    Parameters
    ----------
    train, test
        Columns as learners see them.
    labels
        (N,) class numbers of the training rows.

    Notes
    -----
    Tables of few categories have equal rows by chance: nothing is removed.
    """
    hashes = train.hash_rows().to_numpy()
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    n_again = int(counts.sum() - len(counts))
    remarks = []
    if n_again:
        with_labels = np.unique(np.column_stack([hashes, labels.astype(np.uint64)]), axis=0)
        contrary = len(with_labels) - len(first)
        words = f", {contrary} of them with another label" if contrary else ""
        remarks.append(
            f"{n_again} of {len(hashes)} training rows equal another one{words}: copies in several folds make held-out "
            "scores too good; remove them, or keep them together with --group"
        )
    if test is not None:
        n_known = int(np.isin(test.hash_rows().to_numpy(), hashes).sum())
        if n_known:
            remarks.append(
                f"{n_known} of {test.height} test rows equal a training row: scores on them say nothing about new rows"
            )
    return remarks
