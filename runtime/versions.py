"""Version numbers of what can change a number: raised by hand, by whoever changes numbers.

They stand in the identity of data sets, feature tables, fits and runs. What was made by another version is made again,
or refused in a line that says what to do. Names, comments, layout and the versions of libraries do not count; the
latter are recorded and remarked on. The tables beside ``tests/*/test_reference*.py`` fail when numbers move beyond
their tolerance, and name the version to raise.
"""

from __future__ import annotations

SIMULATION_VERSION = 2
"""Simulated events: ``showers/simulation``, ``showers/array.py``, ``showers/lateral.py``, cuts and protocols."""

CONVERSION_VERSION = 3
"""Sets made of raw files: ``showers/archives``, cuts and protocols."""

FEATURES_VERSION = 1
"""Feature tables: ``features``, ``showers/array.py``, ``showers/lateral.py``."""

STACKING_VERSION = 4
"""Runs: ``stacking``, and what all learners share in ``models``. A learner has a number of its own besides
(:attr:`showerstack.models.base.spec.LearnerSpec.version`)."""
