"""Programs as a diagnosis takes them: typed, without functions, their nodes named; from ONNX text or a conversion."""

import numpy as np

import amp_transpiler as amp
from amp_transpiler.conversion import plain_copy
from amp_transpiler.passes.name_nodes import NameNodes
from tests.support import array, parse

WEIGHTS = {
    "w": array(4, 4),
    "v": array(4, 4, seed=1),
    "g": 1.0 + array(4, seed=2, scale=0.1),
    "b": array(4, seed=3, scale=0.1),
    "half": np.float32(0.5),
    "one": np.float32(1.0),
    "root": np.float32(2.0**0.5),
    "sizes": np.array([1, 3], np.int64),
    "axes": np.array([-1], np.int64),
}
"""Name -> constant of a float32 graph. In a low graph `w16` stands for `w` in float16, and so on."""


def model_of(graph, **options):
    """Return the model of an ONNX text with those of the constants that it names."""
    words = set(graph.replace("(", " ").replace(")", " ").replace(",", " ").replace("}", " ").split())
    weights = {name: values for name, values in WEIGHTS.items() if name in words}
    weights |= {f"{n}16": v.astype(np.float16) for n, v in WEIGHTS.items() if f"{n}16" in words}
    return parse(graph, imports=', "com.microsoft": 1', **options, **weights)


def program_of(model):
    """Return a model, or an ONNX text, as a program that can be paired."""
    program = plain_copy(amp.load(model_of(model) if isinstance(model, str) else model))
    NameNodes()(program.model)
    return program


def converted(model, dtype="float16", **options):
    """Return a conversion at O2 without repairs or checks."""
    return amp.transpile(model, level="O2", dtype=dtype, verify=False, **{"fuse": "none", **options}).program.to_onnx()


def renamed(model, names=lambda number: f"n{number}"):
    """Return a copy of a model in which every node and every result has another name.

    Args:
        model: the model.
        names: returns the name of a node, or of what it makes.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    outer = {info.name for info in (*model.graph.input, *model.graph.output)}
    results = dict.fromkeys(name for node in model.graph.node for name in node.output if name and name not in outer)
    new = {name: names(number) for number, name in enumerate(results)}
    for number, node in enumerate(copy.graph.node):
        node.name = names(number)
        for reader in (node, *(inner for attribute in node.attribute for inner in attribute.g.node)):
            reader.input[:] = [new.get(name, name) for name in reader.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    del copy.graph.value_info[:]
    return copy
