"""Raw archives of numbers that are the same on every machine, and what conversion makes of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from showerstack.showers.archives.convert import convert
from showerstack.showers.schema import COMPOSITION, GAMMA, Task

N_EVENTS = 3_000
"""Events of a generated mode."""
HASHES = {
    "composition": "401f4c50168a9aeec8a85ff32c548fe1eef6a57a54ac3057e3f785d9f08091cc",
    "gamma": "611e821008f6263a1061df4532514a19db5cd95c89e0723fa4b9313a303b2f7a",
}
"""SHA-256 of the arrays that the 2026 protocol makes of :func:`write_archives` archives, training set first."""


def write_archives(folder: Path, mode: str, n: int, *, gamma: bool) -> None:
    """Write raw archives: integers and halves, no random generator."""
    row = np.arange(n)

    def spread(factor: int, low: float, high: float) -> np.ndarray:
        return low + (high - low) * ((row * factor + len(mode)) % 1009) / 1024

    features = np.zeros((n, 10))
    features[:, 0] = row % 3 > 0 if gamma else 1 + row * 5 // n
    ranges = ((1, 37, 14, 17), (5, 101, 0, 40), (6, 53, 0, 360), (7, 71, 4.5, 6), (8, 89, 3.5, 5))
    for column, factor, low, high in ranges:
        features[:, column] = spread(factor, low, high)
    features[:, 9] = spread(29, 0.1, 1.6)
    cells = np.arange(16 * 16 * 3).reshape(16, 16, 3)
    matrices = ((row[:, None, None, None] * 31 + cells * 17) % 997 % 61).astype(np.float32)
    np.savez_compressed(folder / f"{mode}_features.npz", features=features)
    np.savez_compressed(folder / f"{mode}_matrices.npz", matrices=matrices)


def converted_hash(folder: Path, task: Task) -> str:
    """Return the SHA-256 of what conversion of generated archives gives."""
    modes = ("qgs_spectra",) if task == COMPOSITION else ("qgs-4_gm_pr", "LHC_gm_pr", "sibyll-23c_gm_pr")
    for mode in modes:
        write_archives(folder, mode, N_EVENTS, gamma=task == GAMMA)
    digest = hashlib.sha256()
    for converted in convert(folder, folder / "converted", task, protocol="2026"):
        for name in ("matrices.npy", "features.npy", str(task.label_file)):
            digest.update(np.load(converted / name).tobytes())
    return digest.hexdigest()
