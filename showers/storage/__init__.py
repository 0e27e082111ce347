"""Files: atomic writing, checksums, locks, arrays on disk."""
