"""MXNet 2's AMP: operator lists, rules, and `convert_model`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.systems.mxnet.conversion import convert_model as convert_model
    from amp_transpiler.systems.mxnet.lists import MxnetLists as MxnetLists, default_mxnet_lists as default_mxnet_lists
    from amp_transpiler.systems.mxnet.rules import MxnetRules as MxnetRules
else:
    __getattr__, __dir__ = lazy_names(__name__)
