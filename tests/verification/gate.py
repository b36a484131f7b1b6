"""Faults for the tests of the gate, each planted outside of the code that is to find it.

A pass writes a bad program, ONNX's checker or the operating system answers with an error, or the child process that
runs ONNX Runtime gives another answer. Nothing of the package's own judgement is replaced. A fault concerns models
whose graph is named `bad`, so that others in the same run are as they should be.
"""

import errno
import os
import pathlib

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler import conversion
from amp_transpiler.child_process.child import Child, RuntimeCrash
from amp_transpiler.passes.manager import Pass, PassResult
from amp_transpiler.runtime.ort import ORT_ERRORS

__all__ = ["FAULTS", "NO_KERNEL", "OS_FAULTS", "REFUSAL", "SESSION_FAULTS", "a_pass_that", "a_session_that"]

_REFUSAL = next(kind for kind in ORT_ERRORS if kind.__name__ == "Fail")


# ---- a pass that writes a bad program ----


def a_pass_that(edit):
    """The fault that the last pass of a conversion edits the program of a bad model."""

    class Spoils(Pass[PassResult]):
        def call(self, model):
            if model.graph.name == "bad":
                edit(model)
            return PassResult(model, modified=model.graph.name == "bad")

    def plant(monkeypatch):
        plain = conversion._finishing_passes
        monkeypatch.setattr(conversion, "_finishing_passes", lambda *about: [*plain(*about), Spoils()])

    return plant


def _node(model, op_type):
    return next(node for node in model.graph if node.op_type == op_type)


def declares_a_wrong_shape(model):
    """ONNX Runtime only warns of it, and the types are right: it is for onnx.checker to find."""
    model.graph.outputs[0].shape = ir.Shape([3, 5])


def leaves_out_a_cast(model):
    """A product of float32 and float16: onnx.checker finds it too, but later and without the pass's name."""
    _node(model, "MatMul").replace_input_with(0, model.graph.inputs[0])


def negates(model):
    _node(model, "Relu").op_type = "Neg"


def takes_a_logarithm(model):
    """Of negative numbers too."""
    _node(model, "Relu").op_type = "Log"


def writes_an_unknown_attribute(model):
    """onnx.checker looks at no operator of ONNX Runtime's."""
    _node(model, "QuickGelu").attributes["nonsense"] = ir.AttrInt64("nonsense", 1)


# ---- another answer of the child process ----


def _kind(model, settings):
    """What a session is for: the file that was written or the source, each opened in two ways, or the emulation."""
    if isinstance(model, str) and ".amp-transpiler-" in model:
        return "default" if settings is None else "load"
    if settings is None:  # a conversion in memory is judged as its file would be
        return "default" if _is_low(model) else "source by default"
    return "source" if settings.fuse else "emulated"


def _loaded(model):
    return onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)


def _graph_name(model):
    return _loaded(model).graph.name


def _is_low(model):
    graph, low = _loaded(model).graph, onnx.TensorProto.FLOAT16
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    return low in casts or any(tensor.data_type == low for tensor in graph.initializer)


def a_session_that(kind, *, opens=None, runs=None):
    """The fault that sessions of a kind raise when they open, or that `runs` makes something else of their outputs.

    Args:
        kind: `load`, `default`, `emulated`, `source` or `source by default`; a set of them.
        opens: what is raised.
        runs: a function of the outputs.
    """
    kinds = {kind} if isinstance(kind, str) else kind

    def plant(monkeypatch):
        plain, concerned = Child.ask, set()

        def ask(self, operation, *arguments, **options):
            hit = operation == "open" and _kind(*arguments[:2]) in kinds and _graph_name(arguments[0]) == "bad"
            if hit and opens is not None:
                raise opens
            answer = plain(self, operation, *arguments, **options)
            if hit:
                concerned.add((id(self), answer[0]))
            if runs is not None and operation == "run" and (id(self), arguments[0]) in concerned:
                return runs(answer)
            return answer

        monkeypatch.setattr(Child, "ask", ask)

    return plant


def _of_kind(kind, change):
    """Change the outputs of a kind, `f` for floats and `i` for integers."""
    return lambda outputs: [change(output) if output.dtype.kind == kind else output for output in outputs]


