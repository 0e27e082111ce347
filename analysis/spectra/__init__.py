"""Composition and energy spectra of measured events: fractions, fluxes, their errors, and fits of the knee."""
