"""ExLM for other libraries: scikit-learn and ONNX."""
