"""Low-rank adapters (LoRA): a large network stays as it is, and small pairs of matrices beside it are trained.

Source of the method: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021: `y = x W + s x A B`, where
A begins at random, B at zero, and s is `alpha / rank`. Beside a convolution A is a convolution of its kernel to `rank`
channels and B one of kernels of 1: `y = conv(x, W) + s conv1(conv(x, A), B)`, in each group of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.builder import GraphBuilder, is_static, shape_of
from amp_transpiler.graph.constness import constant_of
from amp_transpiler.graph.dtypes import AMP_DTYPES
from amp_transpiler.graph.regions import inside_region_of
from amp_transpiler.graph.user_patterns import compile_pattern
from amp_transpiler.ops.names import is_standard
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.persistables import Initial, create_persistable
from amp_transpiler.paddle.framework.programs import default_startup_program
from amp_transpiler.paddle.framework.rollback import all_or_nothing
from amp_transpiler.paddle.initial_values import Uniform
from amp_transpiler.paddle.static.io import set_program_state
from amp_transpiler.paddle.static.lora_merge import Pair, mark_pair
from amp_transpiler.paddle.static.tensor_file import read_header, read_tensors, with_suffix, write_tensors
from amp_transpiler.program.program import Persistable, Program, Variable
from amp_transpiler.runtime.scope import Scope, global_scope
from amp_transpiler.systems.paddle.master_weights import master_name

__all__ = ["add_lora", "load_lora", "save_lora"]

logger = logging.getLogger(__name__)

FORMAT, VERSION = "amp_transpiler.lora", "1"
_ENDS = (".lora_A", ".lora_B")
_PASSED = frozenset({"Cast", "Identity", "Transpose"})  # between a weight and the product that it is a factor of


@dataclasses.dataclass(frozen=True, slots=True)
class _Product:
    """Describes a product of data with a weight.

    Attributes:
        node: a MatMul, Gemm or Conv.
        weight: the weight's name.
        sizes: of what goes in, and of what comes out; of one group of a Conv.
        turned: whether the weight is [out, in].
        kernel: the sizes of a Conv's kernel; None for a matrix product.
        groups: the groups of a Conv.
    """

    node: ir.Node
    weight: str
    sizes: tuple[int, int]
    turned: bool = False
    kernel: tuple[int, ...] | None = None
    groups: int = 1

    def shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of its pair."""
        rows, columns = self.sizes
        if self.kernel is None:
            return (rows, rank), (rank, columns)
        channels = rows // math.prod(self.kernel)
        first = (self.groups * rank, channels, *self.kernel)
        return first, (self.groups * columns, rank, *(1 for _ in self.kernel))


