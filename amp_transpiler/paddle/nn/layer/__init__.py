"""Hands out layers as objects: `nn.Layer` and its subclasses."""
