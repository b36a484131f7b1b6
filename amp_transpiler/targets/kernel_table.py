"""Which kernels ONNX Runtime registers, looked up by its own matching rule.

The tables are data of ONNX Runtime 1.31.1 (see README.md beside them); `REFUSALS` adds what a provider turns down
although a kernel is registered.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.resources
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from amp_transpiler.errors import OptionError

__all__ = [
    "PRESENT_INPUTS",
    "PROVIDERS",
    "REFUSALS",
    "KernelTable",
    "Refusal",
    "attribute_values",
    "kernel_table",
    "kernel_type",
    "schema_version",
    "schema_versions",
]

PROVIDERS = ("cuda", "cpu")

Attributes = Mapping[str, object]
PRESENT_INPUTS = "*inputs"  # beside the attributes: indices of the inputs that are there
_PEEPHOLES = 7  # the index of LSTM's input P


@dataclasses.dataclass(frozen=True, slots=True)
class KernelRow:
    """Kernels of one operator that serve the same schema versions.

    Attributes:
        first, last: the schema versions served; `last` is None for an open-ended registration.
        constraints: type parameter (rarely an input's name) -> the types served.
    """

    first: int
    last: int | None
    constraints: Mapping[str, frozenset[str]]

    def matches(self, version: int, types: Mapping[str, str]) -> bool:
        """Whether ONNX Runtime would take a kernel of this row for `types` at schema version `version`."""
        # An open-ended kernel is not trusted with schemas that are newer than the one it was written for.
        served = version == self.first if self.last is None else self.first <= version <= self.last
        return served and all(
            kernel_type(types[name]) in allowed for name, allowed in self.constraints.items() if name in types
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A registered kernel that the provider does not accept.

    Attributes:
        provider: `cuda` or `cpu`.
        op_type: the operator, of ONNX's own domain.
        applies: told the node's attributes and types, whether it is refused.
        reason: what happens instead.
    """

    provider: str
    op_type: str
    applies: Callable[[Attributes, Mapping[str, str]], bool]
    reason: str


def _recurrent(*activations: str, **required: int) -> Callable[[Attributes, Mapping[str, str]], bool]:
    """Refuse what cuDNN's recurrent layers cannot do: other activations, clipping, peepholes, other flags."""

    def applies(attributes: Attributes, _types: Mapping[str, str]) -> bool:
        if any(name in attributes for name in ("activation_alpha", "activation_beta", "clip")):
            return True
        if _PEEPHOLES in _items(attributes.get(PRESENT_INPUTS)):
            return True
        given = [str(name).lower() for name in _items(attributes.get("activations"))]
        expected = list(activations) * 2  # a bidirectional layer lists them twice
        return given != expected[: len(given)] or any(attributes.get(k, 0) != v for k, v in required.items())

    return applies


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _asymmetric_padding(attributes: Attributes, _types: Mapping[str, str]) -> bool:
    pads = _items(attributes.get("pads"))
    half = len(pads) // 2
    return pads[:half] != pads[half:] or str(attributes.get("auto_pad", "")).startswith("SAME")


def _reduces(*modes: str, dtype: str) -> Callable[[Attributes, Mapping[str, str]], bool]:
    return lambda attributes, types: (
        str(attributes.get("reduction", "none")) in modes and kernel_type(types.get("T", "")) == dtype
    )


def _is_set(name: str) -> Callable[[Attributes, Mapping[str, str]], bool]:
    return lambda attributes, _types: attributes.get(name, 0) != 0


def _region_of_interest_is_low(_attributes: Attributes, types: Mapping[str, str]) -> bool:
    return kernel_type(types.get("T2", "float32")) in ("float16", "bfloat16")


REFUSALS = (
    Refusal(
        "cuda",
        "BatchNormalization",
        _is_set("training_mode"),
        "ONNX Runtime's CUDA provider refuses a session with BatchNormalization in training mode",
    ),
    Refusal(
        "cuda",
        "GRU",
        _recurrent("sigmoid", "tanh", linear_before_reset=1),
        "cuDNN's GRU needs linear_before_reset=1, default activations and no clip; others run on the CPU",
    ),
    Refusal(
        "cuda",
        "LSTM",
        _recurrent("sigmoid", "tanh", "tanh", input_forget=0),
        "cuDNN's LSTM needs default activations, no clip, no peepholes and input_forget=0; others run on the CPU",
    ),
    Refusal(
        "cuda",
        "RNN",
        _recurrent("tanh"),
        "cuDNN's RNN is used with tanh and without clip only; others run on the CPU",
    ),
    Refusal(
        "cuda",
        "ConvTranspose",
        _asymmetric_padding,
        "the CUDA provider leaves ConvTranspose with asymmetric or SAME_* padding to the CPU",
    ),
    Refusal(
        "cuda",
        "ArgMax",
        _is_set("select_last_index"),
        "the CUDA provider leaves ArgMax with select_last_index=1 to the CPU",
    ),
    Refusal(
        "cuda",
        "ArgMin",
        _is_set("select_last_index"),
        "the CUDA provider leaves ArgMin with select_last_index=1 to the CPU",
    ),
    Refusal(
        "cuda",
        "Resize",
        _region_of_interest_is_low,
        "the kernel reads Resize's region of interest as float32 whatever its type says",
    ),
    Refusal(
        "cuda",
        "ScatterND",
        _reduces("mul", "max", "min", dtype="float16"),
        "only reduction none and add of ScatterND are known to work in float16 on CUDA",
    ),
    Refusal(
        "cuda",
        "ScatterND",
        _reduces("add", "mul", "max", "min", dtype="bfloat16"),
        "no reduction of ScatterND is compiled for bfloat16 on CUDA",
    ),
    Refusal(
        "cpu",
        "ScatterND",
        _reduces("add", "mul", "max", "min", dtype="float16"),
        "the CPU provider's ScatterND fails at run time when it reduces float16",
    ),
    Refusal(
        "cpu",
        "ScatterElements",
        _reduces("add", "mul", dtype="float16"),
        "the CPU provider's ScatterElements fails at run time when it adds or multiplies float16",
    ),
)


class KernelTable:
    """The kernels of one execution provider.

    Attributes:
        provider: `cuda` or `cpu`.
    """

    def __init__(self, provider: str, rows: Mapping[str, Sequence[KernelRow]]) -> None:
        self.provider = provider
        self._rows = rows
        self._refusals: dict[str, list[Refusal]] = collections.defaultdict(list)
        for refusal in REFUSALS:
            if refusal.provider == provider:
                self._refusals[refusal.op_type].append(refusal)

    def has_kernel(
        self,
        domain: str,
        op_type: str,
        version: int | None,
        types: Mapping[str, str],
        attributes: Attributes | None = None,
    ) -> bool:
        """Whether the provider would run the operator itself.

        Args:
            domain: the operator's domain; empty or `ai.onnx` for ONNX's own.
            op_type: the operator's name.
            version: the schema version in force, from `schema_version`; None (no schema) has no kernel.
            types: type parameter or input name -> type, as `float16`, `tensor(float16)`, `seq(tensor(float32))`.
                Constraints on anything that is not in `types` are not looked at.
            attributes: the node's plain attributes, as from `attribute_values`; None skips the refusals.
        """
        if version is None or not any(row.matches(version, types) for row in self._rows.get(_key(domain, op_type), ())):
            return False
        return attributes is None or self.refusal(domain, op_type, types, attributes) is None

    def refusal(self, domain: str, op_type: str, types: Mapping[str, str], attributes: Attributes) -> str | None:
        """Return why the provider turns down a registered kernel for these attributes, or None if it does not."""
        if domain not in ("", "ai.onnx"):
            return None
        for row in self._refusals.get(op_type, ()):
            if row.applies(attributes, types):
                return row.reason
        return None

    def mentions(self, domain: str, op_type: str, type_: str) -> bool:
        """Whether any kernel of the operator, of any version, takes `type_` for any of its type parameters."""
        wanted = kernel_type(type_)
        return any(
            wanted in types for row in self._rows.get(_key(domain, op_type), ()) for types in row.constraints.values()
        )


def _key(domain: str, op_type: str) -> str:
    return f"{domain or 'ai.onnx'}::{op_type}"


@functools.cache
def kernel_table(provider: str) -> KernelTable:
    """Return the table of `cuda` or `cpu`.

    Raises:
        OptionError: there is no table for `provider`.
    """
    if provider not in PROVIDERS:
        raise OptionError(f"no kernel table for provider {provider!r}: expected one of {', '.join(PROVIDERS)}")
    text = importlib.resources.files(__package__).joinpath(f"{provider}_kernels.json").read_text(encoding="utf-8")
    return KernelTable(provider, {name: [_row(row) for row in rows] for name, rows in json.loads(text).items()})


def _row(row: dict[str, Any]) -> KernelRow:
    first, last = row["since"]
    return KernelRow(first, last, {name: frozenset(types) for name, types in row["constraints"].items()})


@functools.cache
def kernel_type(type_: str) -> str:
    """Write a type as the tables do: `tensor(float)` is `float32`, `seq(tensor(double))` is `seq(tensor(float64))`."""
    text = type_.replace("tensor(float)", "tensor(float32)").replace("tensor(double)", "tensor(float64)")
    return text[len("tensor(") : -1] if text.startswith("tensor(") else text


@functools.cache
def schema_version(domain: str, op_type: str, opset: int) -> int | None:
    """Return the version of the schema that ONNX Runtime has in force for the operator when a model imports `opset`.

    The answer is None for an operator that it does not know, or that is deprecated at that opset.
    """
    versions = _schema_versions().get(("" if domain == "ai.onnx" else domain, op_type), {})
    newest = max((version for version in versions if version <= opset), default=None)
    return None if newest is None or versions[newest] else newest


def schema_versions(domain: str, op_type: str) -> tuple[int, ...]:
    """Return the opsets at which ONNX Runtime's schema of the operator changed, oldest first; empty if unknown."""
    return tuple(sorted(_schema_versions().get(("" if domain == "ai.onnx" else domain, op_type), {})))


@functools.cache
def _schema_versions() -> Mapping[tuple[str, str], Mapping[int, bool]]:
    """Domain and operator -> version -> whether it is deprecated, of all schemas that ONNX Runtime bundles."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], dict[int, bool]] = collections.defaultdict(dict)
    for schema in state.get_all_operator_schema():
        found[schema.domain, schema.name][schema.since_version] = schema.deprecated
    return found


def attribute_values(node: ir.Node) -> dict[str, object]:
    """Return the plain attributes of `node` by name: numbers, strings, and lists of them as tuples.

    Under `PRESENT_INPUTS` stand the indices of the inputs that are there, since a refusal may hang on one.
    """
    plain = (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING)
    lists = (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS)
    present = tuple(i for i, value in enumerate(node.inputs) if value is not None)
    found: dict[str, object] = {PRESENT_INPUTS: present}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type in plain:
            found[name] = attribute.value
        elif attribute.type in lists:
            found[name] = tuple(attribute.value)
    return found
