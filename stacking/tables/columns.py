"""The schema of a table: what each column is, fixed by the training table, kept in the run, applied to every new file.

Nothing is guessed. A feature is a number; a category is what the file declares or the user names. Whatever does not fit
is refused with file, row and column. Numbers are centred and scaled in float64 before they become float32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from showerstack.runtime.errors import InputError, shown
from showerstack.stacking.remarks import Seen

NUMBER, BOOLEAN, CATEGORY = "number", "boolean", "category"
TIMES = {"Date": "time", "Datetime": "time", "Duration": "duration", "Time": "time of day"}
"""Kinds that become seconds, by the type that a file declares: since 1970, lasting, since midnight."""
ZONED = "time with a zone"
"""Seconds since 1970 in UTC; a time without a zone may be of any."""
GAPS = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?")
"""What stands for a missing number in text, in any case of letters."""
FAR = 1e30
"""Numbers farther from the middle of their column than so many times its spread are taken as missing."""
EXACT = 2**53
"""All whole numbers up to here differ in float64."""
COUNTING_ROWS = 20
"""Fewer different whole numbers may be dense by chance."""
REMEDIES = "name the columns to learn from (--columns), declare categories (--categories), or set it apart (--id)"

_NUMBER = r"^[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
"""Codes that are all of this kind are compared as numbers."""
_ROW_NAME = re.compile(r"unnamed: ?\d+|unnamed_\d+|__index_level_\d+__|index|rownames|row\.names", re.IGNORECASE)


@dataclass(frozen=True)
class Column:
    """One column that learners get."""

    name: str
    kind: str
    """``number``, ``boolean``, ``category``, one of :data:`TIMES`, or :data:`ZONED`."""
    offset: float = 0.0
    """Subtracted first."""
    scale: float = 1.0
    """Divided by then."""
    levels: tuple[str, ...] = ()
    """Of a category, in alphabetical order: the position is the code."""
    numeric: bool = False
    """Whether a category was written in numbers, which a file of types may hold again."""
    seen: Seen | None = None
    """What it was in training, as learners get it; None where too few rows had it."""

    def encoded(self, values: pl.Series, file: Path, gaps: tuple[str, ...] = GAPS) -> tuple[np.ndarray, str | None]:
        """Return (N,) float32, NaN where missing, and a remark on values that are taken as missing."""
        self._check_type(values, file)
        if self.kind == CATEGORY:
            return self._codes(values, file)
        if self.kind == BOOLEAN:
            booleans = _booleans(values, self.name, file, gaps)
            return booleans.cast(pl.Float32).fill_null(float("nan")).to_numpy(), None
        with np.errstate(over="ignore"):
            scaled = _minus_offset(values, self.name, file, self.offset, gaps) / self.scale
        far = np.abs(scaled) > FAR
        scaled[far] = np.nan
        n = int(far.sum())
        remark = f"{file}: column {self.name!r} has {n} values beyond 1e30 times its spread: they are taken as missing"
        return scaled.astype(np.float32), remark if n else None

    def _check_type(self, values: pl.Series, file: Path) -> None:
        kind = _declared_kind(values.dtype)
        is_text = values.dtype == pl.String and self.kind in (NUMBER, BOOLEAN, CATEGORY)
        is_code = kind == NUMBER and self.kind == CATEGORY and self.numeric
        if not (kind == self.kind or is_text or is_code or values.null_count() == len(values)):
            raise InputError(f"{file}: column {self.name!r} holds {values.dtype}, in training it was a {self.kind}")

    def _codes(self, values: pl.Series, file: Path) -> tuple[np.ndarray, str | None]:
        text = as_text(values)
        text = _whole(text) if all(_WHOLE.fullmatch(level) for level in self.levels) else text
        codes = text.replace_strict(
            pl.Series(self.levels, dtype=pl.String),
            pl.Series(range(len(self.levels)), dtype=pl.Float32),
            default=None,
            return_dtype=pl.Float32,
        )
        unknown = text.filter(codes.is_null() & text.is_not_null())
        names = ", ".join(map(repr, unknown.unique().sort().to_list()[:5]))
        remark = f"{file}: column {self.name!r} holds {names}, which training rows do not have: {len(unknown)} rows"
        return codes.fill_null(float("nan")).to_numpy(), f"{remark} are taken as missing" if len(unknown) else None


@dataclass(frozen=True)
class Schema:
    """All columns that learners get, in the order of the training table, and its labels."""

    columns: tuple[Column, ...]
    label: str = ""
    """Name of the label column."""
    label_type: str = "str"
    """Type of the labels in the training table: ``bool``, ``int``, ``float`` or ``str``."""
    classes: tuple[str, ...] = ()
    """As text, in the order of class numbers."""
    gaps: tuple[str, ...] = GAPS

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def categories(self) -> tuple[str, ...]:
        """Names of the categories."""
        return tuple(column.name for column in self.columns if column.kind == CATEGORY)

    def encoded(self, frame: pl.DataFrame, file: Path) -> tuple[pl.DataFrame, list[str]]:
        """Return the columns as float32, and remarks on values that are taken as missing."""
        encoded = {column.name: column.encoded(frame[column.name], file, self.gaps) for column in self.columns}
        remarks = [remark for _, remark in encoded.values() if remark]
        return pl.DataFrame({name: values for name, (values, _) in encoded.items()}), remarks

    def trained_on(self, encoded: pl.DataFrame) -> Schema:
        """Return the schema with what the columns, as :meth:`encoded` returned them, were in training."""
        columns = (replace(column, seen=Seen.of(encoded[column.name].to_numpy())) for column in self.columns)
        return replace(self, columns=tuple(columns))

    def unlike_remarks(self, encoded: pl.DataFrame, file: Path) -> list[str]:
        """Return remarks on columns of a new file, encoded, that are not as they were in training."""
        remarks = []
        for column in self.columns:
            if column.seen is None:
                continue
            values, ordered = encoded[column.name].to_numpy(), column.kind == NUMBER
            words = column.seen.unlike(values, scale=column.scale, offset=column.offset, ordered=ordered)
            remarks += [f"{file}: column {column.name!r} {words}"] if words else []
        return remarks

    def as_json(self) -> dict[str, Any]:
        """Return JSON content."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Schema:
        """Read what :meth:`as_json` returned."""
        columns = tuple(
            Column(**{**one, "offset": float(one["offset"]), "levels": tuple(one["levels"]), "seen": seen})
            for one in content["columns"]
            for seen in [Seen(**one["seen"]) if one.get("seen") else None]
        )
        listed = {name: tuple(content[name]) for name in ("classes", "gaps")}
        return cls(**{**content, **listed, "columns": columns})


