"""Operators: one table of what is known of each, their names, and their schemas. The lowest layer."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.ops.names import is_standard as is_standard, operator_name as operator_name
    from amp_transpiler.ops.schema import Signature as Signature, opset_of as opset_of, signature as signature
    from amp_transpiler.ops.table import OperatorRow as OperatorRow, operator_table as operator_table
    from amp_transpiler.ops.vocabulary import known_operator as known_operator, unknown_operators as unknown_operators
else:
    __getattr__, __dir__ = lazy_names(__name__)
