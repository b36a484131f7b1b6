"""What one node may be: by its schema, by the target's kernels, and by the range of its constants.

A node's low form says which of its float32 inputs and outputs become low; the others are its keep-high slots, such as
Resize's scales or LayerNormalization's Mean and InvStdDev.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from amp_transpiler.graph.constants import constant_range
from amp_transpiler.graph.dtypes import LowFormat
from amp_transpiler.graph.walk import bodies, constant_of
from amp_transpiler.ops.dtype_attributes import dtype_attribute
from amp_transpiler.ops.names import is_standard
from amp_transpiler.ops.schema import Signature, opset_of, signature, type_string
from amp_transpiler.targets import attribute_values, body_has_kernels, kernel_table, kernel_type, schema_version

__all__ = ["Constraint", "LowForm", "Target", "constrain", "is_float32", "range_fault", "touches_float32"]

FLOAT = "tensor(float)"
_SMALL_LOSS = 2.0**-7  # a constant may lose this fraction of its norm to rounding before its readers stay high

# Operators that read a float and whose result does not hang on the precision it comes in: they take what there is.
_READS_ANY = {"Shape", "Size", "Cast"}

# Operators defined as a function whose body mixes a float32 constant with the low type.
_ILL_TYPED_BODIES = {"MeanVarianceNormalization"}

# Operators that training programs are rid of before they run: data and result may be low, all else stays float32.
_LOWERED_FOR_TRAINING = {"BatchNormalization", "Dropout"}

# Operators whose low form would change their meaning.
_KEEPS_ITS_TYPE = {
    "BitCast": "it reinterprets the bits of its input",
    "DynamicQuantizeLinear": "its scale is float32 by definition",
}


@dataclasses.dataclass(frozen=True, slots=True)
class LowForm:
    """The inputs and outputs of a node, by index, that become low."""

    inputs: frozenset[int]
    outputs: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """What a node may be.

    Attributes:
        form: its low form, or None if it must stay high.
        reason: why it must, empty if it need not.
        reads_any: it takes its float inputs in either precision (Shape, Cast) and is itself neither low nor high.
        missing_kernel: it must stay high for want of a kernel alone.
        no_schema: nothing is known of the operator.
    """

    form: LowForm | None
    reason: str = ""
    reads_any: bool = False
    missing_kernel: bool = False
    no_schema: bool = False


class Target:
    """Whose kernels count.

    Args:
        name: `cuda`: ONNX Runtime's CUDA provider. `cpu`: its CPU provider in that format or, float16 only, in float32,
            since it inserts the casts itself. `any`: both. `tensorrt`: the standard domain's schemas alone.
        low: the low format.
        training: the program is a training program, which is lowered before it runs: BatchNormalization and Dropout
            become plain operators, so that no kernel of theirs is needed and statistics may stay float32.
    """

    def __init__(self, name: str, low: LowFormat, *, training: bool = False) -> None:
        self.name = name
        self.low = low
        self.training = training

    def has_kernel(
        self,
        domain: str,
        op_type: str,
        version: int | None,
        types: Mapping[str, str],
        attributes: Mapping[str, object] | None = None,
    ) -> bool:
        """Whether the target runs the operator at schema `version` with its type parameters bound to `types`."""
        if self.name == "tensorrt":
            return domain in ("", "ai.onnx")
        providers = ("cuda", "cpu") if self.name == "any" else (self.name,)
        return all(self._provider_has(p, domain, op_type, version, types, attributes) for p in providers)

    def _provider_has(
        self,
        provider: str,
        domain: str,
        op_type: str,
        version: int | None,
        types: Mapping[str, str],
        attributes: Mapping[str, object] | None,
    ) -> bool:
        table = kernel_table(provider)
        if table.has_kernel(domain, op_type, version, types, attributes):
            return True
        if provider != "cpu" or self.low.name != "float16":
            return False
        upcast = {name: "float32" if kernel_type(type_) == "float16" else type_ for name, type_ in types.items()}
        return table.has_kernel(domain, op_type, version, upcast, attributes)


def is_float32(value: ir.Value | None) -> bool:
    """Whether `value` is a float32 tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType)


def touches_float32(node: ir.Node) -> bool:
    """Whether a float32 tensor goes in or out of `node`."""
    return any(map(is_float32, node.inputs)) or any(map(is_float32, node.outputs))


