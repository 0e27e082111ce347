"""Are these events like the simulation that a run was trained on? Numbers only; the page is drawn by the report."""
