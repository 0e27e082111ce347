"""Base learners behind one small interface."""
