"""ONNX Runtime's transformers optimizer, on a copy of a program and in a child process.

It is foreign code that knows exporters by name and may fail, so its result counts only if it has the same inputs and
outputs and computes the same as the source.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from amp_transpiler.child_process.child import RUN_ERRORS, lease
from amp_transpiler.errors import AmpError, OptionError
from amp_transpiler.files.external_data import in_memory
from amp_transpiler.files.loading import load
from amp_transpiler.files.saving import save
from amp_transpiler.files.staging import temporary_folder
from amp_transpiler.fusion.attention_pattern import Mask, find_attentions, find_loosely
from amp_transpiler.graph.regions import region_of
from amp_transpiler.graph.verifier import faults
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.ops.names import is_standard, operator_name
from amp_transpiler.ops.schema import opset_of
from amp_transpiler.passes.manager import run_pass
from amp_transpiler.passes.raise_opset import RaiseOpset
from amp_transpiler.precision.limits import Limits
from amp_transpiler.precision.opset_choice import OpsetChoice
from amp_transpiler.precision.policy import Policy
from amp_transpiler.program.program import Program
from amp_transpiler.runtime.ort import error_text
from amp_transpiler.targets.releases import choose_release, installed_version
from amp_transpiler.targets.schemas_only import SchemasOnly
from amp_transpiler.verification.accuracy import CannotCompare, Reference, make_reference
from amp_transpiler.verification.inputs import Inputs
from amp_transpiler.verification.model_family import Attention, Family, ModelFamily, family_of

__all__ = [
    "NotOptimized",
    "Optimized",
    "attentions_to_fuse",
    "check_optimizable",
    "check_optimized",
    "model_family",
    "optimized",
]

logger = logging.getLogger(__name__)

_CLASSES: Mapping[Family, str] = {
    "bert": "bert",
    "gpt2": "bert",  # its own class fails on products without a bias, and adds only attention, which is fused before
    "llama": "bert",
    "vit": "vit",
    "clip": "clip",
    "speech": "bart",
    "bart": "bart",
    "t5": "t5",
}
"""The class of the optimizer for each family."""


class NotOptimized(Exception):
    """A program was not optimized; the message says why, in one line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Optimized:
    """An optimized program.

    Attributes:
        program: it.
        family: of the model.
        operators: operators of ONNX Runtime that it has and the source has not -> how many.
        nodes: nodes before and after.
    """

    program: Program
    family: ModelFamily
    operators: dict[str, int]
    nodes: tuple[int, int]

    @property
    def note(self) -> str:
        """One line that says what was done."""
        fusions = ", ".join(f"{count} {name.rpartition('::')[2]}" for name, count in self.operators.items())
        likeness = f"{self.family.name}-like, {self.family.heads} heads of {self.family.width // self.family.heads}"
        counts = f"{self.nodes[0]} nodes -> {self.nodes[1]}, {fusions or 'nothing fused'}"
        return f"optimized by ONNX Runtime's transformers optimizer ({likeness}): {counts}"


def model_family(program: Program) -> ModelFamily | None:
    """Return the family of a transformer in plain form; None if no attention is found."""
    graph = program.model.graph
    rows = [
        Attention(each.query.whole, each.key.whole, _mask_values(each.masks), each.query.heads, each.query.width)
        for each in find_attentions(graph)[0]
    ] or [
        Attention(each.query, each.key, _mask_values(each.masks), each.heads, each.width)
        for each in find_loosely(graph)
    ]
    return family_of(graph, rows)


def _mask_values(masks: Sequence[Mask]) -> tuple[ir.Value, ...]:
    return tuple(mask.value for mask in masks)


def attentions_to_fuse(program: Program, policy: Policy) -> int:
    """Return how many attentions of a prepared program would become one operator each."""
    if policy.copies or _refusal(policy) or not (attentions := find_attentions(program.model.graph)[0]):
        return 0
    return 0 if _reason_against(program) else len(attentions)


def check_optimizable(policy: Policy) -> None:
    """Raise OptionError if a result would not run where it is wanted, or if nothing is to be changed."""
    if policy.copies:
        raise OptionError(
            "optimize has no meaning where nothing is changed: drop it, or choose another level or preset"
        )
    if refusal := _refusal(policy):
        raise OptionError(refusal)


def _refusal(policy: Policy) -> str:
    target = policy.target
    if target.builds_engines:
        return (
            "optimize fuses into operators of ONNX Runtime, which TensorRT does not have: drop it, or target tensorrt"
        )
    if isinstance(target, SchemasOnly):
        return f"optimize fuses into operators of ONNX Runtime, which {target.name} may not have: drop one of the two"
    if target.release is not choose_release(None).release:
        return (
            f"optimize fuses for the installed ONNX Runtime {installed_version()}, and the result is for {target.ort}: "
            "drop one of the two"
        )
    return ""


