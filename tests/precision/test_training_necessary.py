"""Models whose output has their input's shape: looking for a training step there takes little, and grows with nodes."""

import numpy as np
import pytest

from amp_transpiler.files.loading import load
from amp_transpiler.precision.training import find_training_step, holds_gradients
from tests.support import array, parse
from tests.work import counted_work

C, W = array(16, seed=1), array(16, 16, seed=2)
ONE = "(float[4,16] x) => (float[4,16] y)"
KINDS = {  # what is repeated; {} is the value before
    "two constants": (ONE, "MatMul ({}, w)|Add ({}, c)|Relu ({})|LayerNormalization ({}, c)|Mul ({}, c)|Exp ({})"),
    "products alone": (ONE, "MatMul ({}, w)"),
    "multiplications alone": (ONE, "Mul ({}, c)"),
    "the weight's shape, too": ("(float[16,16] x) => (float[16,16] y)", "MatMul ({}, w)|Mul ({}, c)"),
    "gates": (ONE, "Sigmoid ({})|Mul ({}, x)|MatMul ({}, w)"),
    "a second input": ("(float[4,16] x, float[4,16] t) => (float[4,16] y)", "Add ({}, t)|MatMul ({}, w)|Mul ({}, c)"),
    "a weight that is fed": ("(float[16,16] x, float[16,16] f) => (float[16,16] y)", "MatMul ({}, f)|Relu ({})"),
    "means": (ONE, "ReduceMean <keepdims = 1> ({}, axis)|Sub (x, {})|MatMul ({}, w)"),
}


def repeated(signature, text, count):
    calls, names = text.split("|"), ["x", *(f"v{index}" for index in range(count - 1)), "y"]
    lines = (f"{names[i + 1]} = {calls[i % len(calls)].format(names[i])}" for i in range(count))
    return load(parse(f"{signature} {{ {' '.join(lines)} }}", w=W, c=C, axis=np.int64([1])))


def calls_for(signature, text, count):
    program = repeated(signature, text, count)
    with counted_work() as work:
        assert find_training_step(program.model) is None
        assert not holds_gradients(program.model)
    return work.calls


@pytest.mark.parametrize("name", KINDS)
def test_looking_for_a_training_step_grows_no_faster_than_the_graph(name):
    few, many = (calls_for(*KINDS[name], count) for count in (60, 480))
    assert many <= 8.8 * few + 500


def test_a_graph_of_one_input_costs_next_to_nothing():
    assert calls_for(*KINDS["two constants"], 240) < 20 * 240
