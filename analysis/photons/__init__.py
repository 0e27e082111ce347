"""Searches for photons: candidates, background, and limits on their fraction and flux."""
