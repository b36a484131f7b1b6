"""Doors for users of other tools: their functions and passes, with their names, on this package's engine.

Modules that stand for another tool's have its names, such as `compat.float16`, so that only an import changes.
"""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.compat.auto_mixed_precision import auto_convert_mixed_precision as auto_convert_mixed_precision
    from amp_transpiler.compat.auto_mixed_precision_model_path import (
        auto_convert_mixed_precision_model_path as auto_convert_mixed_precision_model_path,
    )
    from amp_transpiler.compat.autocast import (
        convert_to_f16 as convert_to_f16,
        convert_to_mixed_precision as convert_to_mixed_precision,
    )
    from amp_transpiler.compat.float16 import (
        DEFAULT_OP_BLOCK_LIST as DEFAULT_OP_BLOCK_LIST,
        convert_float_to_float16 as convert_float_to_float16,
        convert_float_to_float16_model_path as convert_float_to_float16_model_path,
    )
    from amp_transpiler.compat.onnx_ir_pass import MixedPrecisionPass as MixedPrecisionPass
else:
    __getattr__, __dir__ = lazy_names(__name__)
