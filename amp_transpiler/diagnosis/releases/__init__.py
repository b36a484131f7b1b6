"""Tells what changes for a model between two releases of ONNX Runtime: by the tables, and by running both."""
