"""Base learners behind one small interface: trees, networks, the pretrained network, their catalogue, ONNX."""
