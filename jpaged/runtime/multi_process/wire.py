"""Messages between two processes: length-prefixed msgpack over a TCP connection.

Nothing that is received is run or unpickled; a connection that ends gives None, not an exception.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

BEAT_SECONDS = 2.0
MOST_BYTES = 2**30
_LENGTH = struct.Struct("!I")
_BEAT = ["beat"]


class Channel:
    """One end of a connection. A message is a list: its kind, then plain values, dataclasses or named tuples."""

    def __init__(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a connection that is not TCP waits for nothing
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()

    @property
    def peer(self) -> str:
        """The other end's address."""
        return str(self._connection.getpeername()[0])

    def send(self, message: list[Any]) -> None:
        """Send a message; nothing happens once the other end has closed: whoever receives notices that."""
        data = msgspec.msgpack.encode(message, enc_hook=dict)  # the hook: any mapping is one
        with self._sending, contextlib.suppress(OSError):
            self._connection.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, timeout: float | None = None) -> list[Any] | None:
        """The next message as plain values, or None once the connection has ended. Raises TimeoutError, ValueError."""
        self._connection.settimeout(timeout)
        header = self._read(_LENGTH.size)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > MOST_BYTES:
            raise ValueError(f"a message of {length} bytes: the other end is not a jpaged process")
        data = self._read(length)
        if data is None:
            return None
        try:
            message = msgspec.msgpack.decode(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a message ({error}): the other end is not a jpaged process") from error
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise ValueError("not a message: the other end is not a jpaged process")
        return message

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._connection.recv(count - len(parts))
            except TimeoutError:
                raise
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


class Link:
    """A channel that a thread reads, and that says every two seconds that this process is alive.

    `on_message` is called by that thread with every message but signs of life, and with None once the connection has
    ended.
    """

    def __init__(self, channel: Channel, on_message: Callable[[list[Any] | None], None]) -> None:
        self._channel, self._on_message = channel, on_message
        self.heard = time.monotonic()
        self._closed = threading.Event()
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True, name=f"jpaged {work.__name__.strip('_')}").start()

    def send(self, message: list[Any]) -> None:
        """Send a message."""
        self._channel.send(message)

    def close(self) -> None:
        """End the connection; `on_message` is not called again."""
        self._closed.set()
        self._channel.close()

    def _read(self) -> None:
        message: list[Any] | None = _BEAT
        while message is not None and not self._closed.is_set():
            try:
                message = self._channel.receive()
            except ValueError:
                message = None
            self.heard = time.monotonic()
            if message != _BEAT and not self._closed.is_set():
                self._on_message(message)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            self._channel.send(_BEAT)
