"""What every scenario needs: arguments, connections, facts, time limits and the talk with whoever started the program.

One line of JSON goes to standard output for each scenario. A scenario records facts, which are compared between servers,
and notes, which are only shown. Nothing waits without a deadline, and a watchdog ends the program when all else fails.
"""

import argparse
import asyncio
import json
import os
import ssl
import sys
import threading
import time
import uuid

import nats
import nats.errors

# Seconds that one scenario may take, that one that waits for the harness may take, and that the whole program may take.
SCENARIO_S = 12
HARNESS_S = 30
WATCHDOG_S = 120


def arguments():
    parser = argparse.ArgumentParser(description="Scenarios of the NATS client protocol, with nats-py.")
    parser.add_argument("--url", required=True, help="tls://host:port")
    parser.add_argument("--ca", required=True)
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--tls-first", action="store_true")
    parser.add_argument("--scenario", default="all", help="a name, names with commas, 'all', or 'list'")
    parser.add_argument("--json", action="store_true", help="the only form of output; accepted for clarity")
    parser.add_argument("--denied", default="denied.subject", help="a subject that this user may neither write nor read")
    parser.add_argument("--refused", action="append", default=[], metavar="NAME=CERT:KEY", help="must not get in")
    parser.add_argument("--watchdog", type=float, default=WATCHDOG_S)
    parser.add_argument("--role", choices=["pub", "sub", "request", "reply"])
    parser.add_argument("--subject")
    parser.add_argument("--queue", default="")
    parser.add_argument("--id", default="py", help="publishers put it into each payload")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--expect", type=int, default=1)
    parser.add_argument("--settle-ms", type=int, default=200, help="how long a subscriber looks for more than it expects")
    parser.add_argument("--timeout-ms", type=int, default=10_000)
    return parser.parse_args()


def emit(value):
    sys.stdout.write(json.dumps(value, sort_keys=True) + "\n")
    sys.stdout.flush()


def watchdog(seconds):
    def end():
        emit({"scenario": "watchdog", "outcome": {}, "ok": False, "error": f"not finished after {seconds} s"})
        os._exit(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def name_of(error):
    return type(error).__name__


def stdin_line():
    """A future of the next line of standard input. A daemon thread reads it: an executor's would keep the program alive."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def give(line):
        if not future.done():
            future.set_result(line)

    def read():
        line = sys.stdin.readline()
        try:
            loop.call_soon_threadsafe(give, line)
        except RuntimeError:  # The program has ended meanwhile.
            pass

    threading.Thread(target=read, daemon=True).start()
    return future


class Scenario:
    """The facts of one scenario, and its connections, closed when it ends."""

    def __init__(self, options, name):
        self.options = options
        self.name = name
        self.prefix = "s" + uuid.uuid4().hex[:10]
        self.facts = {}
        self.notes = {}
        self.failures = []
        self.connections = []

    def subject(self, rest):
        return f"{self.prefix}.{rest}"

    def relative(self, subject):
        return subject.removeprefix(self.prefix + ".")

    def fact(self, name, value):
        self.facts[name] = value

    def expect(self, name, value, wanted):
        self.facts[name] = value
        if value != wanted:
            self.failures.append(f"{name}: {value!r} instead of {wanted!r}")

    def note(self, name, value):
        self.notes[name] = value

    def tls(self, cert=None, key=None):
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.options.ca)
        if cert:
            context.load_cert_chain(cert, key)
        return context

    async def connect(self, **extra):
        """A client, and the events that its callbacks reported, as (name, detail)."""
        events = []
        client = nats.NATS()
        client.events = events

        def report(name):
            async def callback(detail=None):
                events.append((name, detail))

            return callback

        certificate = extra.pop("certificate", (self.options.cert, self.options.key))
        options = {
            "servers": [self.options.url],
            "tls": self.tls(*certificate),
            "tls_handshake_first": self.options.tls_first,
            "allow_reconnect": False,
            "connect_timeout": 3,
            "error_cb": report("error"),
            "disconnected_cb": report("disconnected"),
            "reconnected_cb": report("reconnected"),
            "closed_cb": report("closed"),
            "lame_duck_mode_cb": report("lame duck"),
        }
        await client.connect(**{**options, **extra})
        self.connections.append(client)
        return client

    async def event(self, client, name, timeout=5.0):
        """Waits for an event and returns its detail."""
        await self.until(lambda: any(n == name for n, _ in client.events), timeout, f"event '{name}'")
        return next(detail for n, detail in client.events if n == name)

    async def until(self, condition, timeout=5.0, what="condition"):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} within {timeout} s")
            await asyncio.sleep(0.005)

    async def take(self, subscription, count, timeout=5.0):
        """The next messages of a subscription, at most `count`; fewer when nothing more comes in time."""
        messages = []
        try:
            while len(messages) < count:
                messages.append(await subscription.next_msg(timeout))
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            pass
        return messages

    async def flush(self, client):
        """Returns when the server has done all that the client asked for before.

        This client's flush writes its PING before the commands that still wait in its buffer, so only the second PING is
        surely behind them.
        """
        await client.flush(5)
        await client.flush(5)

    async def rest(self, client, subscription):
        """What has arrived up to now: after a flush nothing that was sent before it is still on its way."""
        await self.flush(client)
        messages = []
        while subscription.pending_msgs > 0:
            messages.append(await subscription.next_msg(1))
        return messages

    async def harness(self, action):
        """Asks whoever started the program to do something to the server, and waits until it says that it is done."""
        emit({"ready": self.name, "action": action})
        line = await stdin_line()
        if line.strip() != "done":
            raise RuntimeError(f"no harness did '{action}'")

    async def close(self):
        for client in self.connections:
            try:
                await asyncio.wait_for(client.close(), 2)
            except Exception as error:  # A client that is broken already is what some scenarios are about.
                self.note("close", repr(error))


async def run_scenario(options, name, function, seconds):
    scenario = Scenario(options, name)
    began = time.monotonic()
    error = None
    try:
        await asyncio.wait_for(function(scenario), seconds)
    except (asyncio.TimeoutError, TimeoutError) as timeout:
        error = f"timeout: {timeout}" if str(timeout) else f"timeout after {seconds} s"
    except Exception as failure:
        error = f"{name_of(failure)}: {failure}"
    await scenario.close()
    if error is None and scenario.failures:
        error = "; ".join(scenario.failures)
    scenario.note("ms", round((time.monotonic() - began) * 1000))
    emit(
        {
            "scenario": name,
            "outcome": scenario.facts,
            "notes": scenario.notes,
            "ok": error is None,
            "error": error,
        }
    )
    return error is None
