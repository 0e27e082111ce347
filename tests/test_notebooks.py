"""The notebooks run from top to bottom with fewer showers, are kept without outputs, and reach what they promise."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import polars as pl
import pytest

from tests.told import ROOT, executed

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SMALLER = {
    "first": {"n_train=3000, n_test=2000": "n_train=800, n_test=500"},
    "spectrum": {
        "n_train=6000, n_test=40_000": "n_train=800, n_test=4000",
        'learners=("lightgbm", "quadratic_logit")': 'learners=("quadratic_logit",)',
        "live_time_h = 200.0": "live_time_h = 30.0",
    },
    "photons": {
        "n_train=6000, n_test=12_000": "n_train=1500, n_test=3000",
        "live_time_h = 50.0": "live_time_h = 5.0",
        "photon_fraction = 1e-3": "photon_fraction = 0.05",
        "edges=(15.0, 15.5, 16.5), toys=500": "edges=(15.0, 16.5), toys=100",
    },
}
"""What a notebook does, made smaller."""


def smaller(cells: list[Any], name: str) -> list[Any]:
    """Return the cells of a notebook with less to do; each saving saves something."""
    for whole, less in {**SMALLER[name], "folds=2,": "folds=2, workers=1,"}.items():
        assert any(whole in cell.source for cell in cells), whole
        for cell in cells:
            cell.source = cell.source.replace(whole, less)
    return cells


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_run_and_are_kept_without_outputs(
    file: Path, undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the notebook's folder is made
    cells = [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
    # Outputs would show the numbers and warnings of another version, and change with every run.
    assert [(cell.outputs, cell.execution_count) for cell in cells] == [([], None)] * len(cells)
    code = "\n".join(cell.source for cell in smaller(cells, file.stem))
    names: dict[str, Any] = {}
    said = executed(code, names)
    plt.close("all")
    if file.stem == "first":
        (score,) = re.findall(r"<fraction error (0\.\d+) \[", said)
        assert float(score) < 0.15, "much better than guessing (.158) even after few showers"
        assert (names["folder"] / "event.png").stat().st_size > 15_000
    elif file.stem == "spectrum":
        every = names["table"].filter(pl.col("group") == "all")
        gap = (every[names["FLUX"]] - every["true"]) / every[names["TOTAL"]]
        assert len(gap) > 0
        assert gap.abs().max() < 5, "the truth comes back within the errors"
        assert (names["folder"] / "spectra" / "spectra.html").exists()
    else:
        (limit,) = names["found"].limits().filter(pl.col("range") == "bin")["limit_fraction"]
        assert 1e-4 < limit < 1
        explanation = names["explanation"]
        assert explanation.base + sum(explanation.groups.values()) == pytest.approx(explanation.score)
        assert names["picture"].stat().st_size > 15_000
