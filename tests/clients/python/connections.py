"""Scenarios about connections: what a server says of itself, who gets in, what may be done, and how connections end."""

import asyncio
import re
import time

import nats.errors

from harness import name_of


async def info(s):
    client = await s.connect()
    told = client._server_info
    s.expect("headers", told.get("headers"), True)
    s.expect("tls_required", told.get("tls_required"), True)
    s.expect("tls_verify", told.get("tls_verify"), True)
    s.expect("proto", told.get("proto"), 1)
    s.expect("semver", bool(re.fullmatch(r"\d+\.\d+\.\d+(-.+)?", told.get("version", ""))), True)
    s.expect("nonce", "nonce" in told, False)
    s.expect("jetstream", bool(told.get("jetstream")), False)
    s.expect("client_id", isinstance(told.get("client_id"), int) and told["client_id"] > 0, True)
    s.note("info", told)


async def verbose_pedantic(s):
    verbose = await s.connect(verbose=True)
    subscription = await verbose.subscribe(s.subject("v"))
    for n in range(20):
        await verbose.publish(s.subject("v"), str(n).encode())
    s.expect("verbose", len(await s.take(subscription, 20)), 20)
    s.expect("verbose errors", verbose.events, [])
    pedantic = await s.connect(pedantic=True)
    subscription = await pedantic.subscribe(s.subject("p"))
    for n in range(20):
        await pedantic.publish(s.subject("p"), str(n).encode())
    s.expect("pedantic", len(await s.take(subscription, 20)), 20)
    await pedantic.publish(s.subject("*"), b"x")
    # This client closes on every error that is not a permissions violation.
    await s.event(pedantic, "closed")
    s.fact("pedantic error", str(next((d for n, d in pedantic.events if n == "error"), None)))


async def permissions(s):
    client = await s.connect()
    denied = s.options.denied
    own = await client.subscribe(s.subject("p"))

    def told(start):
        return [str(d).lower() for n, d in client.events[start:] if n == "error"]

    await client.publish(denied, b"x")
    await s.flush(client)
    s.expect("publish", [e.startswith("nats: permissions violation for publish to ") for e in told(0)], [True])
    s.expect("publish names the subject", [f'"{denied.lower()}"' in e for e in told(0)], [True])
    before = len(client.events)
    await client.subscribe(denied)
    await s.flush(client)
    s.expect("subscribe", [e.startswith("nats: permissions violation for subscription to ") for e in told(before)], [True])
    before = len(client.events)
    await client.subscribe(denied, queue="workers")
    await s.flush(client)
    s.expect("subscribe names the queue", [f'"{denied.lower()}" using queue "workers"' in e for e in told(before)], [True])
    try:
        await client.request(denied, b"", timeout=0.3)
        s.expect("request", "answered", "refused")
    except nats.errors.Error as error:
        s.fact("request", name_of(error))
    await client.publish(s.subject("p"), b"still here")
    s.expect("open", [m.data.decode() for m in await s.take(own, 1)], ["still here"])
    s.expect("not closed", [n for n, _ in client.events if n in ("closed", "disconnected")], [])
    s.note("texts", told(0))


async def refused(s, **options):
    began = time.monotonic()
    try:
        client = await asyncio.wait_for(s.connect(**options), 6)
    except Exception as error:
        s.note("refusals", s.notes.get("refusals", []) + [f"{name_of(error)}: {error} ({time.monotonic() - began:.2f} s)"])
        return True
    # TLS 1.3 lets a client finish before the server has looked at its certificate: it must not get an answer.
    try:
        await client.flush(2)
    except Exception:
        return True
    return not client.is_connected


async def certificates(s):
    s.expect("none", await refused(s, certificate=(None, None)), True)
    s.expect("none, with password", await refused(s, certificate=(None, None), user="admin", password="admin"), True)
    s.expect("none, with token", await refused(s, certificate=(None, None), token="admin"), True)
    for entry in s.options.refused:
        name, _, files = entry.partition("=")
        cert, _, key = files.partition(":")
        s.expect(name, await refused(s, certificate=(cert, key)), True)
    await s.connect()
    s.expect("own", True, True)


async def credentials(s):
    """User names, passwords and tokens beside a certificate open nothing; a server may also refuse the whole connection."""
    for name, options in {
        "password grants": {"user": "admin", "password": "admin"},
        "token grants": {"token": "admin"},
    }.items():
        try:
            client = await s.connect(**options)
        except nats.errors.Error as error:
            s.expect(name, False, False)
            s.note(name, str(error))
            continue
        await client.publish(s.options.denied, b"x")
        await s.flush(client)
        s.expect(name, not any("permissions violation" in str(d) for n, d in client.events if n == "error"), False)


