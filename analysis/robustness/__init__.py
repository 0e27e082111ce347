"""Robustness: trained in one simulated world or on one hadronic model, tested in others."""
