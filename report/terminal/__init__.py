"""What is shown on the terminal: scores, comparisons, checks, the doctor."""
