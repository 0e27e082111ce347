"""The report's pictures, in one style."""
