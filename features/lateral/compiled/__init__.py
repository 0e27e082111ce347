"""The lateral fits in compiled code: one loop over events."""
