"""ONNX Runtime in a process of its own: starting it, asking it for sessions and runs, values that stay in it."""
