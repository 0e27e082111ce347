"""How each task is judged and decided, one a module, found by :mod:`stacking.procedure_registry`."""
