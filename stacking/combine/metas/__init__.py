"""Meta-learners, one a module; whatever is put here is found by :mod:`stacking.combine.meta_registry`."""
