"""What of the events a training holds in memory; without torch, since plans of runs reckon with it too."""

from __future__ import annotations

RESIDENT_BYTES = 1 << 30
"""Grids of a fold up to this size are held in the host's memory: a million events."""
RESIDENT_SHARE = 0.5
"""Grids are held on a GPU if they take at most this share of its free memory."""
READ_AHEAD = 4
"""Batches a background reader prepares in advance."""
