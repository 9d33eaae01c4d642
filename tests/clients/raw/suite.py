"""The NATS protocol without a client library: bytes that a server gets, and every line that it answers.

Libraries never send most of this: odd spaces, lower case, broken frames, limits. A scenario is one connection: it logs in as
`login` says, sends the bytes, then PING, and records what comes until the PONG or the end of the connection. Random names
are `{p}`; the lines are recorded without them. The arguments and the output are those of the other suites.
"""

import argparse
import concurrent.futures
import json
import os
import socket
import ssl
import sys
import threading
import time
import uuid

LOGIN = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1, "lang": "raw"}
READ_S = 5


def login(**changes):
    return {**LOGIN, **changes}


# name: (CONNECT's object, bytes to send; {p} is the random prefix, {d} a denied subject, {m1} one byte more than the largest payload)
CASES = {
    "plain": (login(), "SUB {p}.a 1\r\nPUB {p}.a 2\r\nhi\r\n"),
    "spaces and tabs": (login(), "SUB  {p}.a \t 1 \r\nPUB\t{p}.a   2\t\r\nhi\r\nUNSUB 1 \r\n"),
    "lower case": (login(), "sub {p}.a 1\r\npub {p}.a 2\r\nhi\r\nping\r\nunsub 1\r\n"),
    "mixed case": (login(), "SuB {p}.a 1\r\nPuB {p}.a 2\r\nhi\r\nPiNg\r\n"),
    "line feeds only": (login(), "PING\nSUB {p}.a 1\nPUB {p}.a 2\nhi\r\n"),
    "sid 0": (login(), "SUB {p}.a 0\r\nPUB {p}.a 2\r\nhi\r\n"),
    "sid of letters": (login(), "SUB {p}.a x-Y_9\r\nPUB {p}.a 2\r\nhi\r\nUNSUB x-Y_9\r\nPUB {p}.a 2\r\nhi\r\n"),
    "same sid twice": (login(), "SUB {p}.a 1\r\nSUB {p}.b 1\r\nPUB {p}.a 1\r\na\r\nPUB {p}.b 1\r\nb\r\n"),
    "reply": (login(), "SUB {p}.a 1\r\nPUB {p}.a {p}.r 2\r\nhi\r\n"),
    "queue": (login(), "SUB {p}.a workers 1\r\nPUB {p}.a 2\r\nhi\r\n"),
    "empty payload": (login(), "SUB {p}.a 1\r\nPUB {p}.a 0\r\n\r\n"),
    "payload of protocol": (login(), "SUB {p}.a 1\r\nPUB {p}.a 12\r\nPING\r\nPONG\r\n\r\n"),
    "ten pings": (login(), "PING\r\n" * 10),
    "pong unasked": (login(), "PONG\r\nPONG\r\n"),
    "OK from a client": (login(), "+OK\r\n"),
    "empty line": (login(), "\r\n"),
    "unknown operation": (login(), "FOO\r\n"),
    "MSG from a client": (login(), "MSG {p}.a 1 2\r\nhi\r\n"),
    "INFO from a client": (login(), "INFO {{}}\r\n"),
    "unsubscribe unknown": (login(), "UNSUB 4711\r\nUNSUB 4711 3\r\n"),
    "unsubscribe after two": (login(), "SUB {p}.a 1\r\nUNSUB 1 2\r\n" + "PUB {p}.a 1\r\nx\r\n" * 4),
    "unsubscribe below": (login(), "SUB {p}.a 1\r\n" + "PUB {p}.a 1\r\nx\r\n" * 3 + "UNSUB 1 2\r\nPUB {p}.a 1\r\ny\r\n"),
    "unsubscribe after zero": (login(), "SUB {p}.a 1\r\nUNSUB 1 0\r\nPUB {p}.a 1\r\nx\r\n"),
    "unsubscribe without sid": (login(), "UNSUB\r\n"),
    "subscribe without sid": (login(), "SUB {p}.a\r\n"),
    "subscribe with too much": (login(), "SUB {p}.a q 1 2\r\n"),
    "filter with empty token": (login(), "SUB {p}..a 1\r\n"),
    "filter with dot first": (login(), "SUB .{p} 1\r\n"),
    "filter with dot last": (login(), "SUB {p}. 1\r\n"),
    "filter with > inside": (login(), "SUB {p}.>.a 1\r\n"),
    "filter with * in a token": (login(), "SUB {p}.a*b 1\r\nPUB {p}.a*b 1\r\nx\r\nPUB {p}.axb 1\r\ny\r\n"),
    "publish with empty token": (login(), "PUB {p}..a 1\r\nx\r\n"),
    "publish with dot last": (login(), "PUB {p}. 1\r\nx\r\n"),
    "publish with wildcards": (login(), "SUB {p}.> 1\r\nPUB {p}.* 1\r\nx\r\nPUB {p}.> 1\r\ny\r\n"),
    "pedantic: wildcard": (login(pedantic=True), "SUB {p}.> 1\r\nPUB {p}.* 1\r\nx\r\n"),
    "pedantic: empty token": (login(pedantic=True), "PUB {p}..a 1\r\nx\r\n"),
    "pedantic: filter": (login(pedantic=True), "SUB {p}..a 1\r\n"),
    "publish without size": (login(), "PUB {p}.a\r\n"),
    "publish with bad size": (login(), "PUB {p}.a x\r\n"),
    "publish with negative size": (login(), "PUB {p}.a -1\r\n"),
    "publish with huge size": (login(), "PUB {p}.a 99999999999999999999\r\n"),
    "publish with too much": (login(), "PUB {p}.a b c 1\r\nx\r\n"),
    "payload longer than said": (login(), "PUB {p}.a 1\r\nxyz\r\n"),
    "above max_payload": (login(), "PUB {p}.a {m1}\r\n"),
    "control line too long": (login(), "SUB " + "a" * 5000 + " 1\r\n"),
    "headers": (login(), "SUB {p}.a 1\r\nHPUB {p}.a 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n"),
    "headers and reply": (login(), "SUB {p}.a 1\r\nHPUB {p}.a {p}.r 18 18\r\nNATS/1.0\r\nA: b\r\n\r\n\r\n"),
    "headers kept to the byte": (login(), "SUB {p}.a 1\r\nHPUB {p}.a 31 31\r\nNATS/1.0\r\na:1\r\nA:  2 \r\nA: 3\r\n\r\n\r\n"),
    "headers of length 0": (login(), "SUB {p}.a 1\r\nHPUB {p}.a 0 2\r\nhi\r\nHPUB {p}.a {p}.r 0 2\r\nhi\r\n"),
    "headers without version": (login(), "SUB {p}.a 1\r\nHPUB {p}.a 8 10\r\nA: b\r\n\r\nhi\r\n"),
    "headers longer than all": (login(), "HPUB {p}.a 20 10\r\n"),
    "headers without length": (login(), "HPUB {p}.a 10\r\n"),
    "headers not announced": (login(headers=False, no_responders=False), "HPUB {p}.a 12 12\r\nNATS/1.0\r\n\r\n\r\n"),
    "no responders": (login(), "SUB {p}.r 7\r\nPUB {p}.none {p}.r 2\r\nhi\r\n"),
    "no responders: headers": (login(), "SUB {p}.r 7\r\nHPUB {p}.none {p}.r 12 12\r\nNATS/1.0\r\n\r\n\r\n"),
    "no responders: wildcard": (login(), "SUB {p}.r.* 7\r\nPUB {p}.none {p}.r.1 2\r\nhi\r\n"),
    "no responders: not asked for": (login(no_responders=False), "SUB {p}.r 7\r\nPUB {p}.none {p}.r 2\r\nhi\r\n"),
    "no responders: not subscribed": (login(), "PUB {p}.none {p}.r 2\r\nhi\r\n"),
    "no responders without headers": (login(headers=False), ""),
    "echo off": (login(echo=False), "SUB {p}.a 1\r\nPUB {p}.a 2\r\nhi\r\n"),
    "echo off: no responders": (login(echo=False), "SUB {p}.> 1\r\nPUB {p}.a {p}.r 2\r\nhi\r\n"),
    "protocol 0": (login(protocol=0), ""),
    "protocol 2": (login(protocol=2), ""),
    "verbose": (login(verbose=True), "SUB {p}.a 1\r\nPUB {p}.a 2\r\nhi\r\nUNSUB 1\r\nPING\r\n"),
    "verbose by default": ({}, "SUB {p}.a 1\r\nUNSUB 1\r\n"),
    "nulls and unknown keys": (login(jwt=None, nkey=None, sig=None, user=None, auth_token=None, new={"a": [1]}), ""),
    "second CONNECT": (login(), 'CONNECT {{"verbose":true,"headers":true}}\r\nSUB {p}.a 1\r\n'),
    "CONNECT is no JSON": ("{{nonsense", ""),
    "CONNECT is empty": ("", ""),
    "publish without CONNECT": (None, "PUB {p}.a 2\r\nhi\r\n"),
    "ping without CONNECT": (None, ""),
    "denied publish": (login(), "PUB {d} 2\r\nhi\r\nPUB {d} {p}.r 2\r\nhi\r\n"),
    "denied subscribe": (login(), "SUB {d} 1\r\nSUB {d} workers 2\r\nPUB {d} 0\r\n\r\n"),
    "denied: verbose": (login(verbose=True), "PUB {d} 2\r\nhi\r\nSUB {d} 1\r\n"),
}


