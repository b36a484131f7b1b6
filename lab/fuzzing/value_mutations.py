"""Mutations of types, shapes, tensors and data files."""

from __future__ import annotations

import random
import struct

import onnx
from onnx import TensorProto

from fuzzing.mutant import (
    Mutant,
    NotApplicable,
    drop,
    graphs,
    pick,
    pick_graph,
    pick_tensor,
    pick_tensor_type,
    pick_value_info,
    value_names,
)
from fuzzing.seeds import DATA_NAME

_DTYPES = [*range(27), 99, -1, 2**31 - 1]
_LIKELY_DTYPES = [1, 1, 2, 3, 6, 7, 8, 9, 10, 10, 11, 14, 16, 16, 17, 22]
_DIMENSIONS = [-1, -64, 0, 1, 2, 3, 4, 7, 2**20, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
_NUMBERS = [float("nan"), float("inf"), float("-inf"), 1e-45, 1e-39, 6e-8, 65504.0, 65520.0, 1e30, 3.4028235e38, -1e30]
_ESCAPES = [
    "../weights.bin",
    "/etc/hostname",
    "a\\b",
    "",
    ".",
    "..",
    "no_such_file",
    "x" * 300,
    "model.onnx",
    "\x07name",
]
_OFFSETS = ["-1", "0", "1", "4096", "9999999999999999999999", "1e3", "", "abc", "0x10", " 4"]

# ---- types ----


def change_dtype(mutant: Mutant, random_: random.Random) -> None:
    """Declare another element type for a value; also none, or numbers that mean nothing."""
    likely = random_.random() < 0.6
    pick_tensor_type(mutant, random_).elem_type = pick(random_, _LIKELY_DTYPES if likely else _DTYPES)


def forget_dtype(mutant: Mutant, random_: random.Random) -> None:
    pick_tensor_type(mutant, random_).ClearField("elem_type")


def forget_type(mutant: Mutant, random_: random.Random) -> None:
    pick_value_info(mutant, random_).ClearField("type")


def change_type_kind(mutant: Mutant, random_: random.Random) -> None:
    """Declare a value a sequence, an optional, a map, a sparse tensor, or a nest of them."""
    value = pick_value_info(mutant, random_)
    element = onnx.TypeProto()
    element.CopyFrom(value.type)
    way = random_.randrange(5)
    if way == 0:
        value.type.sequence_type.elem_type.CopyFrom(element)
    elif way == 1:
        value.type.optional_type.elem_type.CopyFrom(element)
    elif way == 2:
        value.type.map_type.key_type = pick(random_, [TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT])
        value.type.map_type.value_type.CopyFrom(element)
    elif way == 3:
        value.type.sparse_tensor_type.elem_type = TensorProto.FLOAT
    else:
        inner = value.type
        for _ in range(random_.choice([2, 5, 40])):
            inner = inner.sequence_type.elem_type
        inner.tensor_type.elem_type = TensorProto.FLOAT


def declare_value(mutant: Mutant, random_: random.Random) -> None:
    """Declare a value in between, with a type that may be wrong."""
    graph = pick_graph(mutant, random_)
    dtype = pick(random_, _LIKELY_DTYPES)
    shape = [pick(random_, [1, 2, 4, "N", None]) for _ in range(random_.randrange(4))]
    graph.value_info.append(onnx.helper.make_tensor_value_info(pick(random_, value_names(graph)), dtype, shape))


# ---- shapes ----


def change_dimension(mutant: Mutant, random_: random.Random) -> None:
    dimension = pick(random_, pick_tensor_type(mutant, random_).shape.dim)
    dimension.dim_value = pick(random_, _DIMENSIONS)


def symbolic_dimension(mutant: Mutant, random_: random.Random) -> None:
    dimension = pick(random_, pick_tensor_type(mutant, random_).shape.dim)
    dimension.dim_param = pick(random_, ["N", "B", "", "N+1", "x", "-1", "a" * 400, "\x1b[31m"])


def unknown_dimension(mutant: Mutant, random_: random.Random) -> None:
    pick(random_, pick_tensor_type(mutant, random_).shape.dim).ClearField("value")


def forget_shape(mutant: Mutant, random_: random.Random) -> None:
    pick_tensor_type(mutant, random_).ClearField("shape")


def change_rank(mutant: Mutant, random_: random.Random) -> None:
    """Add or remove dimensions of a declaration."""
    dims = pick_tensor_type(mutant, random_).shape.dim
    if len(dims) and random_.random() < 0.5:
        del dims[random_.randrange(len(dims))]
    else:
        for _ in range(random_.choice([1, 1, 3, 70])):
            dims.add(dim_value=pick(random_, [1, 2, 4]))


def shape_of_results(mutant: Mutant, random_: random.Random) -> None:
    """Forget every declaration but those of the inputs."""
    for graph in graphs(mutant.model):
        del graph.value_info[:]
    for output in mutant.model.graph.output:
        if output.type.HasField("tensor_type") and random_.random() < 0.8:
            output.type.tensor_type.ClearField("shape")


# ---- tensors ----


def change_tensor_dtype(mutant: Mutant, random_: random.Random) -> None:
    pick_tensor(mutant, random_).data_type = pick(random_, _LIKELY_DTYPES if random_.random() < 0.5 else _DTYPES)


def change_tensor_dims(mutant: Mutant, random_: random.Random) -> None:
    """Change, add or remove a dimension; two negative ones have the right product."""
    dims = pick_tensor(mutant, random_).dims
    way = random_.randrange(4)
    if way == 0 and len(dims) > 1:
        dims[0], dims[1] = -dims[0], -dims[1]
    elif way == 1:
        dims.append(pick(random_, _DIMENSIONS))
    elif len(dims):
        index = random_.randrange(len(dims))
        if way == 2:
            dims[index] = pick(random_, _DIMENSIONS)
        else:
            del dims[index]
    else:
        raise NotApplicable


def change_raw_length(mutant: Mutant, random_: random.Random) -> None:
    """Cut or lengthen a tensor's bytes."""
    tensor = pick_tensor(mutant, random_)
    raw = tensor.raw_data
    tensor.raw_data = pick(random_, [b"", raw[:-1], raw[:-4], raw + b"\0", raw * 2, raw[: len(raw) // 2]])


def second_storage(mutant: Mutant, random_: random.Random) -> None:
    """Store a tensor's data in a second field as well, or in one of another type."""
    tensor = pick_tensor(mutant, random_)
    way = random_.randrange(4)
    if way == 0:
        tensor.float_data.extend([1.0, 2.0])
    elif way == 1:
        tensor.int64_data.extend([2**62])
    elif way == 2:
        tensor.int32_data.extend([70000, -1])
    else:
        tensor.string_data.append(b"\xff\x00")


def typed_storage(mutant: Mutant, random_: random.Random) -> None:
    """Move a tensor's bytes into the list field of its type."""
    tensor = pick_tensor(mutant, random_)
    if tensor.data_type != TensorProto.FLOAT or len(tensor.raw_data) % 4 or not tensor.raw_data:
        raise NotApplicable
    values = struct.unpack(f"<{len(tensor.raw_data) // 4}f", tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.float_data.extend(values[: random_.choice([len(values), len(values), len(values) - 1, 0])])


def extreme_values(mutant: Mutant, random_: random.Random) -> None:
    """Put NaN, infinity, denormal or huge numbers into float weights."""
    tensor = pick_tensor(mutant, random_)
    count = len(tensor.raw_data) // 4
    if tensor.data_type != TensorProto.FLOAT or not count:
        raise NotApplicable
    values = list(struct.unpack(f"<{count}f", tensor.raw_data[: count * 4]))
    number = pick(random_, _NUMBERS)
    for index in range(count) if random_.random() < 0.2 else [random_.randrange(count)]:
        values[index] = number
    tensor.raw_data = struct.pack(f"<{count}f", *values)


def scale_values(mutant: Mutant, random_: random.Random) -> None:
    """Multiply float weights, so that results leave the range of a format."""
    tensor = pick_tensor(mutant, random_)
    count = len(tensor.raw_data) // 4
    if tensor.data_type != TensorProto.FLOAT or not count:
        raise NotApplicable
    values = struct.unpack(f"<{count}f", tensor.raw_data[: count * 4])
    factor = pick(random_, [1e-6, 1e-3, 100.0, 1e4, -1.0, 0.0])
    tensor.raw_data = struct.pack(f"<{count}f", *(max(-3e38, min(3e38, value * factor)) for value in values))


def duplicate_initializer(mutant: Mutant, random_: random.Random) -> None:
    graph = pick_graph(mutant, random_)
    graph.initializer.add().CopyFrom(pick(random_, graph.initializer))


def drop_initializer(mutant: Mutant, random_: random.Random) -> None:
    drop(random_, pick_graph(mutant, random_).initializer)


def rename_initializer(mutant: Mutant, random_: random.Random) -> None:
    """Name an initializer after another value, or not at all."""
    graph = pick_graph(mutant, random_)
    pick(random_, graph.initializer).name = pick(random_, ["", *value_names(graph)])


def initializer_as_input(mutant: Mutant, random_: random.Random) -> None:
    """List an initializer among the inputs, with its own type or another."""
    graph = pick_graph(mutant, random_)
    tensor = pick(random_, graph.initializer)
    dtype = tensor.data_type if random_.random() < 0.7 else pick(random_, _LIKELY_DTYPES)
    graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, dtype, list(tensor.dims)))


def sparse_initializer(mutant: Mutant, random_: random.Random) -> None:
    graph = pick_graph(mutant, random_)
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(pick(random_, graph.initializer))
    sparse.indices.data_type = TensorProto.INT64
    sparse.dims.extend([2, 2])


def segment(mutant: Mutant, random_: random.Random) -> None:
    """Say that a tensor is part of a larger one."""
    tensor = pick_tensor(mutant, random_)
    tensor.segment.begin, tensor.segment.end = pick(random_, [(0, 1), (5, 1), (-1, 2**40)])


# ---- data files ----


def make_external(mutant: Mutant, random_: random.Random) -> None:
    """Move a tensor's bytes into the data file, in a way that may be wrong."""
    tensor = pick_tensor(mutant, random_)
    raw = tensor.raw_data
    if not raw:
        raise NotApplicable
    before = mutant.files.get(DATA_NAME, b"")
    mutant.files[DATA_NAME] = before + raw
    if random_.random() < 0.8:
        tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    wanted = [("location", DATA_NAME), ("offset", str(len(before))), ("length", str(len(raw)))]
    for key, value in wanted[: random_.choice([1, 2, 3, 3, 3, 3])]:
        tensor.external_data.add(key=key, value=value)


def change_external(mutant: Mutant, random_: random.Random) -> None:
    """Point external data elsewhere: out of the folder, beyond the end, at no file."""
    entries = pick(random_, [tensor.external_data for tensor in _external(mutant)])
    entry = pick(random_, entries)
    if entry.key == "location":
        entry.value = pick(random_, _ESCAPES)
    else:
        entry.value = pick(random_, _OFFSETS)


def drop_external_entry(mutant: Mutant, random_: random.Random) -> None:
    entries = pick(random_, [tensor.external_data for tensor in _external(mutant)])
    if not len(entries):
        raise NotApplicable
    del entries[random_.randrange(len(entries))]


def external_without_location(mutant: Mutant, random_: random.Random) -> None:
    """Say that data are external, with nothing about where."""
    pick_tensor(mutant, random_).data_location = pick(
        random_, [TensorProto.EXTERNAL, TensorProto.EXTERNAL, TensorProto.DEFAULT]
    )


def cut_data_file(mutant: Mutant, random_: random.Random) -> None:
    """Shorten the data file, or remove it."""
    name = pick(random_, sorted(mutant.files))
    keep = random_.choice([0, 1, len(mutant.files[name]) // 2, len(mutant.files[name]) - 1, None])
    if keep is None:
        del mutant.files[name]
    else:
        mutant.files[name] = mutant.files[name][:keep]


def _external(mutant: Mutant) -> list[TensorProto]:
    return [
        tensor
        for graph in graphs(mutant.model)
        for tensor in graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL and len(tensor.external_data)
    ]
