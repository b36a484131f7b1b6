"""`paddle.distributed.fleet.base.role_maker`: Paddle's place for role makers."""

from amp_transpiler.paddle.distributed.fleet.collective import PaddleCloudRoleMaker, UserDefinedRoleMaker

__all__ = ["PaddleCloudRoleMaker", "UserDefinedRoleMaker"]
