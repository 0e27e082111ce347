"""A shower network trained once on simulated showers from randomised worlds, and its weights."""
