"""The commands of ``cli.py``: each parses its arguments, calls one function of a package and prints the result."""