def learned_columns(
    frame: pl.DataFrame,
    file: Path,
    reserved: set[str],
    *,
    wanted: Sequence[str] | None = None,
    categories: Sequence[str] = (),
) -> tuple[tuple[Column, ...], list[str]]:
    """Return the columns of a training table that learners get, and remarks on those that are left out.

    Parameters
    ----------
    reserved
        Columns that no learner gets: label, group, weight, fold, identifiers.
    wanted
        The columns to use; None for all others.
    categories
        Columns of text or whole numbers that are categories although the file does not declare them.
    """
    for name in (*(wanted or ()), *categories):
        if name not in frame.columns:
            raise InputError(f"{file} has no column {name!r}: it has {', '.join(frame.columns[:20])}")
        if name in reserved:
            raise InputError(f"column {name!r} is label, group or identifier: it cannot be an input too")
    remarks, columns = [], []
    for name in wanted or [name for name in frame.columns if name not in reserved]:
        values = frame[name]
        if values.null_count() == len(values):
            remarks.append(f"{file}: column {name!r} is empty: it is ignored")
            continue
        if wanted is None and name not in categories:
            remarks += _row_number_remarks(values, name, file)
        columns.append(_learned_column(values, name, file, is_category=name in categories))
        if columns[-1].kind == NUMBER and values.dtype == pl.String:
            texts = values.drop_nulls().unique().sort().to_list()
            gaps = [text for text in texts if text.strip() and text.strip().lower() in GAPS]
            if gaps:
                remarks.append(f"{file}: column {name!r} counts {', '.join(map(repr, gaps))} as missing numbers")
    if not columns:
        raise InputError(f"{file} has no usable column beside {', '.join(sorted(reserved)) or 'those left out'}")
    return tuple(columns), remarks


def _learned_column(values: pl.Series, name: str, file: Path, *, is_category: bool) -> Column:
    declared = NUMBER if values.dtype == pl.String else _declared_kind(values.dtype)
    kind = CATEGORY if is_category and declared == NUMBER else declared
    if kind is None or (is_category and kind not in (CATEGORY, BOOLEAN)):
        raise InputError(f"{file}: column {name!r} holds {values.dtype}, no numbers: {REMEDIES}")
    if kind == CATEGORY:
        text = as_text(values).drop_nulls()
        whole = _whole(text)
        text = whole if all(_WHOLE.fullmatch(level) for level in whole.unique().to_list()) else text
        levels = tuple(text.unique().sort().to_list())
        return Column(name, kind, levels=levels, numeric=values.dtype.is_numeric())
    if kind == BOOLEAN:
        return Column(name, kind)
    present = _minus_offset(values, name, file, 0.0, remedy=f": {REMEDIES}")
    present = np.unique(present[~np.isnan(present)])
    if not len(present):
        return Column(name, kind)
    # Of different values, so that a word for "missing" such as -9e99 counts once, however often it is there.
    offset = float(np.quantile(present, 0.5, method="lower"))
    if abs(offset) > EXACT:
        present = np.unique(_minus_offset(values, name, file, offset))
        present = present[~np.isnan(present)] + offset
    away = np.abs(present - offset)
    away = away[away > 0]
    return Column(name, kind, offset, float(np.quantile(away, 0.25, method="lower")) if len(away) else 1.0)


