"""Operators whose outputs are constant, or piecewise constant, in their inputs."""

from __future__ import annotations

from amp_transpiler.autodiff.registry import no_gradient

# Truth values.
no_gradient(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not"])
no_gradient(["IsInf", "IsNaN"])
# Integers.
no_gradient(["ArgMax", "ArgMin", "NonZero", "Shape", "Size"])
no_gradient(["BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"])
# Steps.
no_gradient(["Ceil", "Floor", "Hardmax", "Round", "Sign"])
# Only the shape or the element type of the input matters.
no_gradient(["ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike"])
# Random draws.
no_gradient(["Bernoulli", "Multinomial"])
