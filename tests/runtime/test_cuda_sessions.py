"""Sessions on CUDA, on stand-ins for its libraries: options that pay, CUDA graphs, memory that is given back."""

from __future__ import annotations

import pathlib

import pytest

from amp_transpiler.runtime.provider_options import cuda_options
from tests.counted import Counted

pytestmark = pytest.mark.slow  # a child is started

PROGRAM = pathlib.Path(__file__).with_name("cuda_sessions.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What `cuda_sessions.py` tells, run once for all tests of this file."""
    return Counted(tmp_path_factory.mktemp("told")).program(PROGRAM)


@pytest.mark.parametrize("of", ["graph", "bfloat16"])
def test_a_run_of_fixed_shapes_is_one_launch(told, of):
    for way in ("run", "bound"):
        assert (told[of][way]["launches"], told[of][way]["graphs"]) == (0, 1)
    assert (told[of]["graph"], told[of]["why"]) == (True, "")
    assert told[of]["types"] == ["float32", "float16" if of == "graph" else "bfloat16"]


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ("none", "cuda_graph=False"),
        ("free", "input 'x' has no fixed shape, it is [N,4,8,8]"),
        ("cpu", "1 of its nodes run on the CPU: Det"),
    ],
)
def test_a_session_without_a_graph_says_why(told, of, why):
    assert (told[of]["graph"], told[of]["why"]) == (False, why)
    assert told[of]["run"]["launches"] > 0 == told[of]["run"]["graphs"]


@pytest.mark.parametrize("of", ["none", "free", "exact"])
def test_each_run_clears_as_much_memory_as_the_first(told, of):
    # With fuse_conv_bias=1 only the first run clears the memory that a convolution's bias is added to.
    assert told[of]["memsets"][0] == told[of]["memsets"][2]


def test_an_option_that_corrupts_later_runs_shows_in_the_memory_that_they_clear(told):
    first, second, third = told["fused"]["memsets"]
    assert first > second == third


@pytest.mark.parametrize(
    ("of", "name", "value"),
    [
        ("none", "fuse_conv_bias", "0"),
        ("none", "arena_extend_strategy", "kSameAsRequested"),
        ("none", "cudnn_conv_algo_search", "EXHAUSTIVE"),
        ("free", "arena_extend_strategy", "kNextPowerOfTwo"),
        ("free", "cudnn_conv_algo_search", "EXHAUSTIVE"),
        ("nhwc", "prefer_nhwc", "1"),
        ("none", "prefer_nhwc", "0"),
    ],
)
def test_the_options_arrive(told, of, name, value):
    assert told[of]["options"][name] == value


def test_a_session_says_what_is_set_and_why(told):
    assert set(told["none"]["set"]) == set(cuda_options("fixed"))
    assert "NVIDIA H100" in told["none"]["set"]["cudnn_conv_algo_search"]
    assert told["exact"]["set"]["use_tf32"] == "given by the caller"
    assert "layout='nhwc' was asked for (NVIDIA H100" in told["nhwc"]["set"]["prefer_nhwc"]


def test_tf32_is_said(told):
    assert (told["none"]["tf32"], told["exact"]["tf32"]) == (True, False)


@pytest.mark.parametrize("of", ["graph", "bfloat16", "none", "free", "cpu"])
def test_a_closed_session_leaves_no_memory(told, of):
    assert told[of]["left"] == 0


def test_a_second_thread_runs_without_the_graph(told):
    first, second = told["threads"]
    assert (first["launches"], first["graphs"]) == (0, 1)
    assert (second["launches"], second["graphs"]) == (5, 0)


def test_a_device_that_refuses_to_capture_runs_without(told):
    assert told["refused"] == [5, False, "operation not permitted when stream is capturing"]


def test_what_cannot_be_is_refused(told):
    assert "no graph is possible: 1 of its nodes run on the CPU: Det" in told["cpu must"]
    assert "EnvironmentProblem: CUDA:0 refuses an option" in told["unknown"]
    assert "OptionError: provider_options: fuse_conv_bias=1 is refused: float16 convolutions" in told["faulty"]
