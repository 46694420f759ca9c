"""What a stream counts: what has left its socket, and nothing that the system threw away."""

import socket
import struct
import sys
import time
from contextlib import suppress

import pytest

from device_runtime.broker.sockets.counted_stream import ByteCount, PlainStream


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what has left a socket")
def test_what_a_reset_threw_away_before_it_left_is_not_counted() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)  # the peer holds little
        server.bind(("127.0.0.1", 0))
        server.listen()
        raw = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    raw.setblocking(False)
    count = ByteCount()
    stream = PlainStream(raw, count)
    with suppress(BlockingIOError):
        for _ in range(1000):
            stream.send(bytes(65_536))
    time.sleep(0.1)
    before = count.up
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    came = len(peer.recv(1 << 20))
    peer.close()
    stream.close()
    assert came <= count.up < before


def test_both_directions_are_counted_as_they_are_read_and_written() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    count = ByteCount()
    stream = PlainStream(ours, count)
    assert stream.send(b"hello") == 5
    assert theirs.recv(10) == b"hello"
    theirs.sendall(b"answer")
    assert (stream.recv(1), stream.pending(), stream.recv(10)) == (b"a", 5, b"nswer")
    assert (count.up, count.down) == (5, 6)
    with pytest.raises(BlockingIOError):
        stream.recv(1)
    theirs.close()
    assert stream.recv(1) == b""
    stream.close()
    assert count == ByteCount(5, 6)
