"""The events that a run learns from or predicts: showers with grids, or rows of a table."""
