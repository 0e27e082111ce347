"""Dataset folders: the benchmark's ``.npy`` files, opened, written and checked."""