_larger = _of_kind("f", lambda output: output * output.dtype.type(1.5))
_overflowing = _of_kind("f", lambda output: np.full_like(output, np.inf))
_longer = _of_kind("f", lambda output: np.concatenate([output, output]))
_another_label = _of_kind("i", lambda output: np.where(np.arange(output.size) == 0, 3 - output, output))


def _raising(error):
    def run(outputs):
        raise error

    return run


REFUSAL = _REFUSAL("[ONNXRuntimeError] : 1 : FAIL : planted")
NO_KERNEL = _REFUSAL("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : planted")
CRASH = RuntimeCrash("SIGSEGV")


# ---- the operating system ----


def the_disk_is_full(monkeypatch):
    """After half of the model."""
    plain = onnx.save_model

    def save_model(proto, file, *arguments, **options):
        plain(proto, file, *arguments, **options)
        if proto.graph.name == "bad":
            path = pathlib.Path(file)
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(onnx, "save_model", save_model)


def _call_fails(function, number, concerns):
    def plant(monkeypatch):
        plain = getattr(os, function)

        def call(*arguments, **options):
            if concerns(*arguments):
                raise OSError(number, os.strerror(number))
            return plain(*arguments, **options)

        monkeypatch.setattr(os, function, call)

    return plant


def _moves_a_bad_model(source, target):
    path = pathlib.Path(target)
    return path.suffix == ".onnx" and "bad" in path.name


def _flushes_a_bad_model(handle):
    path = pathlib.Path(f"/proc/self/fd/{handle}")
    return not path.exists() or "bad" in path.readlink().name


# ---- the tables: fault -> (how it is planted, what the message says) ----

PASS_FAULTS = {
    "the checker refuses": (a_pass_that(declares_a_wrong_shape), "fails onnx.checker"),
    "the types are wrong": (a_pass_that(leaves_out_a_cast), "after Spoils: MatMul"),
    "the numbers are wrong": (a_pass_that(negates), "output 'y' differs by"),
    "values become non-finite": (a_pass_that(takes_a_logarithm), "non-finite values where float32 is finite"),
}
RUN_FAULTS = {
    "the file is refused": (a_session_that("load", opens=REFUSAL), "ONNX Runtime refuses the result"),
    "the file crashes": (a_session_that("load", opens=CRASH), "ONNX Runtime refuses the result"),
    "emulated, it computes something else": (a_session_that("emulated", runs=_larger), "output 'y' differs by"),
    "emulated, it overflows": (a_session_that("emulated", runs=_overflowing), "non-finite"),
    "emulated, a label is another": (
        a_session_that("emulated", runs=_another_label),
        "1 of 3 integers differ",
    ),
    "emulated, it has another shape": (a_session_that("emulated", runs=_longer), "another shape"),
}
SESSION_FAULTS = {
    "users' sessions crash": (a_session_that("default", opens=CRASH), "crashes on the written file"),
    "users' sessions refuse it": (a_session_that("default", opens=REFUSAL), "refuses the written file"),
    "users' sessions do not run it": (a_session_that("default", runs=_raising(REFUSAL)), "refuses the written file"),
    "users' sessions die of a run": (a_session_that("default", runs=_raising(CRASH)), "crashes on the written file"),
    "users' sessions compute something else": (
        a_session_that("default", runs=_larger),
        "computes something else than float32",
    ),
    "users' sessions overflow": (a_session_that("default", runs=_overflowing), "non-finite"),
    "users' sessions tell another label": (
        a_session_that("default", runs=_another_label),
        "1 of 3 integers differ",
    ),
    "users' sessions give another shape": (a_session_that("default", runs=_longer), "another shape"),
}
OS_FAULTS = {
    "the disk is full": (the_disk_is_full, "No space left on device"),
    "it cannot be moved": (_call_fails("replace", errno.EACCES, _moves_a_bad_model), "Permission denied"),
    "its place is busy": (_call_fails("replace", errno.EBUSY, _moves_a_bad_model), "Device or resource busy"),
    "its place may not be changed": (_call_fails("replace", errno.EPERM, _moves_a_bad_model), "not permitted"),
    "it cannot be flushed": (_call_fails("fsync", errno.EIO, _flushes_a_bad_model), "Input/output error"),
}
FAULTS = PASS_FAULTS | RUN_FAULTS | SESSION_FAULTS
