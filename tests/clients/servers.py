"""Servers that the comparison drives: a nats-server of its own, or one that somebody describes on the command line."""

import os
import pathlib
import signal
import socket
import subprocess
import time

import pki

DENIED = "denied.subject"
REFERENCE_CONFIG = """
listen: "127.0.0.1:{port}"
server_name: reference
max_payload: {max_payload}
lame_duck_duration: "30s"
lame_duck_grace_period: "300ms"
tls {{
  cert_file: "{pki}/server.pem"
  key_file: "{pki}/server.key"
  ca_file: "{pki}/root.pem"
  verify_and_map: true
  timeout: 2
}}
authorization {{
  users: [{{
    user: "{user}"
    permissions: {{ publish: {{ deny: ["denied.>"] }}, subscribe: {{ deny: ["denied.>"] }} }}
  }}]
}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server that can be reached, and, when there is a command for it, started, ended and signalled by process id."""

    def __init__(self, name, url, identity, command=None, lame_duck_signal=signal.SIGUSR2, log=None):
        self.name = name
        self.url = url
        # --ca, --cert, --key, --denied and --refused, as the suites take them.
        self.identity = identity
        self.command = command
        self.lame_duck_signal = lame_duck_signal
        self.log = log
        self.process = None

    def start(self, seconds=20):
        if self.command is None:
            return
        with open(self.log or os.devnull, "ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        host, port = self.address()
        deadline = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {self.tail()}")
            try:
                socket.create_connection((host, port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} does not listen on {port}: {self.tail()}") from None
                time.sleep(0.02)

    def address(self):
        host, _, port = self.url.partition("://")[2].rpartition(":")
        return host, int(port)

    def tail(self):
        return pathlib.Path(self.log).read_text(errors="replace")[-600:] if self.log else ""

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait(10)
            self.process = None

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self.process = None

    def act(self, action):
        """What a scenario asks for: the server is up again when this returns."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started here, so '{action}' is not possible")
        if action == "restart":
            self.kill()
        elif action == "lame duck":
            self.process.send_signal(self.lame_duck_signal)
            self.process.wait(25)
        else:
            raise RuntimeError(f"unknown action '{action}'")
        self.start()


def reference(binary, directory, max_payload):
    """A nats-server with mutual TLS, one user by the certificate's subject, and subjects that this user may not touch."""
    keys = directory / "pki"
    keys.mkdir(parents=True, exist_ok=True)
    pki.make(keys)
    port = free_port()
    config = directory / "reference.conf"
    # The server writes a certificate's names in the order of RFC 2253: the last one first.
    user = "CN=alice,OU=region-a,O=tenantA"
    config.write_text(REFERENCE_CONFIG.format(port=port, pki=keys, user=user, max_payload=max_payload))
    identity = ["--ca", keys / "root.pem", "--cert", keys / "alice.pem", "--key", keys / "alice.key"]
    identity += ["--denied", DENIED]
    for name in ("foreign", "expired", "two-o", "unknown-tenant"):
        identity += ["--refused", f"{name}={keys / name}.pem:{keys / name}.key"]
    command = [binary, "--config", str(config)]
    url = f"tls://127.0.0.1:{port}"
    return Server("nats-server", url, list(map(str, identity)), command, log=str(directory / "reference.log"))
