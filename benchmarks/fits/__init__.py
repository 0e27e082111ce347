"""How well the lateral fits measure, against the simulation's truth."""
