"""Shows the rules of kernels an operator with its operands."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from amp_transpiler.cost.shapes import Sizes
from amp_transpiler.cost.work import Work
from amp_transpiler.targets.devices import Rate

__all__ = ["Call"]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """An operator that runs.

    Attributes:
        op: its name, which is that of the fused operator where nodes were fused.
        node: has the attributes.
        inputs: the operands, in the operator's order.
        output: the result.
        sizes: of all values.
        rate: the format in which products are multiplied.
        biased: whether a bias is added besides the operands, as by a fused Gemm or Conv.
    """

    op: str
    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    output: ir.Value
    sizes: Sizes
    rate: Rate
    biased: bool = False

    @property
    def elements(self) -> int:
        """The elements of the result."""
        return self.sizes.elements(self.output)

    @property
    def format(self) -> str:
        """The format of the first operand, such as `float16`."""
        return self.format_of(self.inputs[0] if self.inputs else self.output)

    def format_of(self, value: ir.Value | None) -> str:
        """Return the format of a value; empty where it is not known."""
        dtype = self.sizes.dtype(value)
        return "" if dtype is None else _NAMES.get(dtype, dtype.name.lower())

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the sizes of an operand; none where it is missing or its rank is not known."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return self.sizes.shape(value) or ()

    def attribute(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        return self.node.attributes.get_int(name, default)

    def work(
        self, kernel: str, *, computes: str = "", elements: int | None = None, steps: int = 0, count: int = 1
    ) -> Work:
        """Return a kernel of this operator.

        Args:
            kernel: its name in the price list.
            computes: its format; that of the first operand if it is left out.
            elements: that it goes through; those of the result if they are left out.
            steps: that one block of threads takes one after another.
            count: how often it runs.
        """
        elements = self.elements if elements is None else elements
        computes = computes or self.format
        size = 2 * elements * _BYTES.get(computes, 8)
        return Work(kernel, computes, elements, steps=steps, bytes=size, count=count)


_NAMES = {ir.DataType.FLOAT: "float32"}
_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "int8": 1, "uint8": 1, "int32": 4}