def _declared_kind(dtype: pl.DataType) -> str | None:
    """Return the kind of column that a type declares; None for text and what cannot be learned from."""
    if dtype.is_numeric():
        return NUMBER
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return CATEGORY
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return ZONED
    return BOOLEAN if dtype == pl.Boolean else TIMES.get(str(dtype.base_type()))


def _minus_offset(
    values: pl.Series,
    name: str,
    file: Path,
    offset: float,
    gaps: tuple[str, ...] = GAPS,
    remedy: str = ", as in training",
) -> np.ndarray:
    """Return (N,) float64 values less the offset, NaN where missing."""
    values = _seconds(values) if values.dtype.is_temporal() else values
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        values = values.set(values.str.to_lowercase().is_in(list(gaps)).fill_null(True), None)
        _refuse_first(~values.str.contains(_NUMBER), values, name, file, f"a number{remedy}")
    exact = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    if np.isinf(exact).any():
        row = int(np.flatnonzero(np.isinf(exact))[0])
        raise InputError(f"{file}: row {row}, column {name!r} is infinite, expected a number or nothing")
    with np.errstate(over="ignore"):
        difference: np.ndarray = exact - offset
    if not values.dtype.is_float() and offset.is_integer():
        # Whole numbers that float64 would round are subtracted as whole numbers.
        for row in np.flatnonzero(np.abs(exact) > EXACT).tolist():
            text = str(values[row])
            if text.lstrip("+-").isdecimal():
                difference[row] = int(text) - int(offset)
    return difference


def _refuse_first(wrong: pl.Series, values: pl.Series, name: str, file: Path, expected: str) -> None:
    if (wrong := wrong.fill_null(False)).any():
        row = int(wrong.arg_true()[0])
        raise InputError(f"{file}: row {row}, column {name!r} holds {shown(values[row])}, expected {expected}")


def _booleans(values: pl.Series, name: str, file: Path, gaps: tuple[str, ...]) -> pl.Series:
    """Return true and false, null where missing; text is read as the words for them."""
    if values.dtype != pl.String:
        return values
    words = values.str.strip_chars().str.to_lowercase()
    booleans = words.replace_strict(["true", "false"], [True, False], default=None, return_dtype=pl.Boolean)
    _refuse_first(booleans.is_null() & ~words.is_in(list(gaps)), values, name, file, "true or false")
    return booleans


def _seconds(values: pl.Series) -> pl.Series:
    """Return seconds as float64, whatever unit the column stores."""
    kind = {pl.Time: pl.Time(), pl.Duration: pl.Duration("us")}.get(values.dtype.base_type(), pl.Datetime("us"))
    ticks = values.cast(kind).to_physical().cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return pl.Series(ticks / (1e9 if values.dtype == pl.Time else 1e6))


def as_text(values: pl.Series) -> pl.Series:
    """Return values as text as they are written, null where missing; whole numbers in floats without decimals."""
    if values.dtype == pl.Boolean:
        return pl.Series(values.name, ["True", "False"]).gather(values.not_().cast(pl.UInt32))
    if not values.dtype.is_float():
        return values.cast(pl.String).replace([""], [None])
    texts = [None if v is None or v != v else str(int(v)) if v.is_integer() else repr(v) for v in values.to_list()]
    return pl.Series(values.name, texts, dtype=pl.String)


def _whole(text: pl.Series) -> pl.Series:
    """Return text in which whole numbers have no decimals: ``1.0`` is what pandas makes of 1 beside a gap."""
    return text.str.replace(r"^\s*(-?\d+)\.0*\s*$", "$1")


def _row_number_remarks(values: pl.Series, name: str, file: Path) -> list[str]:
    """Refuse a column that numbers the rows: in a table ordered by class, it gives away the class of every row.

    Whole numbers that are all different with wide gaps may be row numbers of a larger table: a remark.
    """
    if not (values.dtype.is_numeric() or values.dtype == pl.String):
        return []
    numbers = values.cast(pl.Float64, strict=False)
    present = numbers.drop_nulls().drop_nans()
    all_differ = present.len() == values.drop_nulls().len() >= COUNTING_ROWS and present.n_unique() == present.len()
    is_counting = bool(all_differ and present.is_finite().all() and (present == present.floor()).all())
    span = float(present.max()) - float(present.min()) + 1 if is_counting else np.inf  # type: ignore[arg-type]
    if _ROW_NAME.fullmatch(name) or span <= 2 * present.len():
        raise InputError(
            f"{file}: column {name!r} numbers the rows, and may tell the class by their order: set it apart (--id), or "
            "name it among the columns to learn from (--columns)"
        )
    if not is_counting:
        return []
    return [f"{file}: column {name!r} holds whole numbers that are all different: set it apart (--id) if it names rows"]
