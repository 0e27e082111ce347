"""One run: configuration, what it works on, run folder, its reader, code identity."""
