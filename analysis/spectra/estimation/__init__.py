"""From events to numbers, fluxes and fractions with their errors, and how well the model fits."""
