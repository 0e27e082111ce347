"""What is said of a machine and of folders."""
