"""The table of mutations, and how a mutant is drawn from it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fuzzing import graph_mutations as graph, node_mutations as node, value_mutations as value
from fuzzing.mutant import Mutant, NotApplicable, ProtobufError
from fuzzing.seeds import Seed

LEVELS = ("node", "type", "shape", "graph", "tensor", "string", "byte")
_WEIGHTS = (6, 3, 3, 4, 4, 2, 2)  # how often each is drawn
_COUNTS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 5)  # how many mutations a mutant gets
_TRIES = 6  # a mutation may find nothing to change
_SEED_TRIES = 30  # few seeds have functions, bodies or data files


@dataclasses.dataclass(frozen=True, slots=True)
class Mutation:
    """One way to damage a model.

    Attributes:
        name: of the mutation.
        level: its class, one of `LEVELS`.
        apply: changes the mutant, or raises NotApplicable.
    """

    name: str
    level: str
    apply: Callable[[Mutant, random.Random], None]


def _rows(level: str, *functions: Callable[[Mutant, random.Random], None]) -> list[Mutation]:
    return [Mutation(function.__name__, level, function) for function in functions]


MUTATIONS = (
    *_rows(
        "node",
        node.swap_operator,
        node.swap_with_another,
        node.change_domain,
        node.no_operator,
        node.drop_node,
        node.bypass_node,
        node.duplicate_node,
        node.many_nodes,
        node.reorder,
        node.move_to_another_scope,
        node.rewire_input,
        node.read_undefined,
        node.cut_input,
        node.add_inputs,
        node.change_outputs,
        node.rename_value,
        node.rename_node,
        node.drop_attribute,
        node.duplicate_attribute,
        node.rename_attribute,
        node.add_attribute,
        node.change_attribute_type,
        node.change_attribute_value,
        node.reference_attribute,
    ),
    *_rows(
        "type",
        value.change_dtype,
        value.forget_dtype,
        value.forget_type,
        value.change_type_kind,
        value.declare_value,
    ),
    *_rows(
        "shape",
        value.change_dimension,
        value.symbolic_dimension,
        value.unknown_dimension,
        value.forget_shape,
        value.change_rank,
        value.shape_of_results,
    ),
    *_rows(
        "graph",
        graph.drop_output,
        graph.duplicate_output,
        graph.untyped_output,
        graph.output_of_any_value,
        graph.drop_input,
        graph.duplicate_input,
        graph.change_body,
        graph.nest_body,
        graph.empty_graph,
        graph.rename_graph,
        graph.annotate,
        graph.recursive_function,
        graph.function_bomb,
        graph.change_function,
        graph.duplicate_function,
        graph.overload_function,
        graph.change_opset,
        graph.change_imports,
        graph.change_ir_version,
    ),
    *_rows(
        "tensor",
        value.change_tensor_dtype,
        value.change_tensor_dims,
        value.change_raw_length,
        value.second_storage,
        value.typed_storage,
        value.extreme_values,
        value.scale_values,
        value.duplicate_initializer,
        value.drop_initializer,
        value.rename_initializer,
        value.initializer_as_input,
        value.sparse_initializer,
        value.segment,
        value.make_external,
        value.change_external,
        value.drop_external_entry,
        value.external_without_location,
        value.cut_data_file,
    ),
    *_rows("string", graph.strange_name, graph.strange_operator, graph.not_utf8),
    *_rows(
        "byte",
        graph.flip_bits,
        graph.set_byte,
        graph.truncate,
        graph.splice,
        graph.delete_bytes,
        graph.other_file,
    ),
)
"""Every mutation, one row each."""

_BY_LEVEL = {level: [row for row in MUTATIONS if row.level == level] for level in LEVELS}


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """One mutant: everything that a run of it depends on, but its options.

    Attributes:
        seed: name of the seed model.
        steps: the mutations, as (name, position in the draw). Each has a source of random numbers of its own, so that
            one can be left out without changing the others.
        level: the class of the first one.
        data: the file.
        files: data files beside it.
    """

    seed: str
    steps: tuple[tuple[str, int], ...]
    level: str
    data: bytes
    files: dict[str, bytes]


def source_of_random(run: int, index: int, part: str) -> random.Random:
    """Return the random numbers of one part of one mutant: they depend on these three things alone."""
    return random.Random(f"{run}/{index}/{part}")  # noqa: S311  (fuzzing keeps no secrets)


def draw(run: int, index: int, seeds: Sequence[Seed], without: Collection[int] = ()) -> Drawn:
    """Make mutant `index` of a run.

    Args:
        run: the seed of the whole run.
        index: the number of the mutant.
        seeds: the models to start from.
        without: positions of mutations to leave out.
    """
    random_ = source_of_random(run, index, "model")
    main = random_.choices(LEVELS, _WEIGHTS)[0]
    row = random_.choice(_BY_LEVEL[main])
    others = [random_.choices(LEVELS, _WEIGHTS)[0] for _ in range(random_.choice(_COUNTS) - 1)]
    seed = _seed_for(row, seeds, random_, source_of_random(run, index, "0").getstate())
    mutant = Mutant(seed.model(), dict(seed.files))
    steps: list[tuple[str, int]] = []
    written = False
    # Bytes come last: they are changed once the message is written.
    plan = sorted(enumerate([main, *others]), key=lambda item: item[1] == "byte")
    for position, level in plan:
        if position in without:
            continue
        if level == "byte" and not written:
            mutant.serialize()
            written = True
        name = _step(mutant, [row] if not position else _BY_LEVEL[level], source_of_random(run, index, str(position)))
        if name:
            steps.append((name, position))
    if not written:
        mutant.serialize()
    return Drawn(seed.name, tuple(steps), main, mutant.data, mutant.files)


def _seed_for(row: Mutation, seeds: Sequence[Seed], random_: random.Random, state: tuple[Any, ...]) -> Seed:
    """Draw a seed that has something for the first mutation to change."""
    seed = seeds[random_.randrange(len(seeds))]
    for _ in range(_SEED_TRIES):
        mutant, trial = Mutant(seed.model(), dict(seed.files)), random.Random()  # noqa: S311  (no secrets)
        trial.setstate(state)
        if row.level == "byte" or _step(mutant, [row], trial):
            return seed
        seed = seeds[random_.randrange(len(seeds))]
    return seed


def _step(mutant: Mutant, rows: Sequence[Mutation], random_: random.Random) -> str:
    """Apply one of several mutations; try others if it finds nothing to change."""
    for _ in range(_TRIES):
        row = random_.choice(rows)
        try:
            row.apply(mutant, random_)
        except (NotApplicable, ProtobufError):  # a message nested deeper than protobuf reads
            continue
        return row.name
    return ""
