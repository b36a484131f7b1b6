"""A pass for workflows of Olive (`olive-ai`): AmpTranspile, with the options of `amp_transpiler.transpile`.

Olive finds passes by its package configuration, which must list this one: `olive_run` does that, and
`write_package_config` makes the file for `olive run --package-config`.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any, ClassVar, Union

from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.onnx.common import get_external_data_config, model_proto_to_olive_model
from olive.passes.pass_config import PassConfigParam
from olive.workflows import run

from amp_transpiler.compat.arguments import converted
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import declarations
from amp_transpiler.precision.user_lists import UserLists

__all__ = ["AmpTranspile", "olive_run", "package_config", "write_package_config"]

# Form of a value in JSON -> its type, which pydantic reads.
_TYPE_OF_FORM: dict[str, Any] = {
    "text": str,
    "word": str,
    "flag": bool,
    "count": int,
    "number": float,
    "list": list[str],
    "table": dict[str, str],
    "counts": dict[str, int],
    "limits": dict[str, Union[float, str]],  # noqa: UP007  as below
}
_OF_TRAINING = ("state", "master_weights", "loss_scaling")  # no step of training goes through Olive


def _types() -> dict[str, Any]:
    """Return the options of `transpile` that a JSON file can hold, with their types; lists have names of their own."""
    declared = declarations(ConversionOptions).items()
    return {
        name: Union[tuple(_TYPE_OF_FORM[form] for form in declaration.held_as)]  # noqa: UP007  the types are data
        for name, declaration in declared
        if declaration.held_as and declaration.held_as != ("lists",) and name not in _OF_TRAINING
    }


_TYPES = _types()
_LISTS = {
    "white": ("custom_white_list", "Operators that run in lower precision wherever they can."),
    "black": ("custom_black_list", "Operators that stay in float32."),
    "black_var": ("black_varnames", "Values whose readers and writers stay in float32."),
}


class AmpTranspile(Pass):  # type: ignore[misc]  # olive is not there for the type checker
    """Converts an ONNX model to mixed precision, and checks the result against float32."""

    _accepts_composite_model: ClassVar[bool] = False

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, Any]:
        declared = declarations(ConversionOptions)
        config = {
            name: PassConfigParam(
                type_=type_,
                default_value=_plain(declared[name].default),
                description=declared[name].options[0].python or declared[name].options[0].text,
            )
            for name, type_ in _TYPES.items()
        }
        for name, (_, text) in _LISTS.items():
            config[name] = PassConfigParam(type_=list[str], default_value=None, description=text)
        return {**config, **get_external_data_config()}

    def _run_for_config(self, model: Any, config: Any, output_model_path: str) -> Any:
        settings = config.model_dump()
        options = {name: settings[name] for name in _TYPES if settings[name] is not None}
        if named := {field: frozenset(settings[name]) for name, (field, _) in _LISTS.items() if settings[name]}:
            options["amp_lists"] = UserLists(**named)
        program, _ = converted("AmpTranspile", model.model_path, options, {})
        path = resolve_onnx_path(output_model_path, pathlib.Path(model.model_path).name)
        result: ONNXModelHandler = model_proto_to_olive_model(program.to_onnx(), path, config)
        return result


def package_config() -> dict[str, Any]:
    """Return Olive's package configuration with AmpTranspile among its passes."""
    config: dict[str, Any] = json.loads(pathlib.Path(OlivePackageConfig.get_default_config_path()).read_text("utf-8"))
    config["passes"]["AmpTranspile"] = {
        "module_path": f"{AmpTranspile.__module__}.AmpTranspile",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["fp16", "bf16"],
        "supported_algorithms": [],
        "supported_quantization_encodings": [],
    }
    return config


def write_package_config(path: str | os.PathLike[str]) -> None:
    """Write the package configuration for `olive run --package-config`."""
    pathlib.Path(path).write_text(json.dumps(package_config(), indent=2) + "\n", "utf-8")


def olive_run(run_config: str | os.PathLike[str] | dict[str, Any], **arguments: Any) -> Any:
    """Run a workflow whose passes may be AmpTranspile.

    Args:
        run_config: the workflow, or its file.
        arguments: further arguments of `olive.run`.
    """
    return run(run_config, package_config=package_config(), **arguments)


def _plain(default: Any) -> Any:
    """Return a default value as JSON holds it."""
    if isinstance(default, tuple):
        return list(default)
    return str(default) if isinstance(default, str) else default
