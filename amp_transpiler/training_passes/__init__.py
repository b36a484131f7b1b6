"""Passes over training steps: operators that ONNX Runtime cannot train with, forms that take less time or memory."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.training_passes.add_in_place import AddInPlace as AddInPlace
    from amp_transpiler.training_passes.affine_rows import AffineRows as AffineRows
    from amp_transpiler.training_passes.attention_sums import AttentionSums as AttentionSums
    from amp_transpiler.training_passes.bias_columns import BiasColumns as BiasColumns
    from amp_transpiler.training_passes.bias_gradients import BiasGradients as BiasGradients
    from amp_transpiler.training_passes.cancel_transposes import CancelTransposes as CancelTransposes
    from amp_transpiler.training_passes.cast_together import CastTogether as CastTogether
    from amp_transpiler.training_passes.centre_by_products import CentreByProducts as CentreByProducts
    from amp_transpiler.training_passes.compute_late import ComputeLate as ComputeLate
    from amp_transpiler.training_passes.dead_key_biases import DeadKeyBiases as DeadKeyBiases
    from amp_transpiler.training_passes.drop_identities import DropIdentities as DropIdentities
    from amp_transpiler.training_passes.free_unread import FreeUnread as FreeUnread
    from amp_transpiler.training_passes.fuse_biases import FuseBiases as FuseBiases
    from amp_transpiler.training_passes.fuse_products import FuseProducts as FuseProducts
    from amp_transpiler.training_passes.guard_statistics import GuardStatistics as GuardStatistics
    from amp_transpiler.training_passes.join_products import JoinProducts as JoinProducts
    from amp_transpiler.training_passes.legalize import Legalize as Legalize
    from amp_transpiler.training_passes.lower_batch_norm import LowerBatchNorm as LowerBatchNorm
    from amp_transpiler.training_passes.lower_dropout import LowerDropout as LowerDropout
    from amp_transpiler.training_passes.lower_loss import LowerLoss as LowerLoss
    from amp_transpiler.training_passes.mean_by_products import MeanByProducts as MeanByProducts
    from amp_transpiler.training_passes.merge_equal import MergeEqual as MergeEqual
    from amp_transpiler.training_passes.move_row_factors import MoveRowFactors as MoveRowFactors
    from amp_transpiler.training_passes.pad_classes import PadClasses as PadClasses
    from amp_transpiler.training_passes.place_casts import VIEWS as VIEWS, PlaceCasts as PlaceCasts
    from amp_transpiler.training_passes.plain_for_cpu import PlainForCpu as PlainForCpu
    from amp_transpiler.training_passes.pointwise_products import PointwiseProducts as PointwiseProducts
    from amp_transpiler.training_passes.positions_first import PositionsFirst as PositionsFirst
    from amp_transpiler.training_passes.recompute import (
        Recompute as Recompute,
        ask_for_recompute as ask_for_recompute,
        is_recompute_asked as is_recompute_asked,
    )
    from amp_transpiler.training_passes.reduce_in_stages import ReduceInStages as ReduceInStages
    from amp_transpiler.training_passes.round_slopes import RoundSlopes as RoundSlopes
    from amp_transpiler.training_passes.scale_in_low import ScaleInLow as ScaleInLow
    from amp_transpiler.training_passes.shorten_scatters import ShortenScatters as ShortenScatters
    from amp_transpiler.training_passes.simplify_concats import SimplifyConcats as SimplifyConcats
    from amp_transpiler.training_passes.slice_known_rows import SliceKnownRows as SliceKnownRows
    from amp_transpiler.training_passes.split_rows import SplitRows as SplitRows
    from amp_transpiler.training_passes.split_scatters import SplitScatters as SplitScatters
    from amp_transpiler.training_passes.sum_by_products import SumByProducts as SumByProducts
    from amp_transpiler.training_passes.sum_slopes import SumSlopes as SumSlopes
    from amp_transpiler.training_passes.weight_gradients import (
        Formulation as Formulation,
        WeightGradients as WeightGradients,
    )
    from amp_transpiler.training_passes.write_in_place import WriteInPlace as WriteInPlace
    from amp_transpiler.training_passes.zero_pads import PadInLow as PadInLow
else:
    __getattr__, __dir__ = lazy_names(__name__)
