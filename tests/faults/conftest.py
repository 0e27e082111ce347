"""Small problems and learners of the stacking tests, for runs that are disturbed."""

from tests.analysis.conftest import composition_sky
from tests.features.conftest import draw, drawn, write
from tests.stacking.conftest import fakes, two_gaussians

__all__ = ["composition_sky", "draw", "drawn", "fakes", "two_gaussians", "write"]
