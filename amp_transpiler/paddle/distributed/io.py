"""`paddle.distributed.io`: keeps values of programs in files, under the names that distributed scripts use."""

from amp_transpiler.paddle.framework.variable_kinds import is_persistable
from amp_transpiler.paddle.static.variable_files import load_persistables, save_persistables

__all__ = ["is_persistable", "load_persistables", "save_persistables"]
