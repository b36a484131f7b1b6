"""Passes over the updates of a training step: loss scaling, masters, and updates of many parameters as one."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.update_passes.check_by_products import CheckByProducts as CheckByProducts
    from amp_transpiler.update_passes.fuse_updates import FuseUpdates as FuseUpdates
    from amp_transpiler.update_passes.group_plan import (
        CPU_WORTH as CPU_WORTH,
        CUDA_WORTH as CUDA_WORTH,
        Worth as Worth,
    )
    from amp_transpiler.update_passes.group_updates import (
        Grouped as Grouped,
        GroupUpdates as GroupUpdates,
        group_members as group_members,
    )
    from amp_transpiler.update_passes.insert_masters import InsertMasters as InsertMasters, Mastered as Mastered
    from amp_transpiler.update_passes.read_before_update import ReadBeforeUpdate as ReadBeforeUpdate
    from amp_transpiler.update_passes.read_unrounded import ReadUnrounded as ReadUnrounded
    from amp_transpiler.update_passes.scale_gradients import ScaleGradients as ScaleGradients
    from amp_transpiler.update_passes.scale_loss import Scaled as Scaled, ScaleLoss as ScaleLoss
    from amp_transpiler.update_passes.split_gemm_updates import SplitGemmUpdates as SplitGemmUpdates
    from amp_transpiler.update_passes.zero_before_sums import ZeroBeforeSums as ZeroBeforeSums
else:
    __getattr__, __dir__ = lazy_names(__name__)
