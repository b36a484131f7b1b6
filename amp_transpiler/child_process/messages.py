"""Sends messages between this process and its child: a pickle, then its arrays, which are not copied.

Both ends are this package's own code, and a message never holds bytes of a user's file other than as plain bytes.
"""

from __future__ import annotations

import pickle
import struct
from typing import IO, Any

__all__ = ["receive", "send"]

_HEAD = struct.Struct("<QQ")  # bytes of the pickle, number of buffers
_SIZE = struct.Struct("<Q")


def send(stream: IO[bytes], message: object) -> None:
    """Write one message."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    stream.write(_HEAD.pack(len(data), len(views)))
    stream.writelines(_SIZE.pack(view.nbytes) for view in views)
    stream.write(data)
    stream.writelines(views)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message.

    Raises:
        EOFError: the other end has gone.
    """
    length, count = _HEAD.unpack(_read(stream, _HEAD.size))
    sizes = [_SIZE.unpack(_read(stream, _SIZE.size))[0] for _ in range(count)]
    data = _read(stream, length)
    return pickle.loads(data, buffers=[_read(stream, size) for size in sizes])  # noqa: S301  our own child's message


def _read(stream: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]  # every binary stream of `io` has it
        if not got:
            raise EOFError("the other end has gone")
        done += got
    return data