class Lines:
    """Reads lines and payloads of a connection; tells its end apart from silence."""

    def __init__(self, connection):
        self.connection = connection
        self.buffer = b""

    def more(self):
        try:
            data = self.connection.recv(65_536)
        except ssl.SSLEOFError:
            data = b""
        except (ssl.SSLError, ConnectionError, BrokenPipeError):
            data = b""
        if not data:
            raise EOFError
        self.buffer += data

    def line(self):
        while b"\r\n" not in self.buffer:
            self.more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line.decode(errors="replace")

    def block(self, size):
        while len(self.buffer) < size + 2:
            self.more()
        block, self.buffer = self.buffer[:size], self.buffer[size + 2 :]
        return block.decode(errors="replace")


def connect(options):
    host, _, port = options.url.partition("://")[2].rpartition(":")
    plain = socket.create_connection((host, int(port)), READ_S)
    plain.settimeout(READ_S)
    context = ssl.create_default_context(cafile=options.ca)
    context.load_cert_chain(options.cert, options.key)
    if options.tls_first:
        secure = context.wrap_socket(plain, server_hostname=host)
        lines = Lines(secure)
        return secure, lines, json.loads(lines.line().removeprefix("INFO "))
    # The INFO line to the byte: what follows belongs to the handshake.
    told = b""
    while not told.endswith(b"\r\n"):
        told += plain.recv(1)
    secure = context.wrap_socket(plain, server_hostname=host)
    return secure, Lines(secure), json.loads(told.decode().removeprefix("INFO "))


