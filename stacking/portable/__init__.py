"""A finished run as ONNX files: every fit, and what combines their log-probabilities."""
