"""Verification of a converted program: its structure, inputs to run it on, its error against the float32 program."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.verification.check_file import check_result as check_result
    from amp_transpiler.verification.compare import compare_outputs as compare_outputs
    from amp_transpiler.verification.inputs import given_inputs as given_inputs
    from amp_transpiler.verification.synthesis import synthesise_inputs as synthesise_inputs
    from amp_transpiler.verification.verify import (
        check_source as check_source,
        convert_and_compare as convert_and_compare,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
