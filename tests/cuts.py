"""Helpers of tests about minimum cuts: prepared programs, and the casts that an assignment leaves in them."""

import dataclasses

import onnx_ir as ir

import amp_transpiler as amp
from amp_transpiler.conversion import fitted, prepare
from amp_transpiler.graph.dtypes import INTEGER_DTYPES, LOW_DTYPES
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.passes.apply_assignment import ApplyAssignment
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.choice import Request, choose_policy


def prepared(model, dtype="float16", **options):
    """Return a program that is ready to be decided about, with a policy of level auto and its look-up of constants."""
    program = amp.load(model)
    policy = dataclasses.replace(choose_policy(Request(level="auto", dtype=dtype)), **options)
    policy = fitted(policy, program)
    ranges = RangeFaults(policy.low, strict=True)
    prepare(program, policy, ranges)
    return program, policy, ranges


def casts_left(program, assignment):
    """Carry an assignment out; count the casts to float32 and the low format, of what can be either or an integer."""
    run_pass(ApplyAssignment(assignment), program.model)
    run_pass(CleanCasts(), program.model)
    results = {ir.DataType.FLOAT, assignment.low.dtype}
    sources = results | LOW_DTYPES | INTEGER_DTYPES
    casts = [node for node in all_nodes(program.model) if node.op_type == "Cast"]
    return sum(cast.outputs[0].dtype in results and cast.inputs[0].dtype in sources for cast in casts)
