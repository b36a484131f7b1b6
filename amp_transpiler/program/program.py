"""`Program`, an ONNX model being edited, with the state of a training program; `Variable`, a handle on a value."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from amp_transpiler.errors import InputError, ModelError, innermost_text
from amp_transpiler.garbage import collection_paused
from amp_transpiler.graph.name_matching import did_you_mean
from amp_transpiler.graph.names import values_by_name
from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.roles import Role
from amp_transpiler.graph.shape_inference import add_shapes
from amp_transpiler.graph.training_step import TrainingStep
from amp_transpiler.program.assemble import assemble, with_algorithms, with_values, written_model
from amp_transpiler.program.hooks import static_program
from amp_transpiler.program.static_program import StaticProgram
from amp_transpiler.program.variable_operators import VariableOperators
from amp_transpiler.program.variable_properties import Persistable

if TYPE_CHECKING:
    from amp_transpiler.graph.builder import GraphBuilder
    from amp_transpiler.program.builder import ProgramBuilder
    from amp_transpiler.program.training_info import Merged
    from amp_transpiler.view.outline import Outline

__all__ = ["TRAINING_IR", "TRAINING_OPSET", "Persistable", "Program", "Variable", "install"]

TRAINING_OPSET = 21  # the last with CUDA kernels for MaxPool and Dropout; bfloat16 programs are raised by `decorate`
TRAINING_IR = 10
_PRINTED = 200  # lines of each part of a printed program


class Attachment(Protocol):
    """What a layer above notes of a program."""

    def of_copy(self) -> Attachment:
        """Return what is noted of a copy of the program."""


class Program(StaticProgram):
    """An ONNX model being edited.

    A loaded model contains its weights. In a training program, parameters and other persistable values are graph inputs
    whose values are in a scope; `updates` names the value of the graph that replaces each after a run.

    Args:
        model: the model; an empty one unless given.
        source: the file it was loaded from.

    Attributes:
        source_bytes: returns the size of the files or the message that it was loaded from; None if there is neither.
        model: the `onnx_ir` model; weights of a loaded file stay memory-mapped until they are saved.
        notes: remarks of the passes that prepared it, for the report.
        persistables: values that persist in a scope, by name.
        updates: persistable name -> name of the value that replaces it after a run.
        outputs: names of the outputs of `to_onnx`, besides the updates: losses, and the outputs of a loaded model.
        no_gradient: names of values that no gradient passes through.
        widened: names of the source's 16-bit formats that were made float32, for a conversion to another.
        step: the state of a training step that was found in a loaded model, or None.
        training_info: the training algorithms that the model carries beside its graph.
        merged: how to take the graph apart again, while the algorithms are part of it.
        before: the graph before its last conversion, without weights, to be drawn.
        is_built: whether it began empty, and not as a loaded model.
        random_seed: determines initial values and Dropout masks; 0 for that of `amp_transpiler.seed`.
        attached: what layers above note of the program, by its class, such as Paddle's `BuildRecord`.
        version: grows with every edit.
        used_names: names that builders do not give to new values: those of values that are gone are among them.
    """

    def __init__(self, model: ir.Model | None = None, source: pathlib.Path | None = None) -> None:
        self.model: ir.Model = model if model is not None else _empty_model()
        self.source = source
        self.source_bytes: Callable[[], int] | None = None
        self.notes: list[str] = []
        self.persistables: dict[str, Persistable] = {}
        self.updates: dict[str, str] = {}
        self.outputs: list[str] = []
        self.no_gradient: set[str] = set()
        self.widened: frozenset[str] = frozenset()
        self.step: TrainingStep | None = None
        self.training_info: tuple[onnx.TrainingInfoProto, ...] = ()
        self.merged: Merged | None = None
        self.before: Outline | None = None
        self.random_seed: int = 0
        self.attached: dict[type[Any], Attachment] = {}
        self.is_built: bool = model is None
        self.version: int = 0
        self._values: dict[str, ir.Value] | None = None
        self._builders: dict[Role, ProgramBuilder] = {}
        self.used_names: set[str] = set()
        self._family = object()  # shared by a program and its clones
        self._births: dict[str, int] = {}  # name of a value that was built -> its number in this process
        self._inner: dict[str, ir.Value] | None = None  # values of the body that is being built
        self._constants: dict[tuple[Any, ...], str] = {}  # of a clone: what the original's builders share

    def __repr__(self) -> str:
        origin = self.source or self.model.graph.name or "in memory"
        return f"Program({str(origin)!r}, {self.model.graph.num_nodes()} nodes)"

    def __str__(self) -> str:
        return self.to_text(_PRINTED)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:  # noqa: ARG002  # Paddle's
        """Return the program as text, all of it with `with_details`; see `to_text`."""
        return self.to_text(None if with_details else _PRINTED)

    def to_text(self, limit: int | None = None) -> str:
        """Return the program as text: values with types and shapes, nodes with precision, casts, regions and roles.

        Args:
            limit: the most lines of each part, such as nodes or constants; None for all. `print(program)` shows 200.
        """
        from amp_transpiler.view.text import program_text

        return program_text(self, limit)

    def outline(self) -> Outline:
        """Return the graph without its weights, for drawings."""
        from amp_transpiler.view.outline import outline, typed

        return outline(typed(self.model).graph, self.persistables, self.outputs)

    def draw(
        self,
        path: str | os.PathLike[str],
        before: Program | None = None,
        *,
        whole: bool = False,
        limit: int | None = 1000,
    ) -> None:
        """Draw the graph before and after its last conversion side by side; only the graph if it was not converted.

        Low nodes, float32 nodes and casts have colours of their own; what a region keeps is dashed. graphviz draws if
        it is installed.

        Args:
            path: the file to write: `.svg`, or `.dot` for graphviz's language.
            before: another program to draw on the left.
            whole: with the backward pass and the optimizer of a training step; else its forward pass.
            limit: the most nodes of each graph: the first ones are drawn. None for all.

        Raises:
            OptionError: the file has another ending.
            OutputError: it cannot be written.
        """
        from amp_transpiler.view.draw import draw

        left = self.before if before is None else before.outline()
        draw(path, left, self.outline(), whole=whole, limit=limit)

    def _repr_html_(self) -> str:
        from amp_transpiler.view.draw import notebook_view

        return notebook_view(self.before, self.outline(), str(self))

    @property
    def is_training(self) -> bool:
        """Whether it has values in a scope."""
        return bool(self.persistables or self.updates)

    @property
    def origin(self) -> Program | pathlib.Path:
        """The file that it was loaded from, if that is all of it; else the program itself."""
        return self if self.source is None or self.merged is not None else self.source

    @property
    def has_variables(self) -> bool:
        """Whether a `Variable` may refer to any of its values.

        So no pass removes a value of such a program that no pass had inserted, and no name is used again.
        """
        return self.is_built or self.is_training

    def touch(self) -> None:
        """Drop everything cached about the graph, after it was edited from outside."""
        self.version += 1
        self._values = None
        for builder in itertools.islice(self._builders.values(), 1):  # all share their names
            self.used_names.update(builder.names.taken)
        self._builders.clear()

    def find(self, name: str) -> ir.Value | None:
        """Return the value of the main graph with this name, or None."""
        if self._values is None:
            self._values = values_by_name(self.model.graph)
        return self._values.get(name) or (self._inner or {}).get(name)

    def value(self, name: str) -> ir.Value:
        """Return the value of the main graph with this name.

        Raises:
            InputError: there is none.
        """
        graph_value = self.find(name)
        if graph_value is None:
            assert self._values is not None  # filled by `find`
            raise InputError(f"there is no variable {name!r}{did_you_mean(name, self._values)} in {self!r}")
        return graph_value

    def var(self, name: str) -> Variable:
        """Return a handle on the value with this name.

        Raises:
            InputError: there is none.
        """
        self.value(name)
        return Variable(self, name)

    def has_var(self, name: str) -> bool:
        """Return whether the main graph has a variable of this name."""
        return self.find(name) is not None

    def name_of(self, variable: Variable | str) -> str:
        """Return the name by which this program knows a variable, be it its own, another program's or a name.

        Raises:
            InputError: the variable is of a program that has a common origin with this one, and was built after the two
                were copied from each other; so what has its name here is something else.
        """
        if isinstance(variable, str):
            return variable
        name, other, counterpart = variable.name, variable.program, self.find(variable.name)
        related = self._family is other._family and counterpart is not None and counterpart.producer() is not None  # noqa: SLF001  # its own class
        if related and self._births.get(name) != other._births.get(name):  # noqa: SLF001  # see above
            raise InputError(
                f"'{name}' is a variable of {other!r}; what {self!r} calls '{name}' was built independently, after one "
                "was cloned from the other: use a variable of the program itself, or clone after building"
            )
        return name

    def list_vars(self) -> list[Variable]:
        """Return every variable of the main graph."""
        self.find("")
        assert self._values is not None
        return [self.var(name) for name in self._values]

    @property
    def vars(self) -> dict[str, Variable]:
        """Name -> variable of the main graph."""
        return {variable.name: variable for variable in self.list_vars()}

    def all_parameters(self) -> list[Variable]:
        """Return the parameters, in order of creation."""
        return [self.var(p.name) for p in self.persistables.values() if p.kind == "parameter"]

    def builder(self, role: Role = "forward") -> GraphBuilder:
        """Return the builder that appends to the main graph and marks nodes with `role` and the current regions."""
        builder = self._builders.get(role)
        if builder is None:
            from amp_transpiler.program.builder import ProgramBuilder  # here: only who builds a program needs it

            first = next(iter(self._builders.values()), None)
            builder = self._builders[role] = ProgramBuilder(self, role, first)
        return builder

    @contextlib.contextmanager
    def inside(self, graph: ir.Graph) -> Iterator[None]:
        """Append to a body of control flow in this context; its values are variables as long."""
        outer, self._inner = self._inner, dict(self._inner or {})
        try:
            with self.builder().inside(graph):
                yield
        finally:
            self._inner = outer

    def found_inside(self, values: Iterable[ir.Value]) -> None:
        """Let values of the body that is being built be found by name."""
        if self._inner is not None:
            self._inner.update((str(value.name), value) for value in values)

    def add_input(self, name: str, dtype: ir.DataType, shape: Iterable[int | str | None]) -> ir.Value:
        """Add a graph input.

        Raises:
            InputError: the name is taken.
        """
        from amp_transpiler.graph.lines import line_of, mark_line  # here: only who builds a program needs it

        if self.find(name) is not None:
            line = line_of(self.value(name))
            where = "" if line is None else f" (made at {line})"
            raise InputError(f"the program already has a variable {name!r}{where}: choose another name")
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(list(shape)))
        mark_line(value)
        self.model.graph.inputs.append(value)
        self.builder().names.fresh(name)
        self.remember(value)
        return value

    def add_persistable(self, persistable: Persistable, dtype: ir.DataType, shape: Iterable[int]) -> ir.Value:
        """Add a value that persists in the scope, or return the existing one with this name.

        Raises:
            InputError: the existing one has another element type or shape.
        """
        wanted = list(shape)
        if persistable.name in self.persistables:
            existing = self.value(persistable.name)
            if existing.dtype != dtype or list(existing.shape or ()) != wanted:
                raise InputError(
                    f"'{persistable.name}' is {existing.dtype} {existing.shape} in this program already, "
                    f"and is now added as {dtype} {wanted}: give it another name"
                )
            return existing
        self.persistables[persistable.name] = persistable
        return self.add_input(persistable.name, dtype, wanted)

    def remember(self, value: ir.Value) -> None:
        """Register a value that was just added."""
        self.version += 1
        if value.name:
            self._births[value.name] = next(_birth_numbers)
            if self._values is not None:
                self._values[value.name] = value

    # Copies and export.

    @collection_paused()
    def clone(self, for_test: bool = False) -> Program:
        """Return an independent copy. It shares the weights, which are never changed in place.

        Args:
            for_test: remove the backward pass and the optimizer, and switch BatchNormalization and Dropout to
                inference. Persistable values keep their names, so both programs share them through the scope.

        Raises:
            ModelError: a node reads a value that is not computed before it in its own body, but has a namesake outside.
        """
        try:
            model = self.model.clone()
        except RuntimeError as error:  # onnx_ir's cloner goes through the nodes in their order
            raise ModelError(f"{self.source or 'the model'}: the model is invalid: {innermost_text(error)}") from error
        copy = Program(model, self.source)
        copy.notes = list(self.notes)
        copy.persistables = {name: dataclasses.replace(p) for name, p in self.persistables.items()}
        copy.updates = dict(self.updates)
        copy.outputs = list(self.outputs)
        copy.no_gradient = set(self.no_gradient)
        copy.attached = {kind: attachment.of_copy() for kind, attachment in self.attached.items()}
        shared = ("source_bytes", "widened", "step", "training_info", "merged", "before", "random_seed", "is_built")
        for name in shared:
            setattr(copy, name, getattr(self, name))
        copy.used_names = set(self.used_names)
        copy._family, copy._births = self._family, dict(self._births)
        for builder in self._builders.values():
            copy.used_names.update(builder.names.taken)
            copy._constants = {key: str(value.name) for key, value in builder.constants.items()}
        if for_test:
            static_program().keep_only_inference(copy)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        copy = memo[id(self)] = self.clone()  # deepcopy would go from node to node, as deep as the program is long
        return copy

    def become(self, earlier: Program) -> None:
        """Go back to an earlier state.

        Args:
            earlier: a clone made then; it must not be used afterwards.
        """
        install(self.model, earlier.model)
        own_attributes = {"model", "version", "_values", "_builders"}
        self._builders.clear()  # the names that they gave away since are free again
        self.touch()
        vars(self).update({name: value for name, value in vars(earlier).items() if name not in own_attributes})
        if earlier._constants:
            self.builder().constants.update({key: self.value(name) for key, name in earlier._constants.items()})

    def to_onnx(self, scope: Mapping[str, np.ndarray] | None = None) -> onnx.ModelProto:
        """Return the program as a protobuf message, with every shape that is known or can be inferred.

        Its outputs are those of `outputs`, or a loaded model's own if that is empty.

        Args:
            scope: values of persistables, which become initializers; None: persistables are graph inputs, and their
                updates are outputs. A loaded program always contains its weights.

        Raises:
            InputError: `outputs` names no value of the program, or a program that was built has no outputs.
            ModelError: gradients wait for sizes that the program leaves free.
        """
        if not self.is_training:
            return with_algorithms(add_shapes(to_proto(written_model(self))), self)
        from amp_transpiler.graph.deferred_nodes import refuse_waiting  # here: only a training program needs it

        if scope is None:
            refuse_waiting(self.model, repr(self))
            return add_shapes(to_proto(written_model(self)))
        assembled = assemble(self, self.outputs, updates=False)
        refuse_waiting(assembled.model, repr(self))
        with_values(assembled.model, self, scope)
        return add_shapes(to_proto(assembled.model))


_birth_numbers = itertools.count()


class Variable(VariableOperators):
    """A handle on a value of a program, by name, so that it stays valid when passes edit the graph.

    Arithmetic (`+ - * / ** @`, unary minus) and comparisons (`== != < <= > >=`) with other variables, numbers and numpy
    arrays append operators to the program; comparisons make bool variables. So two handles are told apart by `is` or by
    their names, and a handle has no truth value. It is hashed by identity.
    """

    program: Program

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        self.name = name

    def __repr__(self) -> str:
        if self.program.find(self.name) is None:  # made in a call that failed, for one
            return f"Variable({self.name!r}, no longer in {self.program!r})"
        return f"Variable({self.name!r}, {self.dtype}, {list(self.shape)})"


def _empty_model() -> ir.Model:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": TRAINING_OPSET}, name="program")
    return ir.Model(graph, ir_version=TRAINING_IR, producer_name="amp_transpiler")


def install(target: ir.Model, content: ir.Model) -> None:
    """Move graph, functions, versions and metadata of `content` to `target`; `content` must not be used afterwards."""
    target.graph = content.graph
    target.functions.clear()
    target.functions.update(content.functions)
    target.ir_version = content.ir_version
    target.metadata_props.clear()
    target.metadata_props.update(content.metadata_props)
