"""A low program rewritten into what a device's kernels compute, so that its emulation rounds as the device does."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from amp_transpiler.cost.shapes import Sizes, sizes_of
from amp_transpiler.errors import ModelError
from amp_transpiler.graph.builder import GraphBuilder
from amp_transpiler.graph.checker import runtime_operators
from amp_transpiler.graph.dtypes import LOW_DTYPES, low_format
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.graph.walk import all_nodes, has_bodies
from amp_transpiler.ops.kinds import EXACT
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.convert_opset import ConvertOpset
from amp_transpiler.passes.device_arithmetic.activations import ACTIVATIONS
from amp_transpiler.passes.device_arithmetic.attention import ATTENTION
from amp_transpiler.passes.device_arithmetic.fusions import fuse_as_on_device
from amp_transpiler.passes.device_arithmetic.noise import DRAW, TF32, with_noise
from amp_transpiler.passes.device_arithmetic.norms import NORMS
from amp_transpiler.passes.device_arithmetic.products import PRODUCTS, RECURRENT, in_tf32, not_a_number_stays
from amp_transpiler.passes.device_arithmetic.steps import STEP, Rule, Steps
from amp_transpiler.passes.device_arithmetic.sums import SUMS
from amp_transpiler.passes.device_arithmetic.wide import computed_wide
from amp_transpiler.passes.device_arithmetic.write_out import write_out_functions
from amp_transpiler.passes.inline_functions import InlineFunctions
from amp_transpiler.passes.inserted_casts import rename_output
from amp_transpiler.passes.manager import Pass, PassManager, PassResult
from amp_transpiler.program.program import Program
from amp_transpiler.targets.arithmetic import CUDA_TABLE, EXACT_RESULT, UNMEASURED_NOISE, DeviceArithmetic, KernelRow
from amp_transpiler.targets.cuda import CUDA
from amp_transpiler.targets.kernel_conditions import ShapeOf, holds
from amp_transpiler.targets.webgpu import WEBGPU

__all__ = ["SimulateKernels", "Simulated", "rules_of", "simulated"]

logger = logging.getLogger(__name__)

_RULES: Mapping[str, Rule] = {**ACTIVATIONS, **ATTENTION, **NORMS, **PRODUCTS, **SUMS}


@functools.cache
def rules_of(table: str) -> Mapping[str, Rule]:
    """Return the rules that a table of kernels may name, by name."""
    if table == CUDA_TABLE:
        return _RULES
    from amp_transpiler.passes.device_arithmetic.low_sums import LOW_SUMS
    from amp_transpiler.passes.device_arithmetic.shader_functions import SHADER_FUNCTIONS

    return {**_RULES, **LOW_SUMS, **SHADER_FUNCTIONS}


_TF32_PRODUCT = "tf32"
_RULES_OPSET = 13  # has bfloat16, and every operator that the rules are written in
_NO_KERNEL = frozenset({"Cast", "CastLike", "Constant", "ConstantOfShape", "Identity"})
_NEW_VALUES = frozenset({"EyeLike", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Range"})


@dataclasses.dataclass(frozen=True, slots=True)
class Simulated:
    """A program rewritten into what a device's kernels compute.

    Attributes:
        program: the low program; its emulation computes what the device does.
        unmeasured: operators in a low format whose kernels nobody has measured, with the format, such as
            `Einsum in bfloat16`.
        rules: operator and format -> how many nodes were rewritten by a rule.
        has_tf32: whether it has float32 products that a device computes in TF32.
        result_bytes: bytes of the results of a run in float32, bodies aside.
    """

    program: Program
    unmeasured: tuple[str, ...]
    rules: Mapping[str, int]
    has_tf32: bool = False
    result_bytes: int = 0


def simulated(
    program: Program,
    arithmetic: DeviceArithmetic,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    draws: bool = False,
) -> Simulated:
    """Return a low program rewritten into what the kernels of a device compute.

    Args:
        program: the low program; not changed.
        arithmetic: the device's.
        shapes: input -> its shape in a run; None for those that made-up inputs have.
        draws: whether results differ by the noise of kernels, a new set for every value of the input `noise.DRAW`, and
            float32 products are in TF32 where the input `noise.TF32` is 1; else there is no noise, and they are.
    """
    result = program.clone()
    result.source = None
    PassManager([InlineFunctions()], typed=False)(result.model)
    _raise_opset(result.model)
    dims = _name_dims(result.model, shapes or {})
    propagate_types(result.model)
    outcome = SimulateKernels(arithmetic, dims, draws=draws)(result.model)  # whoever emulates it verifies it
    return Simulated(result, outcome.unmeasured, outcome.rules, outcome.has_tf32, outcome.result_bytes)


def _declared(value: ir.Value, dims: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the declared shape of a value in a run; None where a size is not known."""
    if value.shape is None:
        return None
    sizes = [size if isinstance(size, int) else dims.get(size.value or "", -1) for size in value.shape]
    return tuple(sizes) if min(sizes, default=0) >= 0 else None


