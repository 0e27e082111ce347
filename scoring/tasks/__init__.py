"""Tasks as scoring sees them, one a module; whatever is put here is found by :mod:`showerstack.scoring.tasks.base`."""
