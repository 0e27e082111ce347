"""Tasks as scoring sees them, one a module; whatever is put here is found by :mod:`scoring.tasks.base`."""
