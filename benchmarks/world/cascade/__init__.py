"""A one-dimensional Monte Carlo of hadronic cascades, and the coefficients that it gives the simulation.

``python -m benchmarks.world.cascade --model sibyll23d --depths 600,...,1033 --out coefficients.json`` makes the
coefficients of one hadronic model at several depths. It is resumed by starting it again.
"""
