"""How often faults are tried: a sample in every run of the tests, the full number in those marked ``faults``."""

from __future__ import annotations

import pytest


def rounds(sample: int, full: int) -> pytest.MarkDecorator:
    """Return a parametrization of ``n``: ``sample`` by default, ``full`` with ``pytest -m faults``."""
    return pytest.mark.parametrize("n", [sample, pytest.param(full, marks=pytest.mark.faults)])
