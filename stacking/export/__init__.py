"""A run as ONNX files: ``writer`` makes them, ``exported`` reads them for :mod:`showerstack.stacking.prediction`."""
