"""Recognition of a training step in a loaded program: its state by dataflow, and which nodes are the optimizer's."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.precision.training.additions import with_additions as with_additions
    from amp_transpiler.precision.training.marking import mark_optimizer as mark_optimizer
    from amp_transpiler.precision.training.recognition import (
        find_training_step as find_training_step,
        holds_gradients as holds_gradients,
        possible_states as possible_states,
    )
    from amp_transpiler.precision.training.wishes import (
        NO_STATE as NO_STATE,
        UNSCALED as UNSCALED,
        TrainingWishes as TrainingWishes,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
