"""How fast features, the simulation and scoring are."""