async def handshake_orders(s):
    for name, first in (("INFO first", False), ("TLS first", True)):
        try:
            client = await s.connect(tls_handshake_first=first, connect_timeout=2)
            subscription = await client.subscribe(s.subject("t"))
            await client.publish(s.subject("t"), b"x")
            s.fact(name, len(await s.take(subscription, 1)) == 1)
        except Exception as error:
            s.fact(name, False)
            s.note(name, f"{name_of(error)}: {error}")
    if not s.facts["INFO first"] and not s.facts["TLS first"]:
        s.failures.append("neither order works")


async def slow_consumer(s):
    client, other = await s.connect(), await s.connect()
    release = asyncio.Event()
    handled = []

    async def stuck(message):
        await release.wait()
        handled.append(message.data)

    await client.subscribe(s.subject("slow"), cb=stuck, pending_msgs_limit=10)
    quick = await client.subscribe(s.subject("quick"))
    await s.flush(client)
    for n in range(200):
        await other.publish(s.subject("slow"), str(n).encode())
    await other.publish(s.subject("quick"), b"x")
    await s.flush(other)
    s.expect("error", name_of(await s.event(client, "error")), "SlowConsumerError")
    s.expect("others are served", len(await s.take(quick, 1)), 1)
    release.set()
    await s.until(lambda: len(handled) >= 10, 5, "the kept messages")
    s.expect("in order from the first", [int(d) for d in handled[:10]], list(range(10)))
    s.expect("open", client.is_connected, True)


async def close(s):
    client, other = await s.connect(), await s.connect()

    async def answer(message):
        await message.respond(b"yes")

    await client.subscribe(s.subject("c"), cb=answer)
    await s.flush(client)
    s.expect("answer", (await other.request(s.subject("c"), b"", timeout=3)).data.decode(), "yes")
    await client.close()
    s.expect("told", [n for n, _ in client.events], ["disconnected", "closed"])
    try:
        await client.publish(s.subject("c"), b"x")
        s.expect("publish afterwards", None, "ConnectionClosedError")
    except nats.errors.Error as error:
        s.expect("publish afterwards", name_of(error), "ConnectionClosedError")

    async def gone():
        try:
            await other.request(s.subject("c"), b"", timeout=0.5)
        except nats.errors.Error as error:
            return name_of(error)
        return None

    deadline = time.monotonic() + 3
    while (answered := await gone()) != "NoRespondersError" and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    s.expect("its subscriptions are gone", answered, "NoRespondersError")


async def inbox_prefix(s):
    client, other = await s.connect(inbox_prefix=f"_INBOX.{s.prefix}.me"), await s.connect()

    async def answer(message):
        await message.respond(message.reply.encode())

    await other.subscribe(s.subject("i"), cb=answer)
    await s.flush(other)
    reply = await client.request(s.subject("i"), b"", timeout=3)
    s.expect("prefix", reply.data.decode().startswith(f"_INBOX.{s.prefix}.me."), True)


async def pings(s):
    client = await s.connect(ping_interval=0.1, max_outstanding_pings=2)
    subscription = await client.subscribe(s.subject("p"))
    await asyncio.sleep(1)
    await client.publish(s.subject("p"), b"x")
    s.expect("open after ten pings", len(await s.take(subscription, 1)), 1)
    s.expect("events", client.events, [])


def patient(s):
    return s.connect(allow_reconnect=True, reconnect_time_wait=0.1, max_reconnect_attempts=-1, connect_timeout=1)


async def works_again(s, client, subscription):
    """After the server came back, the old subscription receives again."""
    await s.event(client, "reconnected", 20)
    await s.flush(client)
    await client.publish(s.subject("again"), b"after")
    s.expect("subscription lives on", [m.data.decode() for m in await s.take(subscription, 1)], ["after"])
    s.expect("request", (await client.request(s.subject("echo"), b"again", timeout=3)).data.decode(), "again")


async def answering(s, client):
    async def answer(message):
        await message.respond(message.data)

    await client.subscribe(s.subject("echo"), cb=answer)
    return await client.subscribe(s.subject("again"))


async def reconnect(s):
    client = await patient(s)
    subscription = await answering(s, client)
    await s.flush(client)
    await s.harness("restart")
    await s.event(client, "disconnected", 10)
    await works_again(s, client, subscription)
    s.fact("events", sorted({n for n, _ in client.events if n not in ("error", "lame duck")}))


async def lame_duck(s):
    client = await patient(s)
    subscription = await answering(s, client)
    await s.flush(client)
    await s.harness("lame duck")
    await s.event(client, "lame duck", 10)
    await s.event(client, "disconnected", 10)
    await works_again(s, client, subscription)
    names = [n for n, _ in client.events if n != "error"]
    s.expect("told before the end", names.index("lame duck") < names.index("disconnected"), True)
    s.fact("events", sorted(set(names)))


SCENARIOS = [
    info,
    verbose_pedantic,
    permissions,
    certificates,
    credentials,
    handshake_orders,
    slow_consumer,
    close,
    inbox_prefix,
    pings,
]
# These need somebody who does things to the server.
WITH_HARNESS = [reconnect, lame_duck]
