"""What any pass needs of ONNX: loading and saving, walking every scope, names, types, and the proof that they fit."""
