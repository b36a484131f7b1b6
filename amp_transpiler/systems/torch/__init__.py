"""PyTorch's autocast on CUDA: classes of operators and rules."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.systems.torch.classes import TORCH_CLASSES as TORCH_CLASSES, TorchClass as TorchClass
    from amp_transpiler.systems.torch.rules import TorchRules as TorchRules
else:
    __getattr__, __dir__ = lazy_names(__name__)