def transcript(lines, pongs, shown):
    """What is said until so many PONGs have come or the connection ends: (lines, how it ended)."""
    said = []
    try:
        while pongs > 0:
            line = lines.line()
            # A second INFO says nothing that is the same everywhere.
            if line.startswith("INFO "):
                continue
            said.append(shown(line))
            words = line.split()
            if line == "PONG":
                pongs -= 1
            elif words and words[0] in ("MSG", "HMSG"):
                said.append(shown(lines.block(int(words[-1]))))
    except EOFError:
        return said, "closed"
    except TimeoutError:
        return said, "silent"
    return said, "open"


def send(connection, data):
    try:
        connection.sendall(data)
    except (ssl.SSLError, ConnectionError, BrokenPipeError):
        pass


def run_case(options, name, chunk=None):
    opening, text = CASES[name]
    prefix = "s" + uuid.uuid4().hex[:10]

    def shown(line):
        return line.replace(prefix + ".", "").replace(prefix, "").replace(options.denied, "(denied)")

    connection, lines, info = connect(options)
    limit = info["max_payload"]
    data = text.format(p=prefix, d=options.denied, m1=limit + 1).encode()
    with connection:
        said, state = [], "open"
        if opening is not None:
            body = json.dumps(opening) if isinstance(opening, dict) else opening
            send(connection, f"CONNECT {body}\r\nPING\r\n".encode())
            said, state = transcript(lines, 1, shown)
        if state == "open":
            data += b"PING\r\n"
            pieces = [data] if chunk is None else [data[n : n + chunk] for n in range(0, len(data), chunk)]
            for piece in pieces:
                send(connection, piece)
            wanted = 1 + (0 if "payload of" in name else text.upper().count("PING\r\n") + text.upper().count("PING\n"))
            more, state = transcript(lines, wanted, shown)
            said += more
    return {"said": said, "then": state}


