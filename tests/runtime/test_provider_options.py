"""Options of the CUDA provider and CUDA graphs: the table, what a program allows, and what is refused on a CPU."""

from __future__ import annotations

import collections
from typing import ClassVar

import numpy as np
import onnx.parser
import pytest
from amp_transpiler.static import Executor, Program, data, program_guard

from amp_transpiler import Session
from amp_transpiler.errors import EnvironmentProblem, InputError, OptionError
from amp_transpiler.files.loading import load
from amp_transpiler.paddle.nn import functional
from amp_transpiler.runtime import opening
from amp_transpiler.runtime.cuda_graphs import obstacle
from amp_transpiler.runtime.places import CPUPlace, CUDAPlace
from amp_transpiler.runtime.provider_options import (
    CUDA_OPTIONS,
    REFUSED_OPTIONS,
    OptionsInUse,
    cuda_options,
    refuse_options,
)


def model(body):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {body}')


FIXED = "g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"


def test_each_use_has_one_value_of_an_option():
    rows = collections.Counter((row.name, use) for row in CUDA_OPTIONS for use in row.uses)
    assert set(rows.values()) == {1}
    assert all(row.why and row.evidence.seen for row in CUDA_OPTIONS)
    assert not {row.name for row in CUDA_OPTIONS} & {row.name for row in REFUSED_OPTIONS}


FIXED_AND_FREE, STEP = ("fixed", "free"), ("step",)


@pytest.mark.parametrize(
    ("options", "uses", "said"),
    [
        ({"fuse_conv_bias": "1"}, FIXED_AND_FREE, "wrong from the second run on; leave it out"),
        ({"fuse_conv_bias": "True"}, STEP, "wrong from the second run on; leave it out"),
        ({"prefer_nhwc": "1"}, STEP, "transposed ones move to the CPU; leave it out in training"),
        ({"prefer_nhwc": "1"}, FIXED_AND_FREE, "give layout='nhwc'"),
        ({"fuse_conv_bias": "0", "prefer_nhwc": "false", "use_tf32": "0"}, STEP, ""),
    ],
)
def test_options_that_compute_something_wrong_are_refused(options, uses, said):
    if said:
        with pytest.raises(OptionError, match=said):
            refuse_options(options, uses)
    else:
        refuse_options(options, uses)


@pytest.mark.parametrize("options", [{"fuse_conv_bias": "1"}, {"prefer_nhwc": "1"}])
def test_neither_a_session_nor_an_executor_takes_them(options):
    with pytest.raises(OptionError, match="is refused"):
        opening.wish_for(model(FIXED), CUDAPlace(0), options, None)
    with pytest.raises(OptionError, match="is refused"):
        Executor(CUDAPlace(0), provider_options=options)


def test_a_layout_is_an_option_of_a_session():
    wish = opening.wish_for(model(FIXED), CUDAPlace(0), {}, None, "nhwc")
    assert wish.options == {**cuda_options("fixed"), "prefer_nhwc": "1"}
    with pytest.raises(OptionError, match="layout is 'hwcn': expected 'nchw' or 'nhwc'"):
        opening.wish_for(model(FIXED), CUDAPlace(0), {}, None, "hwcn")
    with pytest.raises(EnvironmentProblem, match="layout='nhwc' is for ONNX Runtime's CUDA provider"):
        Session(model(FIXED), CPUPlace(), layout="nhwc")


def test_what_is_set_is_shown_with_its_reason():
    options = {**cuda_options("free"), "use_tf32": "0", "prefer_nhwc": "1", "tunable_op_enable": "0"}
    in_use = OptionsInUse(options, given={"use_tf32": "0"}, use="free", layout="nhwc")
    assert in_use == options
    assert set(in_use.why) == {*cuda_options("free"), "prefer_nhwc"}
    assert "use_tf32=0: given by the caller" in str(in_use)
    assert "NVIDIA H100" in in_use.why["cudnn_conv_algo_search"]
    assert str(OptionsInUse({})) == "no options"


OTHER_LAYOUTS = {
    "right": (lambda run, value: value * 1.001, False),
    "wrong from the second run on": (lambda run, value: value + (run > 1), True),
    "off by 5 %": (lambda run, value: value * 1.05, True),
    "not a number": (lambda run, value: value * np.nan, True),
    "of another shape": (lambda run, value: value[:1], True),
}


