"""Models for others: in scikit-learn, as ONNX files, and as a copy without the data."""
