"""ONNX programs: loading and saving, walking every scope, names, types, and the verifier that checks them."""
