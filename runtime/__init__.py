"""What everything runs on: files, worker processes, compiled kernels, errors in one line."""
