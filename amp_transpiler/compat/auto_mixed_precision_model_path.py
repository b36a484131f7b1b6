"""`onnxconverter_common.auto_mixed_precision_model_path`: from file to file, for models of any size."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from amp_transpiler.compat.arguments import converted
from amp_transpiler.compat.auto_mixed_precision import Validate, search_options
from amp_transpiler.errors import OptionError
from amp_transpiler.files.saving import save

__all__ = ["auto_convert_mixed_precision_model_path"]

_NAME = "auto_convert_mixed_precision_model_path"


def auto_convert_mixed_precision_model_path(
    source_model_path: str | os.PathLike[str],
    input_feed: Mapping[str, np.ndarray],
    target_model_path: str | os.PathLike[str],
    provider: Sequence[str] | None = None,
    location: str | None = None,
    customized_validate_func: Validate | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    keep_io_types: bool = True,
    verbose: bool = False,
    **options: Any,
) -> None:
    """Convert a file to float16, with as many nodes in float32 as a validation asks for; see `auto_mixed_precision`.

    Args:
        source_model_path: the file.
        input_feed: input -> array: what the outputs are compared on.
        target_model_path: the file to write.
        provider: has no effect: float16 is emulated on the CPU, with a GPU's roundings.
        location: the file, beside the target, that all weights go to. None: one is made for models beyond 2 GB.
        customized_validate_func: says whether outputs are good.
        rtol: outputs are good if `numpy.allclose` says so.
        atol: likewise.
        keep_io_types: inputs and outputs stay float32.
        verbose: has no effect: log messages say what is done.
        options: options of `amp_transpiler.transpile`.

    Raises:
        OptionError: (a ValueError) neither a function nor a tolerance is given, or `location` is no plain file name.
        CheckFailed: no conversion is good, not even float32. Nothing is written.
    """
    if location is not None and pathlib.PurePath(location).name != location:
        raise OptionError(f"{_NAME}: location is {location!r}: expected the name of a file beside the target")
    defaults = search_options(_NAME, input_feed, customized_validate_func, rtol, atol)
    defaults["keep_io_types"] = keep_io_types
    program, _ = converted(_NAME, source_model_path, options, defaults)
    if location is None:
        save(program, target_model_path)
        return
    onnx.save_model(
        program.to_onnx(), os.fspath(target_model_path), save_as_external_data=True, location=location, size_threshold=0
    )
