"""Defines `Layer`: a network as an object that makes its parameters once and whose call appends operators."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from amp_transpiler.errors import InputError, OptionError
from amp_transpiler.graph.dtypes import parse_dtype
from amp_transpiler.paddle.argument_checks import check_arguments
from amp_transpiler.paddle.framework.parameters import ParameterMaker
from amp_transpiler.paddle.framework.refusals import refusal
from amp_transpiler.paddle.initial_values import Constant, Initializer, XavierUniform
from amp_transpiler.paddle.nn.layer.types import give_type
from amp_transpiler.paddle.nn.layer.values import layer_values, set_layer_values
from amp_transpiler.paddle.param_attr import Attr, ParamAttr
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.program.program import Variable
from amp_transpiler.runtime.scope import Scope

__all__ = ["HookRemover", "Layer", "Module", "Parameter"]

_STORES = ("_parameters", "_sub_layers", "_buffers")
Hook = Callable[..., Any]


class HookRemover:
    """Removes a hook; registering one returns this.

    Args:
        hooks: the hooks that it is one of.
        key: its key.
    """

    def __init__(self, hooks: dict[int, Hook], key: int) -> None:
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Take the hook away; nothing happens if it is gone."""
        self._hooks.pop(self._key, None)


class Layer:
    """A part of a network: parameters, sublayers, and `forward`, which a subclass defines.

    Attributes that are parameters (`create_parameter`) or layers are found by `parameters`, `sublayers`, `state_dict`
    and their like. Parameters belong to the program that is current when the layer is made; call it while building that
    program.

    Args:
        name_scope: the first part of its parameters' names; the class's name in snake case unless given.
        dtype: element type of its parameters.

    Attributes:
        training: whether Dropout and BatchNormalization are built for training; `train` and `eval` set it. It counts
            while a program is built: `program.clone(for_test=True)` switches one that is built already.
    """

    training: bool
    _parameters: OrderedDict[str, Variable | None]
    _sub_layers: OrderedDict[str, Any]
    _buffers: OrderedDict[str, Variable | None]
    _pre_hooks: dict[int, Hook]
    _post_hooks: dict[int, Hook]
    _kept_buffers: set[str]
    stays_wide: ClassVar[bool] = False  # whether float16() and bfloat16() leave its parameters alone

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32") -> None:
        self.__dict__.update({store: OrderedDict() for store in _STORES})
        self.__dict__.update(_pre_hooks={}, _post_hooks={}, _kept_buffers=set())
        self.training = True
        self._dtype = parse_dtype("float32" if dtype is None else dtype)
        self._full_name = unique_name.generate(_snake_case(name_scope or type(self).__name__))

    # What a subclass defines, and how it is called.

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Append the layer's operators; defined by subclasses."""
        del inputs, kwargs
        raise NotImplementedError(f"{type(self).__name__} has no forward: define it")

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the hooks and `forward`."""
        for hook in list(self._pre_hooks.values()):
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **kwargs)
        for hook in list(self._post_hooks.values()):
            changed = hook(self, inputs, outputs)
            if changed is not None:
                outputs = changed
        return outputs

    def register_forward_pre_hook(self, hook: Hook) -> HookRemover:
        """Call `hook(layer, inputs)` before `forward`; what it returns, if anything, replaces the inputs."""
        return _registered(self._pre_hooks, hook)

    def register_forward_post_hook(self, hook: Hook) -> HookRemover:
        """Call `hook(layer, inputs, outputs)` after `forward`; what it returns, if anything, replaces the outputs."""
        return _registered(self._post_hooks, hook)

    def train(self) -> Self:
        """Build for training from now on, in this layer and all below it."""
        return self._set_training(True)

    def eval(self) -> Self:
        """Build for inference from now on, in this layer and all below it."""
        return self._set_training(False)

    def _set_training(self, training: bool) -> Self:
        for layer in self.sublayers(include_self=True):
            layer.training = training
        return self

    def apply(self, fn: Callable[[Layer], object]) -> Self:
        """Call a function with every layer below this one, and with this one last."""
        for layer in self.children():
            layer.apply(fn)
        fn(self)
        return self

    # Parameters.

    def create_parameter(
        self,
        shape: Sequence[int],
        attr: Attr = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Initializer | None = None,
    ) -> Variable | None:
        """Return a new parameter named after the layer, to be kept as an attribute; None where `attr` is False.

        Args:
            shape: its dimensions.
            attr: its treatment.
            dtype: its element type; the layer's unless given.
            is_bias: whether it starts at 0 and is named `.b_0`.
            default_initializer: its initial value where `attr` gives none; Xavier's uniform one unless given.
        """
        parsed = ParamAttr.parse(attr)
        if parsed is None:
            return None
        initial = default_initializer or (Constant(0.0) if is_bias else XavierUniform())
        element = self._dtype if dtype is None else parse_dtype(dtype)
        return self._maker().create(parsed, "b" if is_bias else "w", [int(size) for size in shape], element, initial)

    def _maker(self) -> ParameterMaker:
        return ParameterMaker(self._full_name, self._full_name)

    def _weight(self, shape: Sequence[int], attr: Attr, default: Initializer | None = None) -> Variable:
        """Return a parameter that the layer cannot do without."""
        weight = self.create_parameter(shape, attr, default_initializer=default)
        if weight is None:
            raise OptionError(f"{type(self).__name__} needs its weight: give None or a ParamAttr, not False")
        return weight

    def _statistic(self, attribute: str, name: str | None, size: int, initial: float) -> Variable:
        """Return a vector that the forward pass keeps, as a buffer."""
        buffer = self._maker().statistic(name, size, initial)
        self.register_buffer(attribute, buffer)
        return buffer

    def add_parameter(self, name: str, parameter: Variable | None) -> Variable | None:
        """Register a parameter as the attribute `name`.

        Raises:
            InputError: it is no parameter of a program, or the name is taken.
        """
        if parameter is not None and not _is_parameter(parameter):
            raise InputError(f"add_parameter: '{name}' must be a parameter (create_parameter), got {parameter!r}")
        self._check_free(name, "_parameters")
        self._parameters[name] = parameter
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Register a layer as the attribute `name`.

        Raises:
            InputError: it is no layer, or the name is taken.
        """
        if not isinstance(sublayer, Layer):
            raise InputError(f"add_sublayer: '{name}' must be a Layer, got {sublayer!r}")
        self._check_free(str(name), "_sub_layers")
        self._sub_layers[str(name)] = sublayer
        return sublayer

    def register_buffer(self, name: str, tensor: Variable | None, persistable: bool = True) -> None:
        """Register a variable that is no parameter as the attribute `name`; `state_dict` has it if it is persistable.

        Raises:
            InputError: it is no variable, or the name is taken.
        """
        if tensor is not None and not isinstance(tensor, Variable):
            raise InputError(f"register_buffer: '{name}' must be a variable of a program, got {tensor!r}")
        self._check_free(name, "_buffers")
        self._buffers[name] = tensor
        (self._kept_buffers.add if persistable else self._kept_buffers.discard)(name)

    def _check_free(self, name: str, store: str) -> None:
        if "." in name or not name:
            raise InputError(f"{type(self).__name__}: {name!r} cannot be an attribute: give a name without a dot")
        if hasattr(self, name) and name not in self.__dict__[store]:
            raise InputError(f"{type(self).__name__} has an attribute '{name}' already: choose another name")

    # Attributes.

    def __setattr__(self, name: str, value: Any) -> None:
        store = _store_of(value)
        if "_parameters" not in self.__dict__:
            if store is not None:
                raise RuntimeError(f"{type(self).__name__}: call super().__init__() before setting '{name}'")
            object.__setattr__(self, name, value)
            return
        if store is None and isinstance(value, Variable) and name in self._buffers:
            store = "_buffers"
        for other in _STORES:
            if other != store and (store is not None or value is not None):
                self.__dict__[other].pop(name, None)
            elif store is None and name in self.__dict__[other]:  # None keeps the place
                self.__dict__[other][name] = None
                return
        if store is None:
            object.__setattr__(self, name, value)
            return
        self.__dict__.pop(name, None)
        self.__dict__[store][name] = value

    def __getattr__(self, name: str) -> Any:
        for store in _STORES:
            if name in (members := self.__dict__.get(store, ())):
                return members[name]
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        for store in _STORES:
            if name in self.__dict__[store]:
                del self.__dict__[store][name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for store in _STORES for name in self.__dict__[store])})

    # Walks.

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, layers_set: set[int] | None = None
    ) -> Iterator[tuple[str, Layer]]:
        """Yield (dotted name, layer) of everything below, each layer once."""
        seen: set[int] = set() if layers_set is None else layers_set
        if include_self and id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
        for name, layer in self.named_children():
            yield from layer.named_sublayers(f"{prefix}.{name}" if prefix else name, True, seen)

    def sublayers(self, include_self: bool = False) -> list[Layer]:
        """Return all layers below, each once."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def named_children(self) -> Iterator[tuple[str, Layer]]:
        """Yield (name, layer) of the layers that are attributes."""
        for name, layer in self._sub_layers.items():
            if layer is not None:
                yield name, layer

    def children(self) -> Iterator[Layer]:
        """Yield the layers that are attributes."""
        return (layer for _, layer in self.named_children())

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Variable]]:
        """Yield (dotted name, parameter), each parameter once."""
        return self._named("_parameters", prefix, include_sublayers)

    def parameters(self, include_sublayers: bool = True) -> list[Variable]:
        """Return the parameters, each once."""
        return [parameter for _, parameter in self.named_parameters(include_sublayers=include_sublayers)]

    def named_buffers(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Variable]]:
        """Yield (dotted name, buffer), each buffer once."""
        return self._named("_buffers", prefix, include_sublayers)

    def buffers(self, include_sublayers: bool = True) -> list[Variable]:
        """Return the buffers, each once."""
        return [buffer for _, buffer in self.named_buffers(include_sublayers=include_sublayers)]

    def _named(self, store: str, prefix: str, deep: bool) -> Iterator[tuple[str, Variable]]:
        layers = self.named_sublayers(prefix, include_self=True) if deep else iter([(prefix, self)])
        seen: set[str] = set()
        for path, layer in layers:
            for name, variable in layer.__dict__[store].items():
                if variable is not None and variable.name not in seen:
                    seen.add(variable.name)
                    yield (f"{path}.{name}" if path else name), variable

    # State.

    def state_dict(
        self,
        destination: dict[str, Variable] | None = None,
        include_sublayers: bool = True,
        structured_name_prefix: str = "",
        use_hook: bool = True,
    ) -> dict[str, Variable]:
        """Return the parameters and persistable buffers by dotted name: variables, as in Paddle's static mode.

        Their arrays, which a scope holds, are what `state_values` returns.

        Args:
            destination: a dictionary to add them to.
            include_sublayers: whether the layers below are asked too.
            structured_name_prefix: put before each name.
            use_hook: Paddle's, no effect.
        """
        del use_hook
        state = OrderedDict() if destination is None else destination
        layers = self.named_sublayers(include_self=True) if include_sublayers else iter([("", self)])
        for path, layer in layers:
            buffers = [item for item in layer._buffers.items() if item[0] in layer._kept_buffers]  # noqa: SLF001  # its own class
            for name, variable in (*layer._parameters.items(), *buffers):  # noqa: SLF001  # see above
                if variable is not None and variable.persistable:
                    state[structured_name_prefix + (f"{path}.{name}" if path else name)] = variable
        return state

    to_static_state_dict = state_dict

    def state_values(self, scope: Scope | None = None) -> dict[str, np.ndarray]:
        """Return the arrays of `state_dict`, which the scope (the global one unless given) holds.

        Raises:
            InputError: the startup program has not run in the scope.
        """
        return layer_values(self.state_dict(), scope)

    def set_state_dict(
        self, state_dict: Mapping[str, Any], use_structured_name: bool = True, scope: Scope | None = None
    ) -> tuple[list[str], list[str]]:
        """Set parameters and buffers; run the startup program before, which would set them again.

        Args:
            state_dict: name -> array; values of another width are converted.
            use_structured_name: whether the names are dotted names of attributes, or those of the program.
            scope: where the values go; the global scope unless given.

        Returns:
            Names that `state_dict` lacks, and names of it that the layer does not have.

        Raises:
            InputError: a value has another shape, or the startup program has not run in the scope; nothing is set.
        """
        by_attribute = self.state_dict()
        variables = (
            by_attribute if use_structured_name else {variable.name: variable for variable in by_attribute.values()}
        )
        set_layer_values({name: (variables[name], state_dict[name]) for name in variables if name in state_dict}, scope)
        return [name for name in variables if name not in state_dict], [n for n in state_dict if n not in variables]

    set_dict = load_dict = set_state_dict

    # What has no meaning in a static program.

    def backward(self, *inputs: Any) -> None:
        """Refused: gradients come from `optimizer.minimize` or `static.append_backward`."""
        del inputs
        raise RuntimeError(
            f"{type(self).__name__}.backward: there is no eager mode; optimizer.minimize(loss) or "
            "static.append_backward(loss) append the backward pass"
        )

    def clear_gradients(self) -> None:
        """Do nothing: in a program gradients are not kept from run to run."""

    def to(self, device: Any = None, dtype: Any = None, blocking: bool | None = None) -> Self:
        """Return the layer, with the type that is given, if one is; the place of an Executor decides the device.

        Raises:
            OptionError: the program reads a parameter already.
        """
        del device, blocking
        if dtype is not None:
            give_type(self, "to", dtype, ())
        return self

    def astype(self, dtype: Any) -> Self:
        """Give parameters and buffers of floats another type, before the program reads them; return the layer."""
        give_type(self, "astype", dtype, ())
        return self

    def float(self, excluded_layers: type[Layer] | Sequence[type[Layer]] | None = None) -> Self:
        """Make parameters and buffers float32, but those of layers of the classes that are given; see `astype`."""
        give_type(self, "float", "float32", () if excluded_layers is None else excluded_layers)
        return self

    def float16(self, excluded_layers: type[Layer] | Sequence[type[Layer]] | None = None) -> Self:
        """Make parameters and buffers float16, but those of the classes given, or of BatchNorm layers; see `astype`."""
        give_type(self, "float16", "float16", excluded_layers)
        return self

    def bfloat16(self, excluded_layers: type[Layer] | Sequence[type[Layer]] | None = None) -> Self:
        """Make parameters and buffers bfloat16, as `float16` does."""
        give_type(self, "bfloat16", "bfloat16", excluded_layers)
        return self

    # Words.

    def full_name(self) -> str:
        """Return the first part of its parameters' names, such as `linear_0`."""
        return self._full_name

    def extra_repr(self) -> str:
        """Return what stands in the brackets of its text; for subclasses."""
        return ""

    def __repr__(self) -> str:
        inner = [f"({name}): {layer!r}".replace("\n", "\n  ") for name, layer in self.named_children()]
        head = [self.extra_repr()] if self.extra_repr() else []
        if not inner:
            return f"{type(self).__name__}({', '.join(head)})"
        return f"{type(self).__name__}({', '.join(head)}\n  " + "\n  ".join(inner) + "\n)"


def _registered(hooks: dict[int, Hook], hook: Hook) -> HookRemover:
    key = max(hooks, default=-1) + 1
    hooks[key] = hook
    return HookRemover(hooks, key)


def _is_parameter(value: Variable) -> bool:
    return value.info is not None and value.info.kind == "parameter"


def _store_of(value: Any) -> str | None:
    if isinstance(value, Layer):
        return "_sub_layers"
    return "_parameters" if isinstance(value, Variable) and _is_parameter(value) else None


def _snake_case(name: str) -> str:
    """Return `conv2d_transpose` for `Conv2DTranspose`, as Paddle does."""
    parted = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", parted).lower()


Module = Layer
Parameter = refusal(
    "nn.Parameter", "a parameter belongs to a program. Make it with layer.create_parameter or static.create_parameter"
)


check_arguments(globals(), __all__)
