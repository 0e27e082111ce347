"""Small problems and learners of the stacking tests, for runs that are disturbed."""

from tests.features.conftest import draw, drawn, write
from tests.stacking.conftest import fakes, two_gaussians

__all__ = ["draw", "drawn", "fakes", "two_gaussians", "write"]
