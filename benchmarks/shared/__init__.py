"""Simulated showers that several benchmarks use."""
