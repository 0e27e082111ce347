"""What an event is and where events come from: schema, dataset folders, cuts, array geometry, simulation."""

import os

# SciPy's special functions accept CuPy and torch arrays only if this is set before SciPy is first imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
