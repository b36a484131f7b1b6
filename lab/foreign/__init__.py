"""Training steps that this project did not make: written by hand, from torch, and models that only look like one."""
