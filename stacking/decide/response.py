"""The response of a run's decision: true class by decided class, counted on the events that what ships is judged on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from showers.storage.checksums import Seal
from showers.storage.files import read_json, write_json

RESPONSE_FILE = "response.json"


def write_response(
    run: Path, labels: np.ndarray, decided: np.ndarray, energy: np.ndarray | None, edges: tuple[float, ...], n: int
) -> None:
    """Store the response of a run's decision, overall and in bins of reconstructed lg(E/eV), as counts."""
    bins = np.zeros(len(labels), dtype=int) if energy is None else np.digitize(energy, edges)
    counts = np.zeros((len(edges) + 1, n, n), dtype=int)
    np.add.at(counts, (bins, labels, decided), 1)
    content = {"lg_energy_edges": list(edges), "counts": counts.tolist()}
    write_json(run / "meta" / RESPONSE_FILE, content)


def read_response(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the inner borders (B - 1,) of the lg(E/eV) bins and the response counts (B, C, C); sum over B for all."""
    content = read_json(Seal.open(run).path(f"meta/{RESPONSE_FILE}"))
    return np.array(content["lg_energy_edges"]), np.array(content["counts"])
