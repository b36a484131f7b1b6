"""Is this a constant? Three questions, and in which cases they differ."""

import onnx_ir as ir
import pytest

from amp_transpiler.graph.constness import constant_array, constant_of, constant_tensor, initial_tensor, is_pow_of_two
from tests.support import array, parse

CONSTANTS = parse(
    """(float[2] x, float[2] given) => (float[2] y) {
        made = Constant <value = float[2] {1, 2}> () number = Constant <value_float = 3.0> ()
        numbers = Constant <value_ints = [4, 5]> () copied = Identity (w) twice = Identity (copied)
        copy_of_given = Identity (given) foreign = local.Constant <value = float[2] {1, 2}> ()
        cast = Cast <to = 10> (w) a = Add (x, made) y = Add (a, copied)
    }""",
    imports=', "local": 1',
    w=array(2),
    given=array(2),
)
#                  constant_of  constant_tensor  initial_tensor
ANSWERS = {
    "w":             (True,  True,  True),
    "made":          (True,  True,  True),
    "number":        (False, True,  True),
    "numbers":       (False, True,  True),
    "copied":        (False, True,  True),
    "twice":         (False, True,  True),
    "given":         (False, False, True),
    "copy_of_given": (False, False, False),
    "foreign":       (False, False, False),
    "cast":          (False, False, False),
    "x":             (False, False, False),
    "a":             (False, False, False),
}  # fmt: skip


def value(name):
    graph = ir.from_proto(CONSTANTS).graph
    values = {value.name: value for node in graph for value in node.outputs}
    values |= {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    return values[name]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_three_questions(name):
    asked = value(name)
    answers = tuple(question(asked) is not None for question in (constant_of, constant_tensor, initial_tensor))
    assert answers == ANSWERS[name]
    assert (constant_array(asked) is not None) == answers[1]


def test_numbers_come_with_their_shape():
    assert constant_array(value("number")).shape == ()
    assert constant_array(value("numbers")).tolist() == [4, 5]


@pytest.mark.parametrize("question", [constant_of, constant_tensor, constant_array, initial_tensor])
def test_nothing_is_no_constant(question):
    assert question(None) is None


SQUARES = {
    "y = Pow (x, two)": True,
    "y = Pow (x, three)": False,
    "y = Pow (x, x)": False,
    "y = Mul (x, two)": False,
    "y = local.Pow (x, two)": False,
}


@pytest.mark.parametrize("call", SQUARES)
def test_pow_of_two(call):
    text = f"(float[2] x) => (float[2] y) <float two = {{2}}, float three = {{3}}> {{ {call} }}"
    (node,) = ir.from_proto(parse(text, imports=', "local": 1')).graph
    assert is_pow_of_two(node) == SQUARES[call]
