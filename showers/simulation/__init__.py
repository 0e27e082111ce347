"""A fast parametric generator of KASCADE-like air showers: spectrum, cascade, detector, trigger, reconstruction."""

from showerstack.showers.simulation.datasets import simulate
from showerstack.showers.simulation.settings import Settings, load_settings

__all__ = ["Settings", "load_settings", "simulate"]
