"""The benchmark's metrics to the letter: pure functions on labels and outputs."""
