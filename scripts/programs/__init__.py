"""Networks that are measured, as static programs and in PyTorch, of the same sizes."""
