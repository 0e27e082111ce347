"""Numbers of docs/data.md are those of the code and of files on disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from features.build import build_table
from report.shared.published import TEST_CLASSES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def row(start: str) -> list[str]:
    """Return the cells of the table row that begins with a word."""
    (line,) = re.findall(rf"^\| {re.escape(start)}[^|]*\|(.*)\|$", TEXT, flags=re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_bytes_a_shower(tiny_composition: Path, tmp_path: Path) -> None:
    train = tiny_composition / "composition_train"
    files = {name: np.load(train / f"{name}.npy") for name in ("matrices", "features", "labels_composition")}
    per_event = {name: values.nbytes // len(values) for name, values in files.items()}
    grids, scalars = row("grids"), row("scalars (5) and label")
    assert grids == [f"{per_event['matrices']:,}", f"{2 * per_event['matrices']:,}"]
    assert scalars == [str(per_event["features"] + 1), str(2 * per_event["features"] + 1)]
    table = build_table(tiny_composition / "composition_test", tmp_path / "table", device="cpu", workers=1)
    limit = int(row(f"feature table ({len(table.columns)} columns, Parquet)")[0].split()[0])
    assert limit == 4 * (len(table.columns) + 1), "float32, and the event's number"
    for n in (10_000, 100_000, 1_000_000, 5_561_523):
        for cell, size in zip(row(f"{n:,} "), (n * (1024 + 11), n * limit), strict=True):
            value, unit = cell.split()
            assert round(size / {"MB": 1e6, "GB": 1e9}[unit], len(value.partition(".")[2])) == float(value)


def test_sizes_of_test_sets() -> None:
    composition, gamma = row("test, composition"), row("test, gamma")
    for column, protocol in enumerate(("v2", "matched", "2026")):
        assert composition[column] == f"{sum(TEST_CLASSES['composition', protocol]):,}"
    for column, protocol in ((0, "v2"), (2, "2026")):
        photons, hadrons = TEST_CLASSES["gamma", protocol]
        assert gamma[column] == f"{photons + hadrons:,} ({photons:,} photons)"


def test_measured_speeds_are_those_of_the_page_on_size() -> None:
    scale = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "scale.md").read_text(encoding="utf-8")
    lines = scale[scale.index("| 5,600,000 | simulate") :].splitlines()[:6]
    cells = [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in lines]
    minutes = {row[1].split()[0]: float(row[2]) / 60 for row in cells}
    told = re.search(r"(\d+) minutes to simulate, (\d+) for the features, (\d+) for a stack", TEXT.replace("\n", " "))
    assert told
    assert [int(n) for n in told.groups()] == [round(minutes[step]) for step in ("simulate", "features", "stack")]
    assert f"{max(float(row[5]) for row in cells)} GB of memory" in TEXT.replace("\n", " ")
