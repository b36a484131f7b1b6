"""Options of the CUDA provider and CUDA graphs: the table, what a program allows, and what is refused on a CPU."""

from __future__ import annotations

import collections

import onnx.parser
import pytest

from amp_transpiler import Session
from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.graph.loading import load
from amp_transpiler.runtime import opening
from amp_transpiler.runtime.cuda_graphs import obstacle
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
from amp_transpiler.runtime.provider_options import CUDA_OPTIONS, cuda_options


def model(body):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {body}')


FIXED = "g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"


def test_each_use_has_one_value_of_an_option():
    rows = collections.Counter((row.name, use) for row in CUDA_OPTIONS for use in row.uses)
    assert set(rows.values()) == {1}
    assert all(row.why for row in CUDA_OPTIONS)


@pytest.mark.parametrize(
    ("use", "arena", "search"),
    [
        ("fixed", "kSameAsRequested", "EXHAUSTIVE"),
        ("free", "kNextPowerOfTwo", "HEURISTIC"),
        ("step", "kSameAsRequested", "HEURISTIC"),
    ],
)
def test_options_follow_from_the_use(use, arena, search):
    options = cuda_options(use)
    assert (options["arena_extend_strategy"], options["cudnn_conv_algo_search"]) == (arena, search)
    assert (options["fuse_conv_bias"], options["use_tf32"]) == ("1", "1")


IF = """g (bool x) => (float[1] y) { y = If(x) <
    then_branch = a () => (float[1] p) { p = Constant<value_floats = [1.0]>() },
    else_branch = b () => (float[1] q) { q = Constant<value_floats = [2.0]>() }> }"""
OBSTACLES = [
    (FIXED, ""),
    ("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }", "input 'x' has no fixed shape, it is [N,3]"),
    ("g (float x) => (float y) { y = Relu(x) }", ""),
    ("g (float[0] x) => (float[0] y) { y = Relu(x) }", "input 'x' has no fixed shape"),
    ("g (string[2] x) => (string[2] y) { y = Identity(x) }", "input 'x' is not a tensor of numbers"),
    ("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }", "output 'y' is not a tensor of numbers"),
    ("g (float[2] x) => (int64[1, n] y) { y = NonZero(x) }", "NonZero 'y': the size of its result depends on"),
    (
        "g (float[2] x) => (float[2] y) { r = RandomNormalLike(x) y = Add(r, x) }",
        "RandomNormalLike 'r': a graph would repeat its random numbers",
    ),
    (IF, "If 'y': the host decides what runs next"),
]


@pytest.mark.parametrize(("body", "why"), OBSTACLES, ids=[why or body for body, why in OBSTACLES])
def test_why_a_program_has_no_graph(body, why):
    found = obstacle(load(model(body)))
    assert found.startswith(why)
    assert bool(found) == bool(why)


@pytest.mark.parametrize("asked", [{"provider_options": {"use_tf32": "0"}}, {"cuda_graph": True}])
def test_on_a_cpu_options_of_cuda_are_refused(asked):
    with pytest.raises(EnvironmentProblem, match="is for ONNX Runtime's CUDA provider, but this runs on CPU"):
        Session(model(FIXED), CPUPlace(), **asked)


def test_a_cpu_session_has_no_options_and_no_graph():
    with Session(model(FIXED), CPUPlace(), cuda_graph=False) as session:
        assert (session.provider_options, session.no_cuda_graph) == ({}, "")
        assert not session.tf32
        assert not session.cuda_graph
    with pytest.raises(InputError, match="is closed"):
        session.run({})


@pytest.mark.parametrize(
    ("body", "options", "graph", "message"),
    [
        (FIXED, {"enable_cuda_graph": "0"}, True, "cuda_graph=True, but provider_options has enable_cuda_graph=False"),
        (FIXED, {"enable_cuda_graph": "1"}, False, "cuda_graph=False, but provider_options has enable_cuda_graph=True"),
        (OBSTACLES[1][0], {}, True, r"cuda_graph=True, but no graph is possible: input 'x' has no fixed shape"),
        (OBSTACLES[1][0], {"enable_cuda_graph": "1"}, None, "no graph is possible: input 'x'"),
    ],
)
def test_wishes_that_cannot_be_had_are_refused(body, options, graph, message):
    with pytest.raises(OptionError, match=message):
        opening.wish_for(model(body), CUDAPlace(0), options, graph)


@pytest.mark.parametrize(
    ("body", "options", "graph", "use_", "obstacle_"),
    [
        (FIXED, {"use_tf32": "0"}, None, "fixed", ""),
        (FIXED, {}, False, "fixed", "cuda_graph=False"),
        (OBSTACLES[1][0], {"cudnn_conv_algo_search": "DEFAULT"}, None, "free", OBSTACLES[1][1]),
    ],
)
def test_a_caller_s_options_replace_the_table_s(body, options, graph, use_, obstacle_):
    wish = opening.wish_for(model(body), CUDAPlace(0), options, graph)
    assert wish.options == {**cuda_options(use_), **options}
    assert wish.obstacle == obstacle_
