"""A shower network trained once on simulated showers from randomised worlds, and its weights."""

SHOWERS_SEEN = {"shipped": 30_700_000, "any-array": 42_108_531}
"""Simulated showers that released weights have learned from, in all steps of pretraining, by their name."""
