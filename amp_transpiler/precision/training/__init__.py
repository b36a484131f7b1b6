"""Recognition of a training step in a loaded program: its state by dataflow, and which nodes are the optimizer's."""

from amp_transpiler.precision.training.additions import with_additions
from amp_transpiler.precision.training.marking import mark_optimizer
from amp_transpiler.precision.training.recognition import find_training_step, holds_gradients, possible_states
from amp_transpiler.precision.training.wishes import NO_STATE, UNSCALED, TrainingWishes

__all__ = [
    "NO_STATE",
    "UNSCALED",
    "TrainingWishes",
    "find_training_step",
    "holds_gradients",
    "mark_optimizer",
    "possible_states",
    "with_additions",
]