def _reason_against(program: Program) -> str:
    """Return why ONNX Runtime's optimizer leaves a program as it is; empty if nothing speaks against it."""
    from amp_transpiler.fusion.fuse import reason_against_fusions

    reason = reason_against_fusions(program)
    if not reason and any(region_of(node) for node in all_nodes(program.model)):
        return "it has regions of fp16_guard or disable_amp, which fused operators would lose"
    return reason


def optimized(program: Program) -> Optimized:
    """Return an optimized copy of a program in plain form; `program` itself is not changed.

    Attention is fused by `FuseAttention`, which knows the newer exporters' forms and assumes nothing about masks; then
    comes the optimizer, in a child process.

    Raises:
        NotOptimized: there is no transformer, or the optimizer failed, or changed inputs or outputs.
    """
    from amp_transpiler.fusion.fuse_attention import FuseAttention

    if reason := _reason_against(program):
        raise NotOptimized(reason)
    if fault := next(faults(program.model), None):
        raise NotOptimized(f"the model is invalid as it is: {fault}")
    fused = program.clone()
    if opset_of(program.model, "") < _FIRST_OPSET:
        choice = OpsetChoice(_FIRST_OPSET, "for ONNX Runtime's transformers optimizer")
        fused.notes += run_pass(RaiseOpset(lambda _: choice), fused.model).notes
    family = model_family(fused)
    if family is None:
        raise NotOptimized("no attention was found in it, so it is no transformer that the optimizer knows")
    run_pass(FuseAttention(), fused.model)
    RemoveUnusedNodesPass()(fused.model)
    with temporary_folder() as folder:
        before, after = folder / "model.onnx", folder / "optimized.onnx"
        try:
            save(fused, before)
            with lease() as child:
                child.ask("optimize", str(before), str(after), _CLASSES[family.name], family.heads, family.width)
            loaded = load(after)
            _hold_weights(loaded.model)
        except _FAILURES as error:
            raise NotOptimized(f"ONNX Runtime's transformers optimizer failed: {error_text(error, 160)}") from error
    result = _checked(fused, loaded)
    counts = (sum(1 for _ in all_nodes(program.model)), sum(1 for _ in all_nodes(result.model)))
    return Optimized(result, family, _new_operators(program, result), counts)


def check_optimized(source: Program, plain: Program, result: Program, inputs: Inputs | None) -> Reference | None:
    """Check that an optimized program computes what the source does, both in float32.

    Args:
        source: the program as the user gave it.
        plain: the same in plain form.
        result: the optimized program.
        inputs: data to compare on; None for made-up inputs.

    Returns:
        What the source computes; None if the two cannot be compared here.

    Raises:
        NotOptimized: it computes something else.
        InputError: the user's inputs do not fit the model.
    """
    try:
        reference = make_reference(source, plain, inputs)
        rows = reference.compare(result, Limits())
    except CannotCompare as reason:
        logger.info("the optimized program is not compared: %s", reason)
        return None
    for row in rows.values():
        wrong = row.structure_differs or row.nonfinite or row.of_all > _MOST_ERROR or row.mismatch > 0
        if wrong and row.name not in reference.unsteady:
            raise NotOptimized(f"the optimized model computes another '{row.name}' (error {row.of_all:.2g} in float32)")
    return reference


def _hold_weights(model: ir.Model) -> None:
    """Read weights that lie in files, which are about to go."""
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = in_memory(value.const_value)


def _checked(source: Program, optimized: Program) -> Program:
    """Return the optimized program under the source's name, if it has the source's inputs and outputs."""
    for kind in ("inputs", "outputs"):
        was, now = ([(v.name, v.dtype) for v in getattr(p.model.graph, kind)] for p in (source, optimized))
        if was != now:
            raise NotOptimized(f"ONNX Runtime's transformers optimizer changed the {kind}")
    model = optimized.model
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(model, name, getattr(source.model, name))
    model.metadata_props.clear()
    model.metadata_props.update(source.model.metadata_props)
    model.graph.name = source.model.graph.name
    for kind in ("inputs", "outputs"):
        for was, now in zip(getattr(source.model.graph, kind), getattr(model.graph, kind), strict=True):
            now.shape = was.shape
    result = Program(model)
    result.notes = list(source.notes)
    return result


def _new_operators(source: Program, result: Program) -> dict[str, int]:
    def counted(program: Program) -> collections.Counter[str]:
        return collections.Counter(operator_name(node) for node in all_nodes(program.model) if not is_standard(node))

    return dict(sorted((counted(result) - counted(source)).items()))


_FAILURES: tuple[type[Exception], ...] = (*RUN_ERRORS, AmpError, MemoryError)
_FIRST_OPSET = 17  # older ones mean other things by a Softmax, and have no LayerNormalization
_MOST_ERROR = 1e-3  # of an output, in float32: fused operators round in other places, which is 1e-6 mostly
