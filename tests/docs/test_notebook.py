"""The notebook runs from top to bottom, is kept without outputs, and reaches what it promises."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "notebook.ipynb"


def test_it_is_kept_without_outputs() -> None:
    # Outputs would show the numbers and warnings of another version, and change with every run.
    for cell in nbformat.read(FILE, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(FILE, as_version=4)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the notebook's folder is made
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    said = "".join(output.get("text", "") for output in outputs)
    assert "<composition run " in said
    (score,) = re.findall(r"<fraction error (0\.\d+) \[", said)
    assert float(score) < 0.15, "much better than guessing (.158) even after 1,500 showers"
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
    assert len(pictures[0]) > 20_000
