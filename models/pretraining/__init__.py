"""A shower network trained once on simulated showers from randomised worlds, and its weights."""

SHOWERS_SEEN = 30_700_000
"""Simulated showers that the released weights have learned from, in both steps of pretraining."""
