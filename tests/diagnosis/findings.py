"""Findings that were not measured: a graph of three nodes, and the same numbers for each."""

import math

from amp_transpiler.child_process.differences import Difference, Measured
from amp_transpiler.diagnosis.joined import join
from amp_transpiler.diagnosis.pairs import pair
from amp_transpiler.diagnosis.suspects import Findings
from amp_transpiler.graph.dtypes import low_format
from tests.diagnosis.programs import converted, model_of, program_of

HEAD = "(float[2,4] x) => (float[2,4] y)"
GRAPH = HEAD + " { [a] h = MatMul (x, w) [b] i = Sigmoid (h) [c] y = MatMul (i, v) }"
ROUNDED = 4e-8  # the square of what rounding a result changes, in the findings of these tests


def findings_of(low=None, *, felt=ROUNDED, **facts):
    """Return findings that say the same of every result; `facts` are about the low node alone."""
    first, second = program_of(GRAPH), program_of(low or converted(model_of(GRAPH)))
    pairs = pair(first, second)
    triples = join(first, second, pairs).triples
    values = {value.name: value for node in first.model.graph for value in node.outputs}
    of_node = Difference(**{"square": 1e-8, "norm": 1.0, "count": 8, "nonzero": 8, **facts})
    rounding = math.inf if felt == math.inf else 1e-8
    measured = {triple.reference: Measured(rounding=rounding, low=of_node, own=of_node) for triple in triples}
    by_name = None if felt is None else dict.fromkeys(values, felt)
    return Findings(values, pairs, triples, measured, by_name, low_format("float16"))
