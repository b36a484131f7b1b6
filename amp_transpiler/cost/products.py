"""Lists the kernels of matrix products and convolutions: fast or slow by alignment, and what runs around them."""

from __future__ import annotations

import math

from amp_transpiler.cost.call import Call
from amp_transpiler.cost.operators import ROWS_OF_FEW_BITS, few_bit_rows
from amp_transpiler.cost.work import Work
from amp_transpiler.graph.product_operands import stacked_shape

__all__ = ["convolved", "multiplied", "multiplied_by_few_bits"]

ALIGNED = {"float16": 8, "bfloat16": 8, "tf32": 4, "float32": 4}  # elements that a leading dimension is a multiple of
THIN = 16  # a side up to which a product is bound by reading the other operand
FEW_DOTS = {"float16": 64, "bfloat16": 64, "tf32": 128, "float32": 128}  # so many are split, each among many blocks
TILE, PROCESSORS = 128, 132  # a block of a convolution's result, and the blocks that an H100 computes at once
LONGEST = 4096  # inner dimension that one block of threads takes; of a longer one, others take parts
USUAL, WIDEST = 7, 32  # sides of kernels: of layers, and the widest that cuDNN's fast iterators walk


def multiplied(call: Call) -> list[Work]:
    """Return the kernels of a product of matrices, or of many."""
    first, second = (stacked_shape(call.node, index, call.shape(index)) for index in (0, 1))
    if not first or not second:
        return [Work("Product", "", call.elements, bytes=8 * call.elements)]
    turned_a, turned_b = call.attribute("transA", 0), call.attribute("transB", 0)
    m, k = _sides(first if len(first) > 1 else (1, *first), turned_a)
    k, n = _sides(second if len(second) > 1 else (*second, 1), turned_b)
    batch = max(1, call.elements // max(1, m * n))
    if len(second) <= 2 and not turned_a:  # the batch's rows are rows of one product
        m, batch = m * batch, 1
    leading = (m if turned_a else k, k if turned_b else n, n)
    moved = math.prod(first) + math.prod(second) + call.elements  # a matrix that all of a stack share is read once
    return [*_pointers(call, first, second), *_product(call, (m, n, k), batch, moved, leading)]


def _pointers(call: Call, first: tuple[int, ...], second: tuple[int, ...]) -> list[Work]:
    """Find matrices of which one stack is shorter by pointers, which the host copies in every run."""
    if math.prod(second[:-2]) > 1 and math.prod(first[:-2]) != math.prod(second[:-2]):
        return [Work("Pointers to matrices", call.rate, 0, count=3)]
    return []


def _sides(shape: tuple[int, ...], turned: int) -> tuple[int, int]:
    return (shape[-1], shape[-2]) if turned else (shape[-2], shape[-1])


def _product(
    call: Call, sides: tuple[int, int, int], batch: int, elements: int, leading: tuple[int, ...]
) -> list[Work]:
    """Return the kernels of a stack of products.

    Args:
        call: the operator.
        sides: of one product: the rows and columns of its result, and its inner dimension.
        batch: how many there are.
        elements: of the operands and the result, each tensor once.
        leading: the leading dimensions of the three.
    """
    m, n, k = sides
    flops = 2 * batch * m * n * k
    size = elements * (2 if call.rate in ("float16", "bfloat16") else 4)
    if m == n == 1 and batch > 1:
        kernel = "Few long dots" if batch <= FEW_DOTS[call.rate] else "Batched dot"
        return [Work(kernel, call.rate, batch * k, steps=k, bytes=size)]
    if min(m, n) <= THIN:
        return [Work("Thin product", call.rate, elements, bytes=size, flops=flops)]
    is_aligned = all(length % ALIGNED[call.rate] == 0 for length in leading)
    if batch > 1:
        kernel = "Batched product" if is_aligned else "Batched product of unaligned rows"
        return [Work(kernel, call.rate, elements, flops=flops, bytes=size)]
    if is_aligned:
        return [Work("Product", call.rate, 0, steps=min(k, LONGEST), flops=flops, bytes=size)]
    kernel = "Product of odd rows" if any(length % 2 for length in leading) else "Product of unaligned rows"
    return [Work(kernel, call.rate, 0, steps=min(k, LONGEST), flops=flops, bytes=size)]


def multiplied_by_few_bits(call: Call) -> list[Work]:
    """Multiply few rows by a matrix as it is stored, in few bits; more of them once it is written in full."""
    rows, k, n = few_bit_rows(call.node, call.sizes), call.attribute("K", 0), call.attribute("N", 0)
    stored = sum(map(call.sizes.bytes, call.inputs[1:]))
    if rows > ROWS_OF_FEW_BITS:
        size = k * n * (2 if call.rate in ("float16", "bfloat16") else 4)
        spread = Work("Dequantize", call.format, k * n, bytes=stored + size)
        return [spread, *_product(call, (rows, n, k), 1, rows * k + k * n + rows * n, (k, k, n))]
    moved = stored + call.sizes.bytes(call.inputs[0]) + call.sizes.bytes(call.output)
    return [Work(call.op, call.rate, call.elements, flops=2 * rows * k * n, bytes=moved)]


def convolved(call: Call) -> list[Work]:
    """Return cuDNN's kernels: the layout of both operands and the result, the convolution, and the bias."""
    data, weight, result = call.shape(0), call.shape(1), call.sizes.shape(call.output) or ()
    if len(data) < 3 or len(weight) != len(data) or len(result) != len(data):
        return [Work("Convolution", "", call.elements, bytes=8 * call.elements)]
    is_transposed = call.op == "ConvTranspose"
    flops = 2 * math.prod(data if is_transposed else result) * math.prod(weight[1:])
    size = (math.prod(data) + math.prod(weight) + math.prod(result)) * (4 if call.format == "float32" else 2)
    has_bias = call.biased or (len(call.inputs) > 2 and call.inputs[2] is not None)
    bias = [call.work("Bias of a convolution")] if has_bias else []
    if call.attribute("group", 1) > 1:
        return [Work("Grouped convolution", call.rate, call.elements, flops=flops, bytes=size), *bias]
    layouts = [
        call.work("To NHWC", elements=math.prod(data)),
        call.work("To NHWC", elements=math.prod(weight)),
        call.work("From NHWC"),
    ]
    is_product = max(weight[2:]) == 1  # of one tap: needs no other layout
    return [*(() if is_product else layouts), _convolution(call, weight, result, flops, size), *bias]


def _convolution(call: Call, weight: tuple[int, ...], result: tuple[int, ...], flops: int, size: int) -> Work:
    """Multiply implicitly; where the result has few tiles, each walks the whole inner dimension by itself."""
    side = max(weight[2:])
    inner = (weight[0] if call.op == "ConvTranspose" else weight[1]) * math.prod(weight[2:])
    tiles = math.ceil(result[0] * math.prod(result[2:]) / TILE) * math.ceil(result[1] / TILE)
    steps = inner if tiles < PROCESSORS else 0
    if side > WIDEST:
        kernel = "Convolution with a huge kernel"
    else:
        kernel = "Convolution" if side <= USUAL else "Convolution with a large kernel"
    return Work(kernel, call.rate, call.elements, steps=steps, flops=flops, bytes=size)
