"""How work runs: progress, worker processes, compiled kernels, versions of code, failures told in one line."""
