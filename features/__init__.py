"""From grids and reconstructed scalars to named physical quantities."""
