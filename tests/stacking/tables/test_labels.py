"""Labels of another file are the same classes, however a number is written."""

from __future__ import annotations

import polars as pl

from stacking.inputs.tables import class_positions


def test_a_number_is_a_class_by_its_value() -> None:
    assert class_positions(pl.Series([0.0, 1.0, None, 2.0]), ("0", "1")).tolist() == [0, 1, -1, -1]
    assert class_positions(pl.Series(["1.0", "0", "x"]), ("0", "1")).tolist() == [1, 0, -1]
    assert class_positions(pl.Series(["b", "a"]), ("a", "b")).tolist() == [1, 0]
    # where two classes have one value, only the text tells them apart
    assert class_positions(pl.Series(["1", "01", "1.0"]), ("01", "1")).tolist() == [1, 0, -1]
