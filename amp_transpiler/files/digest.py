"""The digest of what a model computes: its graph and its weights, wherever they lie."""

from __future__ import annotations

import hashlib
from typing import Protocol

import onnx_ir as ir

from amp_transpiler.graph.proto import to_proto_without_weights
from amp_transpiler.graph.tensors import content_of, initializer_tensors

__all__ = ["Digest", "add_model", "new_digest"]


class Digest(Protocol):
    """A digest that bytes are added to."""

    def update(self, data: bytes, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of all bytes that were added."""


def new_digest() -> Digest:
    """Return an empty digest, of 160 bits."""
    return hashlib.blake2b(digest_size=20)


def add_model(digest: Digest, model: ir.Model) -> None:
    """Add a model to a digest. Weights are read one at a time."""
    digest.update(to_proto_without_weights(model).SerializeToString(deterministic=True))
    for tensor in initializer_tensors(model):
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape} ".encode())
        digest.update(content_of(tensor))
