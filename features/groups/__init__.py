"""Feature groups: one file a group, which declares its columns and computes them."""
