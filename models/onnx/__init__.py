"""Fitted learners as ONNX graphs, which other programs run without this package."""
