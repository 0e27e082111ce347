"""Stacking on tables of any origin: read, columns understood, trained, predicted."""
