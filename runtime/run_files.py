"""Names of files in a run folder that several packages look for."""

from __future__ import annotations

MANIFEST_FILE = "manifest.json"
PREDICTIONS_FILE = "predictions.npz"
LOG_FILE = "run.log"
"""What was logged while the run was made, with tracebacks of failed fits."""
EXPORT_FILE = "export.json"
"""In a folder of exported fits: what follows them."""
