"""How each task's results are reported, one module a task, found by :mod:`showerstack.report.tasks.target`."""
