#!/usr/bin/env python3
"""The WebSocket listener, byte by byte: who is upgraded, who is not, and what frames do. Prints a line for each check."""

import argparse
import base64
import json
import os
import socket
import ssl
import struct
import sys

SECONDS = 10
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Closed(Exception):
    """The server ended the connection, with or without an alert of TLS."""


class Peer:
    """One connection over TLS, with or without a certificate."""

    def __init__(self, options, certificate=None):
        context = ssl.create_default_context(cafile=options.ca)
        if certificate:
            context.load_cert_chain(*certificate)
        self.unread = b""
        try:
            plain = socket.create_connection(("127.0.0.1", options.port), SECONDS)
            self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        except (ssl.SSLError, ConnectionError) as error:
            raise Closed(str(error)) from error

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (ssl.SSLError, ConnectionError) as error:
            raise Closed(str(error)) from error

    def more(self):
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise TimeoutError(f"nothing came and the connection stayed open for {SECONDS} s") from None
        except (ssl.SSLError, ConnectionError) as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of stream")
        self.unread += data

    def until(self, end):
        while end not in self.unread:
            self.more()
        head, _, self.unread = self.unread.partition(end)
        return head

    def exactly(self, count):
        while len(self.unread) < count:
            self.more()
        data, self.unread = self.unread[:count], self.unread[count:]
        return data

    def rest(self):
        """Everything up to the end of the connection."""
        try:
            while True:
                self.more()
        except Closed:
            return self.unread

    def upgrade(self, *headers, request="GET / HTTP/1.1", websocket=True):
        """The status that the server answers; closed without one is an error."""
        lines = [request, "Host: 127.0.0.1"]
        if websocket:
            key = base64.b64encode(os.urandom(16)).decode()
            lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}"]
        self.send("\r\n".join([*lines, *headers, "", ""]).encode())
        return int(self.until(b"\r\n\r\n").split()[1])

    def frame(self, kind, payload, masked=True, length=None):
        """Sends one frame, or with `length` only the beginning of one that says to be longer."""
        size = len(payload) if length is None else length
        bit = 0x80 if masked else 0
        head = bytes([0x80 | kind])
        if size < 126:
            head += bytes([bit | size])
        elif size < 65536:
            head += bytes([bit | 126]) + struct.pack(">H", size)
        else:
            head += bytes([bit | 127]) + struct.pack(">Q", size)
        mask = os.urandom(4) if masked else b""
        if masked:
            payload = bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))
        self.send(head + mask + payload)

    def next_frame(self):
        first, second = self.exactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self.exactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self.exactly(8))
        return first & 0x0F, self.exactly(size)

    def frame_of(self, kind):
        """The next frame of a kind, past others."""
        while True:
            found, payload = self.next_frame()
            if found == kind:
                return payload

    def line_with(self, text):
        """Reads messages until one holds the text."""
        seen = b""
        while text not in seen:
            seen += self.frame_of(BINARY)
        return seen


FAILURES = 0


def check(what, function):
    global FAILURES
    try:
        function()
        print(f"ok    {what}", flush=True)
    except Exception as error:
        FAILURES += 1
        print(f"FAIL  {what}\n      {type(error).__name__}: {error}", flush=True)


