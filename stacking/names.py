"""Names of files in a run folder that others look for. Imports nothing."""

from __future__ import annotations

MANIFEST_FILE = "manifest.json"
PREDICTIONS_FILE = "predictions.npz"
EXPORT_FILE = "export.json"
"""In a folder of exported fits: what follows them."""