def _raise_opset(model: ir.Model) -> None:
    """Raise the opset to one that has all operators of the rules, without loss; it stays where that cannot be done.

    Operators that only ONNX Runtime knows in ONNX's domain may be gone in a newer opset.
    """
    if opset_of(model, "") < _RULES_OPSET and not runtime_operators(model):
        try:
            ConvertOpset(_RULES_OPSET)(model)
        except ModelError as error:
            logger.info("kernels are not written as steps: %s", error)


def _name_dims(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Give every open dimension of the inputs a name, and return the sizes that they have in a run.

    The sizes are not written into the model: ONNX Runtime infers wrong shapes from some of them, as of STFT.
    """
    dims: dict[str, int] = {}
    for value in model.graph.inputs:
        sizes = shapes.get(str(value.name))
        if sizes is None or (value.shape is not None and len(value.shape) != len(sizes)):
            continue
        declared = [None] * len(sizes) if value.shape is None else list(value.shape)
        names = [_dim_name(dim, f"{value.name}_dim_{axis}") for axis, dim in enumerate(declared)]
        value.shape = ir.Shape(names)
        for name, size in zip(names, sizes, strict=True):
            if isinstance(name, str):
                dims.setdefault(name, size)
    return dims


def _dim_name(dim: int | ir.SymbolicDim | None, otherwise: str) -> int | str:
    if isinstance(dim, int):
        return dim
    return otherwise if dim is None or dim.value is None else dim.value


@dataclasses.dataclass
class SimulationResult(PassResult):
    """The result of the pass.

    Attributes:
        unmeasured: as in `Simulated`.
        rules: as in `Simulated`.
        has_tf32: as in `Simulated`.
        result_bytes: as in `Simulated`.
    """

    unmeasured: tuple[str, ...] = ()
    rules: Mapping[str, int] = dataclasses.field(default_factory=dict)
    has_tf32: bool = False
    result_bytes: int = 0


class SimulateKernels(Pass[SimulationResult]):
    """Writes kernels that do more than round an exact result once as the steps that they take; counts the nodes.

    1. Functions without a kernel are written out, as ONNX Runtime does.
    2. What ONNX Runtime fuses on CUDA becomes what the fused kernel computes.
    3. Each low node is rewritten by the rule of its row, and gets the noise of it.
    4. Operands of float32 products are rounded to TF32.

    Args:
        arithmetic: the device's.
        dims: name of an open dimension of the inputs -> its size.
        draws: whether to add noise.
    """

    def __init__(
        self, arithmetic: DeviceArithmetic, dims: Mapping[str, int] | None = None, *, draws: bool = False
    ) -> None:
        self._arithmetic, self._dims, self._draws = arithmetic, dims, draws

    def call(self, model: ir.Model) -> SimulationResult:
        if (opset := opset_of(model, "")) < _RULES_OPSET:
            for name in (DRAW, TF32) if self._draws else ():
                _number_input(model, name)
            return SimulationResult(model, modified=self._draws, unmeasured=(f"models of opset {opset}",))
        is_cuda = self._arithmetic.table == CUDA_TABLE
        provider = (CUDA if is_cuda else WEBGPU).of_release(self._arithmetic.wanted_release)
        written = write_out_functions(model, provider)
        if written:
            propagate_types(model)
        shapes = _RunShapes(model, self._dims or {})
        results = [shapes(value) for node in model.graph for value in node.outputs]
        draw, tf32 = (_number_input(model, name) if self._draws else None for name in (DRAW, TF32))
        fused = fuse_as_on_device(model, shapes.sizes, self._arithmetic, draw) if is_cuda else 0
        rewriting = _Rewriting(model, self._arithmetic, shapes, draw, tf32)
        for node in list(all_nodes(model)):
            rewriting.node(node)
        edits = written + fused + rewriting.edits
        return SimulationResult(
            model,
            modified=bool(edits) or self._draws,
            count=edits,
            unmeasured=tuple(sorted(rewriting.unmeasured)),
            rules=rewriting.rules,
            has_tf32=rewriting.has_tf32,
            result_bytes=sum(4 * math.prod(shape) for shape in results if shape is not None),
        )


class _RunShapes:
    """The shapes of a run: declared ones at once, the others inferred when the first of them is asked for."""

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        self._model, self._dims = model, dims
        self._sizes: Sizes | None = None

    def sizes(self) -> Sizes:
        """Return the inferred sizes of all values."""
        if self._sizes is None:
            self._sizes = sizes_of(self._model, self._dims)
        return self._sizes

    def __call__(self, value: ir.Value | None) -> tuple[int, ...] | None:
        if value is None:
            return None
        if value.const_value is not None:
            return tuple(int(size) for size in value.const_value.shape.numpy())
        declared = _declared(value, self._dims)
        return self.sizes().shape(value) if declared is None else declared


def _number_input(model: ir.Model, name: str) -> ir.Value:
    """Add an input to a model and return it: a float32 number."""
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    model.graph.inputs.append(value)
    return value


class _Rewriting:
    """Rewrites nodes one by one."""

    def __init__(
        self,
        model: ir.Model,
        arithmetic: DeviceArithmetic,
        shape_of: ShapeOf,
        draw: ir.Value | None,
        tf32: ir.Value | None,
    ) -> None:
        self._model, self._arithmetic, self._shape_of = model, arithmetic, shape_of
        self._draw, self._tf32, self.has_tf32 = draw, tf32, False
        self._shared, self._rules = GraphBuilder(model), rules_of(arithmetic.table)
        self.edits = 0
        self.unmeasured: set[str] = set()
        self.rules: dict[str, int] = {}

    def node(self, node: ir.Node) -> None:
        """Rewrite one node by its row."""
        if node.meta.get(STEP) or has_bodies(node) or node.op_type in _NO_KERNEL or node.op_type in _NEW_VALUES:
            return
        dtype = next((value.dtype for value in node.outputs if value.dtype in LOW_DTYPES), None)
        if dtype is None or not all(isinstance(value.type, ir.TensorType) for value in node.outputs):
            self._float32(node)
            return
        name, low = operator_name(node), low_format(dtype)
        row = self._arithmetic.row(name, low.name, lambda condition: holds(condition, node, self._shape_of))
        is_exact = is_standard(node) and node.op_type in EXACT and (row is None or row.computes == EXACT_RESULT)
        if is_exact:
            return
        if row is None or not row.is_measured:
            self.unmeasured.add(f"{name} in {low.name}")
        noise = self._noise(row)
        is_plain = row is None or row.computes == EXACT_RESULT
        if not is_plain or node.op_type in RECURRENT or (noise and self._draw is not None):
            self._replace(node, row, noise)

    def _noise(self, row: KernelRow | None) -> float:
        return (UNMEASURED_NOISE if row is None else row.noise) + self._arithmetic.further_noise

    def _replace(self, node: ir.Node, row: KernelRow | None, noise: float) -> None:
        self.edits += 1
        steps = self._steps(node, noise)
        if row is None or row.computes == EXACT_RESULT:
            results = [with_noise(result, steps) for result in computed_wide(node, steps)]
        else:
            written = self._rules[row.computes](node, steps)
            results = written if isinstance(written, list) else [written]
            if row.computes not in PRODUCTS:  # which have their noise inside
                results = [with_noise(result, steps) for result in results]
            label = f"{row.operator} in {steps.low.name}"
            self.rules[label] = self.rules.get(label, 0) + 1
        self._take_place(node, results, steps)

    def _steps(self, node: ir.Node, noise: float = 0.0) -> Steps:
        return Steps(
            self._model,
            node,
            self._shape_of,
            self._draw,
            self._shared,
            tf32=self._tf32,
            noise=noise,
            place=self.edits,
        )

    def _take_place(self, node: ir.Node, results: list[ir.Value], steps: Steps) -> None:
        """Let the results of steps take the place of those of a node, in their types, and remove the node."""
        if node.op_type in RECURRENT:
            results = not_a_number_stays(results, node, steps)
        graph = node.graph
        assert graph is not None
        for old, result in zip(node.outputs, results, strict=True):
            if not old.name:  # an output that the node leaves out
                continue
            new = steps.cast(result, old.dtype)
            if new.shape is None and old.shape is not None:
                new.shape = ir.Shape(old.shape)
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            rename_output(old, new, steps.names, "device")  # results keep their names, whatever computes them
        graph.remove(node, safe=True)

    def _float32(self, node: ir.Node) -> None:
        """Round the operands of a float32 product to TF32, and write float32 kernels by their rules."""
        if not node.outputs or node.outputs[0].dtype != ir.DataType.FLOAT:
            return
        name = operator_name(node)
        row = self._arithmetic.row(name, "float32", lambda condition: holds(condition, node, self._shape_of))
        if row is None:
            return
        steps = self._steps(node)
        self.edits += 1
        if row.computes == _TF32_PRODUCT:
            self.has_tf32 = True
            in_tf32(node, steps)
            if node.op_type in RECURRENT:
                self._take_place(node, computed_wide(node, steps), steps)
            return
        written = self._rules[row.computes](node, steps)
        self._take_place(node, written if isinstance(written, list) else [written], steps)
