"""How each task's results are told, one a module, found by :mod:`report.tasks.target`."""