def equal(found, wanted):
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("ca", "cert", "key", "foreign-cert", "foreign-key", "origin"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args()
    own = (options.cert, options.key)
    origin = options.origin

    def status(*headers, **more):
        return Peer(options, own).upgrade(*headers, **more)

    def upgraded():
        peer = Peer(options, own)
        equal(peer.upgrade(), 101)
        assert peer.line_with(b"\r\n").startswith(b"INFO {")
        return peer

    def ends(action):
        """No upgrade: the server closes, with or without an HTTP answer before."""
        peer = Peer(options, own)
        try:
            action(peer)
        except Closed:
            return
        said = peer.rest()
        assert b" 101 " not in said, said

    def refused(certificate):
        try:
            peer = Peer(options, certificate)
            found = peer.upgrade()
        except Closed:
            return
        raise AssertionError(f"it was answered with {found}")

    check("without an origin: 101", lambda: equal(status(), 101))
    check("with a listed origin: 101", lambda: equal(status(f"Origin: {origin}"), 101))
    check("on any path, as the clients of proxies ask: 101", lambda: equal(status(request="GET /nats HTTP/1.1"), 101))
    for what, headers in (
        ("an origin that is not listed", ["https://evil.example"]),
        ("the origin 'null'", ["null"]),
        ("an empty origin", [""]),
        ("a listed origin with more behind it", [origin + ".evil.example"]),
        ("a listed origin with a path", [origin + "/"]),
        ("a listed origin with another port", [origin.rpartition(":")[0] + ":1"]),
        ("a listed origin with another scheme", [origin.replace("http:", "https:")]),
        ("two listed origins in one header", [f"{origin} {origin}"]),
        ("two origin headers", [origin, origin]),
        ("two origin headers, one not listed", [origin, "https://evil.example"]),
    ):
        check(f"{what}: 403", lambda h=headers: equal(status(*(f"Origin: {o}" for o in h)), 403))

    def no_info_after_refusal():
        peer = Peer(options, own)
        equal(peer.upgrade("Origin: https://evil.example"), 403)
        assert b"INFO" not in peer.rest()

    check("after a refusal the connection ends, and says nothing of the server", no_info_after_refusal)
    check("a request without an upgrade ends", lambda: ends(lambda p: p.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")))
    check("POST ends", lambda: ends(lambda p: equal(p.upgrade(request="POST / HTTP/1.1") == 101, False)))
    check("garbage ends", lambda: ends(lambda p: p.send(os.urandom(600) + b"\r\n\r\n")))
    check("the NATS protocol without WebSocket ends", lambda: ends(lambda p: p.send(b"CONNECT {}\r\nPING\r\n")))
    check("half a request ends in time", lambda: ends(lambda p: p.send(b"GET / HTTP/1.1\r\nHost: x\r\n")))
    check("a request without an end is not read for ever", lambda: ends(lambda p: p.send(b"GET /" + b"a" * 300_000)))

    check("without a certificate: refused by TLS", lambda: refused(None))
    check("with a certificate of another root: refused by TLS", lambda: refused((options.foreign_cert, options.foreign_key)))

    def in_clear():
        with socket.create_connection(("127.0.0.1", options.port), SECONDS) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n")
            said = b""
            try:
                while part := plain.recv(4096):
                    said += part
            except ConnectionError:
                pass
            assert b"HTTP" not in said and b"INFO" not in said, said

    check("in clear: nothing but the end", in_clear)

    connect = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n'

    def protocol(kind):
        peer = upgraded()
        peer.frame(kind, connect)
        peer.line_with(b"PONG\r\n")
        return peer

    check("the protocol runs in binary messages", lambda: protocol(BINARY))
    check("the protocol runs in text messages", lambda: protocol(TEXT))

    def split():
        peer = upgraded()
        for n in range(len(connect)):
            peer.frame(BINARY, connect[n : n + 1])
        peer.frame(BINARY, b"")
        peer.line_with(b"PONG\r\n")
        for part in (b"SUB a 1\r\nPUB", b" a 5\r\nhel", b"lo\r\nPING\r\n"):
            peer.frame(BINARY, part)
        peer.line_with(b"MSG a 1 5\r\nhello\r\n")

    check("messages may be split anywhere", split)

    def payload(beyond):
        """One message that holds all: the subscription, the command, and a payload of the largest size or beyond it."""
        peer = upgraded()
        peer.frame(BINARY, connect)
        peer.line_with(b"PONG\r\n")
        size = largest() + beyond
        peer.frame(BINARY, b"SUB a 1\r\nPUB a %d\r\n" % size + bytes(size) + b"\r\n")
        if beyond:
            peer.line_with(b"-ERR 'Maximum Payload Violation'\r\n")
            peer.rest()
        else:
            peer.line_with(b"MSG a 1 %d\r\n" % size)

    def largest():
        peer = Peer(options, own)
        peer.upgrade()
        return json.loads(peer.line_with(b"\r\n").removeprefix(b"INFO "))["max_payload"]

    check("one message may hold a largest payload and the commands around it", lambda: payload(0))
    check("a payload beyond the largest is refused by the protocol, not cut off", lambda: payload(1))

    def ping():
        peer = protocol(BINARY)
        peer.frame(PING, b"are you there")
        equal(peer.frame_of(PONG), b"are you there")

    check("a WebSocket ping is answered while nothing else is said", ping)

    def close():
        peer = protocol(BINARY)
        peer.frame(CLOSE, struct.pack(">H", 1000))
        equal(peer.frame_of(CLOSE)[:2], struct.pack(">H", 1000))
        peer.rest()

    check("a WebSocket close is answered, then the connection ends", close)

    def farewell(*frames, **more):
        peer = protocol(BINARY)
        try:
            for kind, payload in frames:
                peer.frame(kind, payload, **more)
        except Closed:
            return
        peer.rest()

    check("a frame without a mask ends it", lambda: farewell((BINARY, b"PING\r\n"), masked=False))
    check("a frame of an unknown kind ends it", lambda: farewell((3, b"x")))
    check("a continuation of nothing ends it", lambda: farewell((CONTINUATION, b"x")))
    check("a frame that says to be 4 GiB ends it", lambda: farewell((BINARY, b"x"), length=1 << 32))

    def error_is_told():
        peer = protocol(BINARY)
        peer.frame(BINARY, b"NONSENSE\r\n")
        peer.line_with(b"-ERR 'Unknown Protocol Operation'\r\n")
        peer.rest()

    check("an error of the protocol is told before the end", error_is_told)
    return min(FAILURES, 100)


if __name__ == "__main__":
    sys.exit(main())
