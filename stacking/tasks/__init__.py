"""Folds and out-of-fold tasks, and the processes that do them."""
