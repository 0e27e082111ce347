"""What a run will cost on this machine, and how it is kept within a limit of time."""
