"""Reverse-mode automatic differentiation of ONNX graphs into plain ONNX operators."""

from amp_transpiler.autodiff.driver import differentiate, expand_gradients
from amp_transpiler.autodiff.rules import find_rule, registered

__all__ = ["differentiate", "expand_gradients", "find_rule", "registered"]
