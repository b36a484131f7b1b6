"""Regions: marking by pattern in every scope, nesting, and the context managers."""

import contextlib
import functools
import types

import onnx.parser
import onnx_ir as ir
import pytest

from amp_transpiler.errors import OptionError
from amp_transpiler.graph.regions import (
    DISABLE_AMP,
    FP16_GUARD,
    REGION_KEY,
    current_region,
    disable_amp,
    fp16_guard,
    inside_region_of,
    is_guarded,
    mark_region,
    outside_regions,
    region_of,
)

TEXT = """<ir_version: 10, opset_import: ["": 21, "local": 1]>
g (float[4] x, bool c) => (float[4] y) {
    [encoder_1] a = Relu(x)
    hidden_out = Tanh(a)
    [branch] b = If(c) <
        then_branch = t () => (float[4] p) { [inner_then] p = Exp(a) },
        else_branch = e () => (float[4] q) { [encoder_2] r = Exp(a) q = Log(r) }
    >
    [called] y = local.twice(b)
}
<domain: "local", opset_import: ["": 21]>
twice (u) => (v) { [in_function] v = Add(u, u) }
"""


def proto():
    return onnx.parser.parse_model(TEXT)


def regions(model):
    nodes = [*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f.all_nodes())]
    marked = {node.name or node.outputs[0].name: node.metadata_props.get(REGION_KEY) for node in nodes}
    return {name: region for name, region in marked.items() if region}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("encoder_1", {"encoder_1"}),
        ("encoder", {"encoder_1", "encoder_2"}),
        ("^encoder_[0-9]$", {"encoder_1", "encoder_2"}),
        ("hidden", {"hidden_out"}),  # an unnamed node goes by its output
        ("^a$", None),  # a named one does not
        ("branch", {"branch", "inner_then", "encoder_2", "q"}),  # control flow takes its bodies along
        ("in_function", {"in_function"}),
        (".", {"encoder_1", "hidden_out", "branch", "inner_then", "encoder_2", "q", "called", "in_function"}),
    ],
)
def test_marking_reaches_every_scope(pattern, expected):
    edited = proto()
    model = ir.from_proto(proto())
    if expected is None:
        with pytest.raises(OptionError, match="matches no node"):
            mark_region(model, "fp16_guard", nodes=pattern)
        return
    assert mark_region(model, "fp16_guard", nodes=pattern) == len(expected)
    assert regions(model).keys() == expected
    assert mark_region(edited, "fp16_guard", nodes=pattern) == len(expected)
    assert regions(ir.from_proto(edited)) == regions(model)


def test_a_program_is_accepted():
    program = types.SimpleNamespace(model=ir.from_proto(proto()))
    assert mark_region(program, "disable_amp", nodes="called") == 1
    assert region_of(program.model.graph[-1]) == {DISABLE_AMP}


def test_marks_survive_a_file(tmp_path):
    model = ir.from_proto(proto())
    mark_region(model, "fp16_guard", nodes="encoder_2")
    ir.save(model, tmp_path / "marked.onnx")
    assert regions(ir.load(tmp_path / "marked.onnx")) == {"encoder_2": "fp16_guard"}


@pytest.mark.parametrize(
    ("kinds", "text", "guarded"),
    [
        ([], None, False),
        ([FP16_GUARD], "fp16_guard", True),
        ([FP16_GUARD, FP16_GUARD], "fp16_guard", True),
        ([DISABLE_AMP], "disable_amp", False),
        ([FP16_GUARD, DISABLE_AMP], "fp16_guard;disable_amp", False),
        ([DISABLE_AMP, FP16_GUARD], "disable_amp;fp16_guard", False),
    ],
)
def test_nesting(kinds, text, guarded):
    model = ir.from_proto(proto())
    for kind in kinds:
        mark_region(model, kind, nodes="encoder_1")
    node = model.graph[0]
    assert node.metadata_props.get(REGION_KEY) == text
    assert region_of(node) == set(kinds)
    assert is_guarded(node) is guarded


@pytest.mark.parametrize(
    ("kind", "pattern", "message"),
    [
        ("fp16_gard", "encoder", r"fp16_gard.*fp16_guard.*disable_amp"),
        ("fp16_guard", "encoder[", "not a regular expression"),
        ("fp16_guard", "encodr_1$", r"matches no node.*encoder_1"),
        ("disable_amp", "zzzzzz", "matches no node; nodes are named like"),
    ],
)
@pytest.mark.parametrize("as_proto", [False, True])
def test_mistakes_are_named(kind, pattern, message, as_proto):
    model = proto() if as_proto else ir.from_proto(proto())
    with pytest.raises(OptionError, match=message):
        mark_region(model, kind, nodes=pattern)


