"""What is fast, what is accurate, against others: each script prints its comparison from one run."""