def add_lora(
    program: Program,
    pattern: str | Sequence[str],
    rank: int,
    alpha: float | None = None,
    startup_program: Program | None = None,
) -> list[Variable]:
    """Freeze a network, and add a low-rank pair to each matrix product and convolution that a pattern chooses.

        program = paddle.static.from_onnx("llama.onnx", startup)
        adapters = paddle.static.add_lora(program, "q_proj|v_proj", rank=8, startup_program=startup)
        ...  # a loss, decorate, minimize; run the startup program; train
        paddle.static.save_lora(program, "adapters.safetensors")
        merged = paddle.static.merge_lora(program)  # for inference, without pairs

    Call it before `minimize` and before the startup program runs. A step begins as the network was, since the second
    matrix of a pair is zero. The pairs are `WEIGHT.lora_A` [in, rank] and `WEIGHT.lora_B` [rank, out], of the element
    type of the data that they multiply; of a convolution [groups x rank, in / groups, kernel ...] and [out, rank, 1
    ...]. A weight that several products read has one pair.

    Args:
        program: a program that was built or imported, edited in place.
        pattern: regular expressions, searched in the names of weights and of the nodes that multiply by them.
        rank: the size between the matrices of a pair.
        alpha: the pair's product is multiplied by `alpha / rank`; `rank` unless given.
        startup_program: gets the initial values; the default one unless given.

    Returns:
        the new parameters: the only ones that train from now on.

    Raises:
        OptionError: `rank` is not positive or not smaller than a matrix, or a pattern chooses no product.
        InputError: the program has adapters already.
    """
    if rank < 1:
        raise OptionError(f"add_lora: rank must be 1 or more, got {rank}")
    if names := _adapters(program):
        raise InputError(f"add_lora: {program!r} has adapters already, such as '{names[0]}': call it once")
    startup = default_startup_program() if startup_program is None else startup_program
    chosen = _chosen(program, [pattern] if isinstance(pattern, str) else list(pattern))
    scale = (rank if alpha is None else float(alpha)) / rank
    with all_or_nothing(program, startup):
        for persistable in program.persistables.values():
            if persistable.kind == "parameter":
                persistable.trainable = False
        for product in chosen:
            if rank >= min(product.sizes):
                raise OptionError(
                    f"add_lora: rank {rank} saves nothing beside '{product.weight}' of {list(product.sizes)}: take a "
                    "smaller rank, or a pattern without it"
                )
            _add_pair(program, startup, product, rank, scale)
        program.touch()
    names = _adapters(program)
    size = sum(math.prod(program.var(name).shape) for name in names)
    logger.info("add_lora: %d pairs of rank %d, %d numbers to train", len(names) // 2, rank, size)
    return [program.var(name) for name in names]


def save_lora(program: Program, path: str | os.PathLike[str], scope: Scope | None = None) -> None:
    """Write only the adapters to a safetensors file, in float32: their master weights where they have them.

    Args:
        program: a program that `add_lora` was called for.
        path: the file; `.safetensors` is added unless it ends so. It is replaced as a whole, or not at all.
        scope: where the values live; the global scope unless given.

    Raises:
        InputError: the program has no adapters, or the scope lacks their values.
        OutputError: the file cannot be written.
    """
    held = global_scope() if scope is None else scope
    names = _needed_adapters(program, "save_lora")
    if missing := [name for name in names if name not in held]:
        raise InputError(f"save_lora: the scope has no value for '{missing[0]}': run the startup program first")
    arrays = {name: np.asarray(held[_unrounded(program, held, name)], np.float32) for name in names}
    sizes = {name: list(array.shape) for name, array in arrays.items()}
    metadata = {"format": FORMAT, "format_version": VERSION, "shapes": json.dumps(sizes)}
    write_tensors(with_suffix(path), arrays, names, metadata)


def load_lora(program: Program, path: str | os.PathLike[str], scope: Scope | None = None) -> None:
    """Set the adapters of a program from a file that `save_lora` wrote: all of them, or none if there is an error.

    Args:
        program: a program that `add_lora` was called for, with the same pattern and rank.
        path: the file; `.safetensors` is added unless it ends so.
        scope: where the values go; the global scope unless given. The startup program has run there.

    Raises:
        InputError: the file is missing, damaged or no file of adapters, lacks one or has one of another shape, or the
            startup program has not run in the scope.
    """
    file, names = with_suffix(path), _needed_adapters(program, "load_lora")
    entries, metadata = read_header(file)
    if metadata.get("format") != FORMAT:
        raise InputError(f"load_lora: {file} holds no adapters: save_lora writes such files")
    if missing := [name for name in names if name not in entries]:
        raise InputError(f"load_lora: {file} has no '{missing[0]}': it was saved with another pattern")
    set_program_state(program, dict(read_tensors(file, names)), scope)


def _adapters(program: Program) -> list[str]:
    return [name for name in program.persistables if name.endswith(_ENDS)]


def _needed_adapters(program: Program, what: str) -> list[str]:
    names = _adapters(program)
    if not names:
        raise InputError(f"{what}: {program!r} has no adapters: call add_lora first")
    return names


def _unrounded(program: Program, scope: Scope, name: str) -> str:
    """Return the name of a parameter's master weight, or its own if it has none."""
    master = master_name(name)
    return master if master in program.persistables and master in scope else name


def _chosen(program: Program, patterns: list[str]) -> list[_Product]:
    """Return the products whose weight or node one of the patterns matches.

    Raises:
        OptionError: a pattern matches none.
    """
    products = list(_products(program))
    chosen: dict[int, _Product] = {}
    for text in patterns:
        pattern = compile_pattern(text, "add_lora")
        hits = [i for i, p in enumerate(products) if pattern.search(p.weight) or pattern.search(str(p.node.name))]
        if not hits:
            weights = sorted({product.weight for product in products})
            near = difflib.get_close_matches(text, weights, n=3, cutoff=0.3) or weights[:3]
            hint = f"weights of products are {', '.join(map(repr, near))}, ..." if near else "there are no products"
            raise OptionError(f"add_lora: pattern '{text}' matches no product with a weight; {hint}")
        chosen |= {index: products[index] for index in hits}
    return [chosen[index] for index in sorted(chosen)]


def _products(program: Program) -> Iterator[_Product]:
    """Yield every MatMul, Gemm and Conv of the main graph whose second input is a weight of known size."""
    for node in program.model.graph:
        if not is_standard(node) or node.op_type not in ("MatMul", "Gemm", "Conv"):
            continue
        weight = node.inputs[1]
        name = _weight_of(program, weight)
        if name is None or weight is None or not is_static(weight):
            continue
        shape = tuple(int(size) for size in shape_of(weight))
        if node.op_type == "Conv":
            groups = node.attributes["group"].as_int() if "group" in node.attributes else 1
            sizes = math.prod(shape[1:]), shape[0] // groups
            yield _Product(node, name, sizes, turned=True, kernel=shape[2:], groups=groups)
            continue
        flags = [node.attributes.get(key) for key in ("transA", "transB")]
        turned_data, turned = (flag is not None and bool(flag.as_int()) for flag in flags)
        if turned_data or len(shape) != 2:
            continue
        yield _Product(
            node, name, (shape[1], shape[0]) if turned else (shape[0], shape[1]), turned != _is_turned(weight)
        )


def _weight_of(program: Program, value: ir.Value | None) -> str | None:
    """Return the name of the parameter or constant that a matrix comes from, or None."""
    while value is not None:
        if str(value.name) in program.persistables or (constant_of(value) is not None and value.producer() is None):
            return str(value.name)
        node = value.producer()
        if node is None or not is_standard(node) or node.op_type not in _PASSED:
            return None
        value = node.inputs[0]
    return None


def _is_turned(value: ir.Value | None) -> bool:
    """Whether an odd number of Transposes stands between a matrix and where it comes from."""
    odd = False
    while value is not None and (node := value.producer()) is not None and node.op_type in _PASSED:
        odd, value = odd != (node.op_type == "Transpose"), node.inputs[0]
    return odd


def _add_pair(program: Program, startup: Program, product: _Product, rank: int, scale: float) -> None:
    """Add a pair's product to the result of a product with a weight."""
    node, data = product.node, product.node.inputs[0]
    assert data is not None
    dtype = data.dtype if data.dtype in AMP_DTYPES else ir.DataType.FLOAT
    bound = 1 / math.sqrt(product.sizes[0])
    starts: tuple[Initial | float, ...] = (Uniform(-bound, bound), 0.0)
    first, second = (
        create_persistable(
            Persistable(product.weight + end, "parameter"), shape, start, dtype, main=program, startup=startup
        ).value
        for end, shape, start in zip(_ENDS, product.shapes(rank), starts, strict=True)
    )
    old = node.outputs[0]
    readers = list(old.uses())
    with _built_after(program.builder(), node), inside_region_of(node):
        builder = program.builder()
        low_rank = _low_rank(builder, product, data, first, second)
        new = builder.op("Add", [old, low_rank if scale == 1.0 else builder.mul(low_rank, scale)])
    mark_pair(new, Pair(product.weight, scale, product.turned, product.groups))
    for reader, index in readers:
        reader.replace_input_with(index, new)
    name = old.name  # goes on to what readers see, so that Variables and outputs do
    old.name = builder.names.fresh(f"{name}__frozen")
    new.name = name


def _low_rank(builder: GraphBuilder, product: _Product, data: ir.Value, first: ir.Value, second: ir.Value) -> ir.Value:
    if product.kernel is None:
        return builder.op("MatMul", [builder.op("MatMul", [data, first]), second])
    attributes = {key: attribute.value for key, attribute in product.node.attributes.items()}
    ones = {"kernel_shape": [1] * len(product.kernel), "group": product.groups}
    return builder.op("Conv", [builder.op("Conv", [data, first], attributes), second], ones)


@contextlib.contextmanager
def _built_after(builder: GraphBuilder, node: ir.Node) -> Iterator[None]:
    """Let a builder put nodes behind a node, instead of at the end of the graph."""
    outer, builder.before = builder.before, next(iter(_following(builder.graph, node)), None)
    try:
        yield
    finally:
        builder.before = outer


def _following(graph: ir.Graph, node: ir.Node) -> Iterator[ir.Node]:
    nodes = iter(graph)
    for candidate in nodes:
        if candidate is node:
            break
    yield from nodes


check_arguments(globals(), __all__)
