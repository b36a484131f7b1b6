"""`LBFGS`, which is refused."""

from amp_transpiler.paddle.framework.refusals import refusal

__all__ = ["LBFGS"]

LBFGS = refusal("optimizer.LBFGS", "it runs the loss several times a step, by a Python function. Use Adam or Rprop")
