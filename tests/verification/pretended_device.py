"""A device that computes what the emulation says, but for a planted fault."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler.child_process.remote import open_program
from amp_transpiler.passes.emulate import emulate
from amp_transpiler.program.program import Program
from amp_transpiler.verification import check_file, default_device, device_check

NAME = "NVIDIA H100 80GB HBM3"

Fault = Callable[[int, dict[str, Any]], dict[str, Any]]
"""The number of a run, and its outputs -> what the device makes of them."""


def pretend(monkeypatch: pytest.MonkeyPatch, opener: Callable[..., Any]) -> None:
    """Have a device answer at CUDA:0, whose sessions `opener(path, place, form)` opens."""
    monkeypatch.setattr(default_device, "default_place_name", lambda: "CUDA:0")
    monkeypatch.setattr(default_device, "hardware_name", lambda _: NAME)
    monkeypatch.setattr(device_check, "_opened", opener)
    monkeypatch.setattr(device_check, "_source_fails", lambda *_: False)
    plain = check_file.check_load
    monkeypatch.setattr(check_file, "check_load", lambda path, program, _: plain(path, program, "CPU"))


class Planted:
    """A session with a fault."""

    def __init__(self, session: Any, fault: Fault) -> None:
        self._session, self._fault, self._runs = session, fault, 0
        self.inputs, self.outputs = session.inputs, session.outputs

    def run(self, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None) -> list[Any]:
        self._runs += 1
        names = [info.name for info in self.outputs]
        results = self._fault(self._runs, dict(zip(names, self._session.run(feeds), strict=True)))
        return [results[name] for name in fetch or names]


def with_fault(fault: Fault, form: str = "") -> Callable[..., Any]:
    """Return what opens sessions with a fault; those of other forms than `form`, if that is given, have none."""

    @contextlib.contextmanager
    def opened(path: Any, place: str, asked: str) -> Iterator[Planted]:
        assert place == "CUDA:0"
        with open_program(path) as session:
            yield Planted(session, fault if form in ("", asked) else lambda _, outputs: outputs)

    return opened


@contextlib.contextmanager
def stale_biases(path: Any, place: str, form: str) -> Iterator[StaleBiases]:
    """Open a file as `fuse_conv_bias=1` computes it on CUDA."""
    with StaleBiases(amp.load(path)) as session:
        yield session


class StaleBiases:
    """The fault of `fuse_conv_bias=1`: each convolution with a bias adds what its result's memory held before.

    In the first run that memory is cleared; from the second run on it holds the result of the run before.
    """

    def __init__(self, program: Program) -> None:
        program = emulate(program).clone()
        program.source = None
        self.memories = _expose_memories(program.model)
        self._stack = contextlib.ExitStack()
        self._session = self._stack.enter_context(open_program(program, emulate=False))
        self.inputs = tuple(info for info in self._session.inputs if info.name not in self.memories)
        self.outputs = tuple(info for info in self._session.outputs if info.name not in self.memories.values())
        self._held: dict[str, np.ndarray] = {}

    def __enter__(self) -> StaleBiases:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, feeds: Mapping[str, Any], fetch: Sequence[str] | None = None) -> list[Any]:
        cleared = {name: np.zeros([1], np.float32) for name in self.memories}
        names = [info.name for info in self._session.outputs]
        results = dict(zip(names, self._session.run({**feeds, **cleared, **self._held}), strict=True))
        self._held = {name: results[output] for name, output in self.memories.items()}
        return [results[name] for name in fetch or [info.name for info in self.outputs]]


def _expose_memories(model: ir.Model) -> dict[str, str]:
    """Have each convolution with a bias add an input; return that input -> the output that the next run is fed with."""
    memories = {}
    for index, node in enumerate([node for node in model.graph if node.op_type == "Conv" and len(node.inputs) > 2]):
        memory = ir.Value(name=f"memory_{index}", type=ir.TensorType(ir.DataType.FLOAT))
        result = node.outputs[0]
        spoiled = ir.node("Add", [result, memory], name=f"spoiled_{index}")
        spoiled.outputs[0].name, spoiled.outputs[0].type = f"spoiled_{index}", result.type
        spoiled.outputs[0].shape = result.shape
        result.replace_all_uses_with(spoiled.outputs[0], replace_graph_outputs=True)
        spoiled.replace_input_with(0, result)
        model.graph.insert_after(node, spoiled)
        model.graph.inputs.append(memory)
        model.graph.outputs.append(spoiled.outputs[0])
        memories[f"memory_{index}"] = f"spoiled_{index}"
    return memories
