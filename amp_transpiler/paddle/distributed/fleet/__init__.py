"""`paddle.distributed.fleet`: what scripts for several processes say about roles, strategies and optimizers."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.paddle.distributed.fleet import base as base
    from amp_transpiler.paddle.distributed.fleet.collective import (
        DistributedStrategy as DistributedStrategy,
        PaddleCloudRoleMaker as PaddleCloudRoleMaker,
        UserDefinedRoleMaker as UserDefinedRoleMaker,
        barrier_worker as barrier_worker,
        distributed_optimizer as distributed_optimizer,
        init as init,
        is_first_worker as is_first_worker,
        is_server as is_server,
        is_worker as is_worker,
        load_persistables as load_persistables,
        save_inference_model as save_inference_model,
        save_persistables as save_persistables,
        stop_worker as stop_worker,
        worker_index as worker_index,
        worker_num as worker_num,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
