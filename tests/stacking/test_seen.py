"""New files are held against training: what is empty, constant or of another unit is named; a like sample never is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from showerstack.stacking.prediction.predict import predict
from showerstack.stacking.prediction.run import load
from showerstack.stacking.remarks import Seen
from showerstack.stacking.tables.columns import Schema, learned_columns
from showerstack.stacking.training.train import stack
from tests.stacking.test_tables import _config

FILE = Path("new.csv")


def _schema(frame: pl.DataFrame, categories: tuple[str, ...] = ()) -> Schema:
    columns, _ = learned_columns(frame, FILE, set(), categories=categories)
    schema = Schema(columns)
    return schema.trained_on(schema.encoded(frame, FILE)[0])


def _said(schema: Schema, frame: pl.DataFrame) -> list[str]:
    encoded, remarks = schema.encoded(frame, FILE)
    return [*remarks, *schema.unlike_remarks(encoded, FILE)]


def _frame(n: int, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    few = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    return pl.DataFrame(
        {"metres": rng.normal(0, 50, n), "kelvin": rng.normal(290, 8, n), "steep": rng.pareto(2, n), "gaps": few,
         "flag": rng.random(n) < 0.02, "count": rng.poisson(0.3, n), "code": rng.integers(0, 4, n).astype(str)}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        ("metres", lambda x: x * 100, "lies outside of what was trained on: half of its values are below"),
        ("metres", lambda x: x / 1000, "varies 1,"),
        ("kelvin", lambda x: x - 273.15, "lies outside of what was trained on: half of its values are below 1"),
        ("steep", lambda x: x.log() + 40, "lies outside of what was trained on"),
        ("metres", lambda x: x * 0 + 7, "is the same in all 200 rows (7)"),
        ("gaps", lambda x: pl.Series([None] * len(x), dtype=pl.Float64), "is empty in all 200 rows, in training 1"),
        ("code", lambda x: pl.Series(["2"] * len(x)), "is the same in all 200 rows, in training no value is so common"),
    ],
)
def test_columns_unlike_those_of_the_training_are_named(column: str, change: object, words: str) -> None:
    new = _frame(200, 2)
    new = new.with_columns(change(new[column]).alias(column))  # type: ignore[operator]
    (said,) = _said(_schema(_frame(400, 1), ("code",)), new)
    assert f"column '{column}' {words}" in said


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_said_of_a_like_sample(seed: int) -> None:
    n = int(np.random.default_rng(seed).integers(20, 2000))
    schema = _schema(_frame(n, 2 * seed), ("code",))
    for rows in (1, 19, 20, 300):
        assert _said(schema, _frame(rows, 1000 + seed)) == []
    assert Schema.from_json(schema.as_json()) == schema


@pytest.mark.parametrize("trained", [["1", "2", "3"], ["1.0", "2.0", "3.0"], [1, 2, 3]])
@pytest.mark.parametrize("new", [["1", "2", "3"], ["1.0", "2.00", "3."]])
def test_whole_numbers_are_the_same_codes_with_and_without_decimals(trained: list[object], new: list[str]) -> None:
    schema = _schema(pl.DataFrame({"c": trained}), ("c",))
    encoded, remarks = schema.encoded(pl.DataFrame({"c": [*new, None]}), FILE)
    assert remarks == []
    np.testing.assert_array_equal(encoded["c"].to_numpy(), [0, 1, 2, np.nan])


def test_codes_that_are_no_whole_numbers_stay_text() -> None:
    for levels in (["01", "1"], ["a", "1"], ["1.5", "1"]):
        schema = _schema(pl.DataFrame({"c": levels}), ("c",))
        assert schema.columns[0].levels == tuple(sorted(levels))
        _, (said,) = schema.encoded(pl.DataFrame({"c": ["1.0"]}), FILE)
        assert "holds '1.0', which training rows do not have" in said


def test_few_rows_have_no_distribution() -> None:
    assert Seen.of(np.arange(19.0)) is None
    seen = Seen.of(np.arange(50.0))
    assert seen is not None
    assert seen.unlike(np.full(19, 1e6)) is None


@pytest.mark.usefixtures("fakes")
def test_a_run_says_it_of_test_table_and_new_file(two_gaussians: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = two_gaussians
    wrong = tmp_path / "wrong.parquet"
    pl.read_parquet(test).with_columns(pl.col("x") * 100).write_parquet(wrong)
    line = "column 'x' lies outside of what was trained on"
    clean, odd = (stack(_config(tmp_path / name, train, test_table=file)) for name, file in (("a", test), ("b", wrong)))
    assert not any(line in remark for remark in clean.manifest.remarks)
    assert any(line in remark for remark in odd.manifest.remarks)
    assert any(line in remark for remark in predict(load(clean.run), wrong).remarks)
    assert predict(load(clean.run), test).remarks == ()