def test_context_managers_nest():
    assert current_region() == ""
    with fp16_guard():
        assert current_region() == "fp16_guard"
        with disable_amp(), fp16_guard():
            assert current_region() == "fp16_guard;disable_amp;fp16_guard"
        assert current_region() == "fp16_guard"
    assert current_region() == ""


def test_a_region_ends_with_an_exception():
    with pytest.raises(KeyError), disable_amp():
        raise KeyError
    assert current_region() == ""


@pytest.mark.parametrize("decorator", [fp16_guard, fp16_guard()], ids=["bare", "called"])
def test_decorators_enter_anew_for_each_call(decorator):
    @decorator
    def build(depth):
        """Build."""
        return current_region() if depth == 0 else build(depth - 1)

    assert build(0) == "fp16_guard"
    assert build(1) == "fp16_guard;fp16_guard"
    assert current_region() == ""
    assert (build.__name__, build.__doc__) == ("build", "Build.")


@pytest.mark.parametrize("decorator", [disable_amp, disable_amp()], ids=["bare", "called"])
def test_a_decorated_function_is_out_of_amp(decorator):
    assert decorator(current_region)() == "disable_amp"


async def coroutine():
    return 1


def generator():
    yield 1


async def asynchronous_generator():
    yield 1


class CalledLater:
    async def __call__(self):
        return 1


NO_FUNCTIONS = {
    "a word": ("conv", "decorates a function, got 'conv'"),
    "a number": (3, "decorates a function, got 3"),
    "a class method that is not bound": (classmethod(current_region), "decorates a function"),
    "a coroutine function": (coroutine, "the code of a coroutine function"),
    "a generator function": (generator, "the code of a generator function"),
    "an asynchronous generator function": (asynchronous_generator, "the code of an asynchronous generator function"),
    "a partial one": (functools.partial(generator), "the code of a generator function"),
    "an object with a coroutine": (CalledLater(), "the code of a coroutine function"),
    "a method": (CalledLater().__call__, "the code of a coroutine function"),
}


@pytest.mark.parametrize("called", [False, True], ids=["bare", "called"])
@pytest.mark.parametrize("region", [disable_amp, fp16_guard], ids=["disable_amp", "fp16_guard"])
@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_what_a_region_would_not_be_around_is_refused(name, region, called):
    wrong, words = NO_FUNCTIONS[name]
    with pytest.raises(TypeError, match=rf"@{region.__name__}.*{words}.*with amp_transpiler.{region.__name__}\(\):"):
        region()(wrong) if called else region(wrong)


class Callable:
    def __call__(self):
        return current_region()


@pytest.mark.parametrize(
    "function",
    [current_region, Callable(), functools.partial(current_region), lambda: str(current_region()), len],
    ids=["function", "object", "partial", "lambda", "builtin"],
)
def test_whatever_runs_when_it_is_called_can_be_decorated(function):
    decorated = disable_amp(function)
    assert decorated() == "disable_amp" if function is not len else decorated("ab") == 2
    assert current_region() == ""


def test_a_generator_may_enter_a_region_inside():
    def build():
        with disable_amp():
            yield current_region()

    assert list(build()) == ["disable_amp"]
    assert current_region() == ""


def test_one_region_can_be_entered_again():
    region = fp16_guard()
    with region, region:
        assert current_region() == "fp16_guard;fp16_guard"
    assert current_region() == ""


@pytest.mark.parametrize(
    ("outer", "kinds", "expected"),
    [
        ([], [], ""),
        ([], [""], ""),
        ([], ["disable_amp"], "disable_amp"),
        ([], ["fp16_guard;disable_amp"], "fp16_guard;disable_amp"),
        ([], ["fp16_guard;disable_amp", "disable_amp"], "disable_amp"),
        ([], ["fp16_guard", ""], ""),
        ([fp16_guard], [""], "fp16_guard"),
        ([fp16_guard], ["disable_amp"], "fp16_guard;disable_amp"),
        ([disable_amp], ["disable_amp"], "disable_amp"),
    ],
)
def test_the_region_of_nodes_is_entered_on_top_of_what_is_there(outer, kinds, expected):
    nodes = [ir.Node("", "Relu", [], metadata_props={REGION_KEY: kind} if kind else {}) for kind in kinds]
    with contextlib.ExitStack() as stack:
        for region in outer:
            stack.enter_context(region())
        with inside_region_of(*nodes):
            assert current_region() == expected
        with outside_regions():
            assert current_region() == ""
    assert current_region() == ""
