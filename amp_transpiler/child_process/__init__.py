"""Runs ONNX Runtime in a separate process: starts it, asks it for sessions and runs, lets values stay in it."""