def constrain(
    model: ir.Model,
    node: ir.Node,
    target: Target,
    opset: int | None = None,
    inputs: frozenset[int] | None = None,
) -> Constraint:
    """Return what `node` may be, by schema and kernels.

    Args:
        model: the typed program that the node is of.
        node: a node with a float32 input or output and no body.
        target: whose kernels count, and the low format.
        opset: judge at this version of ONNX's domain instead of the model's own.
        inputs: look for the low form in which exactly these inputs are low; None: that with most low slots.
    """
    version = opset if opset is not None and is_standard(node) else opset_of(model, node.domain)
    sig = signature(node.domain, node.op_type, version)
    if sig is None:
        return Constraint(None, f"no schema is known for {node.domain or 'ai.onnx'}::{node.op_type}", no_schema=True)
    if is_standard(node) and node.op_type in _READS_ANY:
        return Constraint(None, "the user's own cast keeps its type" if node.op_type == "Cast" else "", reads_any=True)
    if is_standard(node) and node.op_type in _KEEPS_ITS_TYPE:
        return Constraint(None, _KEEPS_ITS_TYPE[node.op_type])
    slots = _float_slots(node, sig)
    if isinstance(slots, str):
        return Constraint(None, slots)
    if f"tensor({target.low.name})" not in sig.allowed.get(_primary(slots), ()):
        return Constraint(None, _illegal(node, sig, target.low))
    if target.training and is_standard(node) and node.op_type in _LOWERED_FOR_TRAINING:
        found = _lowered_form(node, sig)
        fits = inputs is None or found.form is None or found.form.inputs == inputs
        return found if fits else Constraint(None, _no_such_form(node))
    return _form_that_runs(model, node, sig, target, slots, version, inputs)


def _form_that_runs(
    model: ir.Model,
    node: ir.Node,
    sig: Signature,
    target: Target,
    slots: list[_FloatSlot],
    version: int,
    inputs: frozenset[int] | None,
) -> Constraint:
    """The low form with most low slots, or with exactly these low inputs, for which the target has a kernel."""
    primary = _primary(slots)
    wanted = f"tensor({target.low.name})"
    fixed = _fixed_parameters(node, sig)
    free = [p for p in dict.fromkeys(s.param for s in slots) if wanted in sig.allowed.get(p, ()) and p not in fixed]
    if primary not in free:
        return Constraint(None, f"{node.op_type}'s attribute fixes the type of its output")
    for parameters in _subsets(free, primary):
        form = _form(slots, parameters)
        if (inputs is None or form.inputs == inputs) and _runs(model, node, sig, target, parameters, version):
            return Constraint(form)
    if inputs is not None:
        return Constraint(None, _no_such_form(node))
    return Constraint(None, _no_kernel(node, sig, target), missing_kernel=True)


def _primary(slots: list[_FloatSlot]) -> str:
    """The type parameter that a node's precision is about: that of its first float32 output, or else input."""
    return next((slot.param for slot in slots if slot.output), slots[0].param)


def _lowered_form(node: ir.Node, sig: Signature) -> Constraint:
    data, other = sig.input(0), sig.input(1)
    if data is not None and other is not None and data.type == other.type:
        return Constraint(None, f"{node.op_type}-{sig.since_version} has one type for data and statistics")
    return Constraint(LowForm(frozenset((0,)), frozenset((0,))))


@dataclasses.dataclass(frozen=True, slots=True)
class _FloatSlot:
    index: int
    output: bool
    param: str


def _float_slots(node: ir.Node, sig: Signature) -> list[_FloatSlot] | str:
    """List the float32 slots of `node`, outputs last; or say what in it cannot be low."""
    found = []
    for output, values, formal in ((False, node.inputs, sig.input), (True, node.outputs, sig.output)):
        for index, value in enumerate(values):
            if value is None:
                continue
            text, slot = type_string(value.type), formal(index)
            if text is not None and "float" in text and not text.startswith("tensor("):
                return f"it works on a {text.split('(')[0]}, which cannot be cast"
            if text != FLOAT or slot is None:
                continue
            if slot.type in sig.allowed and not slot.homogeneous:
                return "its inputs may be of any types"
            found.append(_FloatSlot(index, output, slot.type))
    return found or "no float32 tensor fits its schema"


def _fixed_parameters(node: ir.Node, sig: Signature) -> set[str]:
    """Type parameters that an attribute pins to float32, such as LayerNormalization's stash_type."""
    rule = dtype_attribute(node)
    if rule is None or rule.attribute != "stash_type":
        return set()
    return {slot.type for index in rule.outputs if (slot := sig.output(index)) is not None}


def _subsets(free: list[str], primary: str) -> Iterator[frozenset[str]]:
    """Every set of parameters that holds `primary`, larger ones first."""
    others = [parameter for parameter in free if parameter != primary]
    for size in range(len(others), -1, -1):
        for chosen in itertools.combinations(others, size):
            yield frozenset((primary, *chosen))


