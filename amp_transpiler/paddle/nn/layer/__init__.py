"""Layers as objects: `nn.Layer` and its subclasses."""
