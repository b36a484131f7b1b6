"""`paddle.distributed.fleet.base`: where scripts import role makers from."""

from amp_transpiler.paddle.distributed.fleet.base import role_maker as role_maker
