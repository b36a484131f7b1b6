"""Operators whose results do not change with their inputs, or only in jumps."""

from __future__ import annotations

from amp_transpiler.autodiff.registry import no_gradient

# Truth values.
no_gradient(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not"])
no_gradient(["IsInf", "IsNaN"])
# Integers.
no_gradient(["ArgMax", "ArgMin", "Shape", "Size"])
no_gradient(["BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"])
# Steps.
no_gradient(["Ceil", "Floor", "Hardmax", "Round", "Sign"])
# Only the shape or the element type of the input matters.
no_gradient(["ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike"])
# Draws.
no_gradient(["Bernoulli", "Multinomial"])
