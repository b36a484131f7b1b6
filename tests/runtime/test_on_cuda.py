"""What only a CUDA device shows, on stand-ins for CUDA's libraries: reading values back, memory, queued steps.

Nothing computes there, but copies copy, and every byte that is taken from the device and every wait is counted.
"""

from __future__ import annotations

import pathlib
import textwrap

import pytest

from tests.counted import Counted

pytestmark = pytest.mark.slow  # each test starts a child

PROGRAM = pathlib.Path(__file__).with_name("cuda_program.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What `cuda_program.py` tells, run once for all tests of this file."""
    return Counted(tmp_path_factory.mktemp("told")).program(PROGRAM)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "float8_e4m3fn"])
def test_a_value_on_the_device_is_read_back_as_it_was(told, dtype):
    assert told["read_back"][dtype] == [True, True, "cuda", 0]


@pytest.mark.parametrize(
    ("of", "dtype"),
    [
        ("fetched", "bfloat16"),
        ("in the scope", "bfloat16"),
        ("test program", "float32"),  # it was cloned before the parameter became low, so the value is converted
        ("saved", "bfloat16"),
        ("inference model", "float32"),
    ],
)
def test_bfloat16_comes_back_from_the_device(told, of, dtype):
    assert told["bfloat16"][of] == dtype


def test_a_scope_trained_on_cuda_goes_on_on_the_cpu(told):
    assert told["cpu_after_cuda"] == ["cpu", True]


def test_a_hundred_shapes_take_less_than_twice_the_memory_of_the_largest(told):
    assert 0 < told["hundred"] <= 2 * told["largest"]


def test_closing_gives_all_memory_back(told):
    assert told["held"] > 0
    assert told["closed"] <= told["before"]


def test_a_step_waits_for_no_other_until_something_is_read(told):
    # The one wait is for the copy of the feeds of the step before the last, whose main memory is written again.
    assert (told["queued"]["syncs"], told["fetched"]["syncs"]) == (1, 2)
    assert told["queued"]["HtoD"] == told["fed_bytes"]


def test_feeds_are_copied_beside_the_step_before(told):
    # The step waits for its feeds' copies, and these for the step that read the same buffers before.
    assert told["queued"]["api"]["cudaEventRecord"] == 2
    assert told["queued"]["api"]["cudaStreamWaitEvent"] == 2


def test_a_step_becomes_two_graphs_that_take_turns(told):
    steps = told["graphs"]["steps"]
    plain = steps[0][0]
    assert plain > 10
    assert [graphs for _, graphs, _ in steps] == [0, 0, 1, 1, 1, 1]
    assert [count for count, _, _ in steps] == [plain, plain, steps[2][0], steps[2][0], 0, 0]
    assert steps[2][0] > 0  # the captures
    assert steps[5][2] == 1  # the wait for the feeds of the step before the last
    assert told["graphs"]["HtoD"] == told["fed_bytes"]
    assert told["graphs"]["device"] == "cuda"


def test_an_executor_s_provider_options_reach_the_provider(told):
    options = told["options"]["use_tf32"]
    assert (options["use_tf32"], options["cudnn_conv_algo_search"]) == ("0", "EXHAUSTIVE")
    assert options["user_compute_stream"] != "0"  # the executors' own
    assert "CUDA:0 refuses an option" in told["options"]["nonsense"]
    assert "nonsense" in told["options"]["nonsense"]


def test_sessions_that_bring_an_allocator_share_none_and_wait(tmp_path):
    source = textwrap.dedent("""
        import json
        import launches  # noqa: F401
        from amp_transpiler.runtime.places import CUDAPlace
        place = CUDAPlace(0)
        print(json.dumps([place.problem(), place.queues_steps(), "user_compute_stream" in place.options_for("step")]))
    """)
    counted = Counted(tmp_path)
    assert counted.program(source) == [None, True, True]
    assert counted.program(source, exact_memory=True) == [None, False, False]
