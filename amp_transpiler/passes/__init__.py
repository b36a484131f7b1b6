"""Passes that edit programs, one a file, each carrying out a decision made elsewhere; `manager` runs them."""

from amp_transpiler.passes.manager import Pass, PassManager, PassResult, run_pass

__all__ = ["Pass", "PassManager", "PassResult", "run_pass"]
