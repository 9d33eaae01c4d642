"""The parts of a matrix test: this client publishes, subscribes, asks or answers, as it is told on the command line."""

import asyncio
import time

import nats.errors

from harness import emit, name_of, stdin_line


async def publish(s):
    options = s.options
    client = await s.connect()
    for n in range(options.count):
        await client.publish(options.subject, f"{options.id}-{n}".encode())
    await client.flush(5)
    denied = [str(d) for n, d in client.events if n == "error"]
    return {"published": options.count, "errors": denied}, not denied


async def subscribe(s):
    """Ends when all that it expects has come and nothing more for a while, or a line or the end of standard input says so."""
    options = s.options
    client = await s.connect()
    received = []
    changed = asyncio.Event()

    async def count(message):
        received.append(message.data.decode(errors="replace"))
        changed.set()

    await client.subscribe(options.subject, queue=options.queue, cb=count)
    await client.flush(5)
    emit({"ready": "sub", "errors": [str(d) for n, d in client.events if n == "error"]})
    stop = stdin_line()
    deadline = time.monotonic() + options.timeout_ms / 1000
    while not stop.done() and time.monotonic() < deadline:
        full = options.expect > 0 and len(received) >= options.expect
        wait = options.settle_ms / 1000 if full else min(0.2, max(0.0, deadline - time.monotonic()))
        changed.clear()
        try:
            await asyncio.wait_for(changed.wait(), wait)
        except asyncio.TimeoutError:
            if full:
                break
    try:
        await client.flush(2)
    except nats.errors.Error:
        pass
    by_publisher = {}
    for text in received:
        publisher = text.rpartition("-")[0]
        by_publisher[publisher] = by_publisher.get(publisher, 0) + 1
    result = {
        "received": len(received),
        "duplicates": len(received) - len(set(received)),
        "by_publisher": by_publisher,
        "errors": [str(d) for n, d in client.events if n == "error"],
    }
    return result, len(received) == options.expect and result["duplicates"] == 0


async def ask(s):
    options = s.options
    client = await s.connect()
    replies, errors = [], []
    for n in range(options.count):
        try:
            reply = await client.request(options.subject, f"{options.id}-{n}".encode(), timeout=options.timeout_ms / 1000)
            replies.append(reply.data.decode(errors="replace"))
        except nats.errors.Error as error:
            errors.append(name_of(error))
    return {"replies": replies, "errors": errors}, len(replies) == options.expect


async def answer(s):
    options = s.options
    client = await s.connect()
    answered = 0

    async def respond(message):
        nonlocal answered
        answered += 1
        await message.respond(options.id.encode() + b":" + message.data)

    await client.subscribe(options.subject, queue=options.queue, cb=respond)
    await client.flush(5)
    emit({"ready": "reply", "errors": [str(d) for n, d in client.events if n == "error"]})
    try:
        await asyncio.wait_for(stdin_line(), options.timeout_ms / 1000)
    except asyncio.TimeoutError:
        pass
    await client.flush(2)
    return {"answered": answered}, True


ROLES = {"pub": publish, "sub": subscribe, "request": ask, "reply": answer}