@pytest.mark.parametrize("name", OTHER_LAYOUTS)
def test_another_layout_is_compared_before_its_first_results(name):
    fault, wrong = OTHER_LAYOUTS[name]
    session, usual, runs = Session(model(FIXED), CPUPlace()), Session(model(FIXED), CPUPlace()), []
    plain = session._run

    def run(values, names):
        runs.append(values["x"].tolist())
        return [fault(len(runs), value) for value in plain(values, names)]

    session._run, session._in_default_layout = run, lambda: usual._session
    feeds = {"x": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}
    if wrong:
        for _ in range(2):
            with pytest.raises(EnvironmentProblem, match=r"with layout='nhwc' output 'y' differs by .* second run"):
                session.run(feeds)
    else:
        session.run(feeds)
        assert runs == [[[3, 1, 2], [6, 4, 5]], [[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 6]]]
        session.run(feeds)
        assert len(runs) == 4, "it is compared once"


@pytest.mark.parametrize(
    ("use", "arena"), [("fixed", "kSameAsRequested"), ("free", None), ("step", "kSameAsRequested")]
)
def test_options_follow_from_the_use(use, arena):
    options = cuda_options(use)
    assert (options.get("arena_extend_strategy"), options["cudnn_conv_algo_search"]) == (arena, "EXHAUSTIVE")
    assert options["use_tf32"] == "1"
    assert "fuse_conv_bias" not in options, "it makes float16 convolutions fail and float32 ones wrong"


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
    reason = obstacle(load(model(body)))
    assert reason.startswith(why)
    assert bool(reason) == bool(why)


@pytest.mark.parametrize("asked", [{"provider_options": {"use_tf32": "0"}}, {"cuda_graph": True}])
def test_on_a_cpu_options_of_cuda_are_refused(asked):
    with pytest.raises(EnvironmentProblem, match="is for ONNX Runtime's CUDA provider, but this runs on CPU"):
        Session(model(FIXED), CPUPlace(), **asked)


@pytest.mark.parametrize(
    ("place", "options", "error", "message"),
    [
        (CPUPlace(), {"use_tf32": "0"}, EnvironmentProblem, "provider_options is for .* but this runs on CPU"),
        (
            CUDAPlace(0),
            {"enable_cuda_graph": "1"},
            OptionError,
            "the executor's to set: give cuda_graph=True",
        ),
        (CUDAPlace(0), {"device_id": "1"}, OptionError, r"device_id is the executor's to set: give the place"),
        (CUDAPlace(0), {"user_compute_stream": "7"}, OptionError, "user_compute_stream is the executor's to set"),
    ],
)
def test_an_executor_refuses_options_that_it_cannot_have(place, options, error, message):
    with pytest.raises(error, match=message):
        Executor(place, provider_options=options)


class _Noting(CPUPlace):
    """A CPU that takes provider options, and keeps those of each session that is opened."""

    has_provider_options = True
    opened: ClassVar[list[dict[str, str]]] = []

    def options_for(self, use):
        return cuda_options(use)

    def open_session(self, model, settings):
        self.opened.append(dict(settings.provider_options))
        if "nonsense" in self.opened[-1]:
            raise RuntimeError("Unknown provider option: nonsense")
        return super().open_session(model, settings)


def program():
    main = Program()
    with program_guard(main, Program()):
        y = functional.relu(data("x", [2]))
    return main, y


def test_an_executor_s_options_go_over_those_of_the_table():
    main, y = program()
    with Executor(_Noting(), provider_options={"use_tf32": 0}) as executor:
        assert executor.run(main, {"x": np.array([-1, 2], np.float32)}, [y])[0].tolist() == [0, 2]
    assert _Noting.opened.pop() == {**cuda_options("step"), "use_tf32": "0"}


def test_an_option_that_the_provider_does_not_know_is_named():
    main, y = program()
    with (
        Executor(_Noting(), provider_options={"nonsense": "1"}) as executor,
        pytest.raises(EnvironmentProblem, match=r"refuses an option: .*nonsense"),
    ):
        executor.run(main, {"x": np.array([-1, 2], np.float32)}, [y])


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
