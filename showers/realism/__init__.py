"""Comparisons of the simulated sky with what is known of the real data."""
