"""Refuses names of `paddle.nn` that a static ONNX program cannot have; each says why when it is called."""

from amp_transpiler.paddle.framework.refusals import refusal

__all__ = ["BeamSearchDecoder", "dynamic_decode"]

_DECODING = "decoding step by step needs sequences that grow. Run the step's program in a loop of Python"

dynamic_decode = refusal("nn.dynamic_decode", _DECODING)
BeamSearchDecoder = refusal("nn.BeamSearchDecoder", _DECODING)
