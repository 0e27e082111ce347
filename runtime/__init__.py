"""What everything runs on: files, worker processes, compiled kernels, errors told in one line."""
