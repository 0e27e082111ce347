"""Comparisons of the simulated sky with known facts of the real data."""
