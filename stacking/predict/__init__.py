"""Prediction with a finished run: the chain of learners to scores, and the bundle that holds it."""
