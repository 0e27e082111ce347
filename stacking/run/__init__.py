"""One run: configuration, tasks of the first and second level, run folder, provenance, cost."""
