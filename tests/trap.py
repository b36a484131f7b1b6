"""A row of the tables of traps."""

import dataclasses

import onnx

from tests.support import array


@dataclasses.dataclass(frozen=True)
class Trap:
    """A model and inputs for it.

    Attributes:
        low: operators all of whose nodes compute low at O2 in float16.
        high: operators none of whose nodes does.
        random: the outputs are drawn: shapes and types are compared, not values.
        no_cpu_bfloat16: at the opset that bfloat16 asks for, CUDA has kernels that the CPU lacks even in float32.
        limit: relative norm allowed, where not the format's usual one.
    """

    model: onnx.ModelProto
    feeds: dict
    low: tuple = ()
    high: tuple = ()
    random: bool = False
    no_cpu_bfloat16: bool = False
    limit: float | None = None


X = {"x": array(2, 4)}
W = array(4, 4, seed=1, scale=0.5)
