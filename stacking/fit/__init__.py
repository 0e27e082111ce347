"""Out-of-fold fits: folds, tasks, the processes that do them, and what fits into the time."""
