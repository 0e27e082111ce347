"""Task cards: the benchmark as a folder that other people's evaluation of agents and models can take."""
