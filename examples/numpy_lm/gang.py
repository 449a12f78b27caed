"""The workers of one run, joined by TCP: averaging vectors, which is also their barrier.

A star around rank 0, which is enough for a handful of workers. The sum is always taken in the order of the
ranks, so that the same vectors give the same bits in every run. There is no time-out, as in most real
trainers' collectives: if one worker stops, all wait, which is the hang that the demo shows. If one dies, its
peers' next exchange fails with `GangBroken`.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_HEADER = struct.Struct("!IQ")
_HELLO = struct.Struct("!I")
# Workers of one attempt start together; an interpreter under load may still need many seconds for its imports.
JOIN_LIMIT_S = 60.0


class GangBroken(RuntimeError):
    """A peer is gone, never came, or speaks of another exchange."""


class Gang:
    """One worker's place among its peers. A gang of one needs no network."""

    def __init__(self, rank: int, size: int, peers: dict[int, socket.socket]) -> None:
        self.rank, self.size = rank, size
        self._peers = peers
        self._exchange = 0

    @classmethod
    def join(cls, rank: int, size: int, host: str, port: int, *, limit_s: float = JOIN_LIMIT_S) -> Gang:
        """Meet at rank 0's address. Raises GangBroken if not everybody is there within `limit_s`."""
        if size == 1:
            return cls(0, 1, {})
        deadline = time.monotonic() + limit_s
        peers = _gather(size, host, port, deadline) if rank == 0 else {0: _reach(rank, host, port, deadline)}
        for peer in peers.values():
            peer.settimeout(None)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(rank, size, peers)

    def mean(self, vector: Array) -> Array:
        """The average of every rank's `vector`, the same bits on every rank. Waits for all of them."""
        self._exchange += 1
        if self.size == 1:
            return vector
        if self.rank == 0:
            parts = [vector, *(self._receive(self._peers[rank], vector) for rank in range(1, self.size))]
            average = mean_in_rank_order(parts)
            for rank in range(1, self.size):
                self._send(self._peers[rank], average)
            return average
        self._send(self._peers[0], vector)
        return self._receive(self._peers[0], vector)

    def close(self) -> None:
        """Leave; peers that still wait see it as a break."""
        for peer in self._peers.values():
            peer.close()

    def _send(self, peer: socket.socket, vector: Array) -> None:
        payload = vector.tobytes()
        try:
            peer.sendall(_HEADER.pack(self._exchange, len(payload)) + payload)
        except OSError as err:
            raise GangBroken(f"rank {self.rank}: a peer is gone: {err}") from err

    def _receive(self, peer: socket.socket, like: Array) -> Array:
        exchange, length = _HEADER.unpack(_read(peer, _HEADER.size, self.rank))
        if (exchange, length) != (self._exchange, like.nbytes):
            raise GangBroken(f"rank {self.rank}: out of step: exchange {exchange} against {self._exchange}")
        return np.frombuffer(_read(peer, length, self.rank), dtype=like.dtype)


def mean_in_rank_order(parts: list[Array]) -> Array:
    """`(((p0 + p1) + p2) + …) / n`: floating-point addition is not associative, so the order is fixed."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    total /= total.dtype.type(len(parts))
    return total


def _read(peer: socket.socket, length: int, rank: int) -> bytes:
    buffer = bytearray(length)
    view = memoryview(buffer)
    while view:
        try:
            count = peer.recv_into(view)
        except OSError as err:
            raise GangBroken(f"rank {rank}: a peer is gone: {err}") from err
        if count == 0:
            raise GangBroken(f"rank {rank}: a peer closed its connection")
        view = view[count:]
    return bytes(buffer)


def _gather(size: int, host: str, port: int, deadline: float) -> dict[int, socket.socket]:
    peers: dict[int, socket.socket] = {}
    with socket.create_server((host, port)) as server:
        while len(peers) < size - 1:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                peer, _ = server.accept()
            except TimeoutError as err:
                missing = sorted(set(range(1, size)) - set(peers))
                raise GangBroken(f"rank 0: ranks {missing} did not come") from err
            rank = _HELLO.unpack(_read(peer, _HELLO.size, 0))[0]
            if rank in peers or not 0 < rank < size:
                raise GangBroken(f"rank 0: unexpected rank {rank}")
            peers[rank] = peer
    return peers


def _reach(rank: int, host: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            peer = socket.create_connection((host, port), timeout=1.0)
        except OSError as err:
            if time.monotonic() > deadline:
                raise GangBroken(f"rank {rank}: no process listens at {host}:{port}: {err}") from err
            time.sleep(0.02)
            continue
        peer.sendall(_HELLO.pack(rank))
        return peer
