"""Small problems and learners of the stacking tests, for runs that are disturbed."""

from tests.stacking.conftest import fakes, two_gaussians

__all__ = ["fakes", "two_gaussians"]
