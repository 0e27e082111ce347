"""Sky maps: counts, exposure from scrambled times, significance."""
