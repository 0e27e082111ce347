"""The response of a decision is kept by energy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runtime.checksums import write_checksums
from stacking.decide.classes import read_response, write_response


def test_response_is_stored_by_energy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, decided, energy = rng.integers(0, 5, 3000), rng.integers(0, 5, 3000), rng.uniform(14.5, 17.0, 3000)
    write_response(tmp_path, labels, decided, energy, (15.0, 16.0), 5)
    write_checksums(tmp_path, ["meta/response.json"])
    edges, counts = read_response(tmp_path)
    assert counts.shape == (3, 5, 5)
    low = energy < edges[0]
    assert counts[0, 2, 3] == np.sum((labels == 2) & (decided == 3) & low)
    assert counts.sum() == 3000