def _form(slots: list[_FloatSlot], parameters: frozenset[str]) -> LowForm:
    chosen = [slot for slot in slots if slot.param in parameters]
    return LowForm(
        frozenset(slot.index for slot in chosen if not slot.output),
        frozenset(slot.index for slot in chosen if slot.output),
    )


def _runs(
    model: ir.Model, node: ir.Node, sig: Signature, target: Target, parameters: frozenset[str], opset: int
) -> bool:
    types = _kernel_types(node, sig, parameters, target.low)
    version = schema_version(node.domain, node.op_type, opset)
    if target.has_kernel(node.domain, node.op_type, version, types, attribute_values(node)):
        # A body that is ill-typed in the low format fails ONNX's own check, whoever has a kernel for the whole.
        return not (is_standard(node) and node.op_type in _ILL_TYPED_BODIES)
    if not sig.has_function or target.name == "tensorrt" or any(bodies(node)):
        return False
    return bool(_body_runs(model, node, sig, target, parameters, opset))


def _body_runs(
    model: ir.Model, node: ir.Node, sig: Signature, target: Target, parameters: frozenset[str], opset: int
) -> bool | None:
    def typed(values: tuple[ir.Value | None, ...], formal: Callable[[int], object]) -> list[str | None]:
        found: list[str | None] = []
        for index, value in enumerate(values):
            text = type_string(value.type) if value is not None else None
            low = text == FLOAT and getattr(formal(index), "type", None) in parameters
            found.append(f"tensor({target.low.name})" if low else text)
        return found

    imports = {**model.graph.opset_imports, "": opset} if is_standard(node) else dict(model.graph.opset_imports)
    return body_has_kernels(
        node,
        imports,
        typed(tuple(node.inputs), sig.input),
        typed(tuple(node.outputs), sig.output),
        target.has_kernel,
        elsewhere=kernel_table("cpu").has_kernel if target.name == "cuda" else None,
    )


def _kernel_types(node: ir.Node, sig: Signature, parameters: frozenset[str], low: LowFormat) -> dict[str, str]:
    """What the kernel look-up wants: type parameter -> type, in the kernel tables' spelling."""
    types: dict[str, str] = {}
    for values, formal in ((node.inputs, sig.input), (node.outputs, sig.output)):
        for index, value in enumerate(values):
            slot = formal(index)
            text = type_string(value.type) if value is not None else None
            if slot is None or text is None:
                continue
            if text == FLOAT and slot.type in parameters:
                text = f"tensor({low.name})"
            types.setdefault(slot.type, kernel_type(text))
            types.setdefault(slot.name, kernel_type(text))
    return types


def _illegal(node: ir.Node, sig: Signature, low: LowFormat) -> str:
    return f"the schema of {node.op_type}-{sig.since_version} does not permit {low.name}"


def _no_such_form(node: ir.Node) -> str:
    return f"{node.op_type} cannot have just these inputs low"


def _no_kernel(node: ir.Node, sig: Signature, target: Target) -> str:
    return f"no {target.low.name} kernel for {node.op_type}-{sig.since_version} on {target.name}"


class RangeFaults:
    """Looks constants up once and remembers what rounding them would do.

    Args:
        low: the low format.
        strict: every constant that cannot be represented counts; otherwise the "minus infinity" of masks, which
            becomes the largest magnitude, and small constants, which lose digits, do not.
    """

    def __init__(self, low: LowFormat, strict: bool = True) -> None:
        self._low = low
        self._strict = strict
        self._known: dict[int, tuple[ir.TensorProtocol, str]] = {}

    def of(self, value: ir.Value | None) -> str:
        """Say why a constant must not be rounded to the low format; empty if it may, or is no float32 constant."""
        tensor = constant_of(value)
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            return ""
        if id(tensor) not in self._known:  # the tensor is kept too, so that its id stays its own
            self._known[id(tensor)] = (tensor, range_fault(tensor, self._low, self._strict))
        return self._known[id(tensor)][1]


def range_fault(tensor: ir.TensorProtocol, low: LowFormat, strict: bool = True) -> str:
    """Say why the float32 `tensor` must not be rounded to `low`; empty if it may. bfloat16 has float32's range."""
    if low.name != "float16" or tensor.size == 0:
        return ""
    measured = constant_range(tensor, low)
    if measured.overflows and (strict or not measured.stands_for_infinity):
        return f"constant reaches {measured.largest:.3g}, beyond {low.name}'s {low.max:g}"
    if measured.loss > _SMALL_LOSS and (strict or tensor.size > 1):
        return f"constant of at most {measured.largest:.3g} loses {measured.loss:.0%} to rounding in {low.name}"
    return ""