def cases(options):
    for name in CASES:
        yield name, lambda name=name: run_case(options, name)
    for name in ("plain", "headers", "spaces and tabs", "payload of protocol"):
        yield f"{name}: byte by byte", lambda name=name: run_case(options, name, 1)
    yield "not TLS", lambda: not_tls(options, b"CONNECT {}\r\nPING\r\n")
    yield "silence before TLS", lambda: silence(options, False)
    yield "silence after TLS", lambda: silence(options, True)
    yield "headers to one who has none", lambda: without_headers(options)
    yield "deliveries before the pong", lambda: other_order(options)


def not_tls(options, data):
    """Bytes in clear where the handshake should begin: what is answered in clear, if anything."""
    host, _, port = options.url.partition("://")[2].rpartition(":")
    with socket.create_connection((host, int(port)), READ_S) as plain:
        plain.settimeout(READ_S)
        lines = Lines(plain)
        if not options.tls_first:
            lines.line()
        plain.sendall(data)
        answered = b""
        try:
            while True:
                lines.more()
        except EOFError:
            answered = lines.buffer
        except TimeoutError:
            return {"then": "silent"}
        return {"runs commands": b"PONG" in answered, "then": "closed"}


def silence(options, secured):
    """How long a server waits for somebody who says nothing; rounded, since it is a time-out."""
    began = time.monotonic()
    if secured:
        connection, lines, _ = connect(options)
    else:
        host, _, port = options.url.partition("://")[2].rpartition(":")
        connection = socket.create_connection((host, int(port)), READ_S)
        connection.settimeout(READ_S)
        lines = Lines(connection)
        lines.line()
    with connection:
        said, state = transcript(lines, 1, str)
    return {"said": said, "then": state, "within 4 s": time.monotonic() - began < 4}


def without_headers(options):
    """A subscriber that did not announce headers gets the message without them."""
    prefix = "s" + uuid.uuid4().hex[:10]

    def shown(line):
        return line.replace(prefix + ".", "")

    (one, to_one, _), (two, to_two, _) = connect(options), connect(options)
    with one, two:
        send(one, f"CONNECT {json.dumps(login(headers=False, no_responders=False))}\r\nSUB {prefix}.a 1\r\nPING\r\n".encode())
        transcript(to_one, 1, shown)
        text = f"CONNECT {json.dumps(login())}\r\nHPUB {prefix}.a 18 20\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\nPING\r\n"
        send(two, text.encode())
        transcript(to_two, 1, shown)
        send(one, b"PING\r\n")
        said, state = transcript(to_one, 1, shown)
    return {"said": said, "then": state}


def other_order(options):
    """After a publisher has its PONG, a subscriber's next PONG comes behind the message."""
    prefix = "s" + uuid.uuid4().hex[:10]
    (one, to_one, _), (two, to_two, _) = connect(options), connect(options)
    behind = 0
    with one, two:
        send(one, f"CONNECT {json.dumps(login())}\r\nSUB {prefix}.a 1\r\nPING\r\n".encode())
        transcript(to_one, 1, str)
        send(two, f"CONNECT {json.dumps(login())}\r\nPING\r\n".encode())
        transcript(to_two, 1, str)
        for _ in range(100):
            send(two, f"PUB {prefix}.a 1\r\nx\r\nPING\r\n".encode())
            transcript(to_two, 1, str)
            send(one, b"PING\r\n")
            behind += transcript(to_one, 1, str)[0][1:] == ["x", "PONG"]
    return {"in order": behind}


def run_one(name, body):
    began = time.monotonic()
    try:
        facts, error = body(), None
        if facts.get("then") == "silent":
            error = f"no answer within {READ_S} s, after {facts['said']}" if "said" in facts else "no answer"
    except Exception as failure:
        facts, error = {}, f"{type(failure).__name__}: {failure}"
    took = {"ms": round((time.monotonic() - began) * 1000)}
    return {"scenario": name, "outcome": facts, "notes": took, "ok": error is None, "error": error}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("url", "ca", "cert", "key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tls-first", action="store_true")
    parser.add_argument("--scenario", default="all")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--denied", default="denied.subject")
    parser.add_argument("--refused", action="append")
    parser.add_argument("--watchdog", type=float, default=120)
    options = parser.parse_args()
    timer = threading.Timer(options.watchdog, lambda: os._exit(3))
    timer.daemon = True
    timer.start()
    table = list(cases(options))
    if options.scenario == "list":
        print("\n".join(name for name, _ in table))
        return 0
    wanted = None if options.scenario == "all" else options.scenario.split(",")
    table = [(name, body) for name, body in table if wanted is None or name in wanted]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda case: run_one(*case), table))
    for result in results:
        sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
