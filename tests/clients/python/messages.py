"""Scenarios about messages: names, headers, groups, requests, ends of subscriptions, order and sizes."""

import asyncio
import hashlib
import time

import nats.errors

from harness import name_of

SUBJECTS = ["a", "a.b", "a.c", "x.b", "a.b.c"]
# Filters, and the subjects that each of them gets.
FILTERS = {
    "*": ["a"],
    ">": SUBJECTS,
    "a.*": ["a.b", "a.c"],
    "*.b": ["a.b", "x.b"],
    "a.>": ["a.b", "a.c", "a.b.c"],
    "a.b": ["a.b"],
    "*.*.c": ["a.b.c"],
    "a": ["a"],
    "b.>": [],
}


async def wildcards(s):
    client = await s.connect()
    subscriptions = {f: await client.subscribe(s.subject(f)) for f in FILTERS}
    twice = await client.subscribe(s.subject("a.b"))
    for subject in SUBJECTS:
        await client.publish(s.subject(subject), b"x")
    for name, subscription in subscriptions.items():
        s.expect(name, [s.relative(m.subject) for m in await s.rest(client, subscription)], FILTERS[name])
    s.expect("same filter twice", len(await s.rest(client, twice)), 1)


async def headers(s):
    client = await s.connect()
    subscription = await client.subscribe(s.subject("h"))
    sent = {"Key": "v1", "key": "lower", "X-Space": "a b  c", "X-Colon": "a:b", "X-Text": "grün"}
    await client.publish(s.subject("h"), b"body", headers=sent)
    await client.publish(s.subject("h"), b"", headers={"Only": "header"})
    await client.publish(s.subject("h"), b"plain")
    got = await s.take(subscription, 3)
    s.expect("headers", [[k, [v]] for k, v in (got[0].headers or {}).items()], [[k, [v]] for k, v in sent.items()])
    s.expect("body", got[0].data.decode(), "body")
    s.expect("empty body", [got[1].data.decode(), got[1].headers], ["", {"Only": "header"}])
    s.expect("no headers", got[2].headers is None, True)


async def queue_groups(s):
    client, other = await s.connect(), await s.connect()
    members = [await c.subscribe(s.subject("q"), queue="g") for c in (client, client, other)]
    second = await other.subscribe(s.subject("q"), queue="h")
    plain = await other.subscribe(s.subject("q"))
    filters = [await client.subscribe(s.subject(f), queue="k") for f in ("o.*", "o.>")]
    await s.flush(client)
    await s.flush(other)
    for n in range(90):
        await client.publish(s.subject("q"), str(n).encode())
        await client.publish(s.subject("o.x"), str(n).encode())
    await s.flush(client)
    shares = [await s.rest(c, m) for c, m in zip((client, client, other), members)]
    seen = sorted(int(m.data) for share in shares for m in share)
    s.expect("each message once", seen == list(range(90)), True)
    s.expect("every member got some", all(shares), True)
    s.expect("second group", len(await s.rest(other, second)), 90)
    s.expect("plain subscriber", len(await s.rest(other, plain)), 90)
    shared = [await s.rest(client, f) for f in filters]
    s.expect("two filters, one group", sorted(int(m.data) for f in shared for m in f) == list(range(90)), True)


async def request_reply(s):
    client, other = await s.connect(), await s.connect()

    async def answer(message):
        await message.respond(b"re:" + message.data)

    async def silent(message):
        pass

    await other.subscribe(s.subject("echo"), cb=answer)
    await other.subscribe(s.subject("silent"), cb=silent)
    await s.flush(other)
    reply = await client.request(s.subject("echo"), b"one", timeout=3)
    s.expect("reply", reply.data.decode(), "re:one")
    s.expect("inbox", reply.subject.split(".")[0], "_INBOX")
    many = await asyncio.gather(*(client.request(s.subject("echo"), str(n).encode(), timeout=3) for n in range(20)))
    s.expect("matched", [m.data.decode() for m in many] == [f"re:{n}" for n in range(20)], True)
    s.expect("old style", (await client.request(s.subject("echo"), b"o", timeout=3, old_style=True)).data.decode(), "re:o")
    with_headers = await client.request(s.subject("echo"), b"h", timeout=3, headers={"A": "b"})
    s.expect("with headers", with_headers.data.decode(), "re:h")
    try:
        await client.request(s.subject("silent"), b"", timeout=0.2)
        s.expect("silence", "answered", "timeout")
    except nats.errors.TimeoutError as error:
        s.fact("silence", name_of(error))


async def many_replies(s):
    client, other = await s.connect(), await s.connect()

    async def answer(message):
        for n in range(5):
            await message.respond(str(n).encode())

    await other.subscribe(s.subject("many"), cb=answer)
    await s.flush(other)
    inbox = client.new_inbox()
    replies = await client.subscribe(inbox)
    await client.publish(s.subject("many"), b"", reply=inbox)
    s.expect("replies", [m.data.decode() for m in await s.take(replies, 5)], list("01234"))
    await s.flush(client)
    s.expect("no more", len(await s.rest(client, replies)), 0)


async def no_responders(s):
    client = await s.connect()
    began = time.monotonic()
    try:
        await client.request(s.subject("nobody"), b"", timeout=3)
        s.expect("error", None, "NoRespondersError")
    except nats.errors.Error as error:
        s.expect("error", name_of(error), "NoRespondersError")
    took = time.monotonic() - began
    s.expect("fast", took < 1.0, True)
    s.note("ms to error", round(took * 1000, 1))
    inbox = client.new_inbox()
    replies = await client.subscribe(inbox)
    await client.publish(s.subject("nobody"), b"question", reply=inbox)
    got = await s.take(replies, 1)
    s.expect("status", (got[0].headers or {}).get("Status") if got else None, "503")
    s.expect("body", got[0].data.decode() if got else None, "")
    s.expect("to the inbox", bool(got) and got[0].subject == inbox, True)
    s.note("headers", got[0].headers if got else None)
    await client.publish(s.subject("nobody"), b"", reply=s.subject("unread"))
    await s.flush(client)
    s.expect("reply that nobody reads", client.events, [])


async def unsubscribe_max(s):
    client, other = await s.connect(), await s.connect()
    limited = await client.subscribe(s.subject("l"))
    await limited.unsubscribe(3)
    gone = await client.subscribe(s.subject("l"))
    await gone.unsubscribe()
    taken = await client.subscribe(s.subject("l"))
    await s.flush(client)
    for n in range(5):
        await other.publish(s.subject("l"), str(n).encode())
    await s.flush(other)
    await s.flush(client)
    s.expect("at most three", [m.data.decode() for m in await s.take(limited, 5, 0.2)], ["0", "1", "2"])
    s.expect("ended at once", gone._id in client._subs, False)
    s.expect("no limit", len(await s.take(taken, 5)), 5)
    # On the wire, since the client itself stops to deliver: a limit below what was delivered ends the subscription now.
    await client._send_unsubscribe(taken._id, limit=2)
    await s.flush(client)
    await other.publish(s.subject("l"), b"late")
    await s.flush(other)
    s.expect("limit reached already", len(await s.rest(client, taken)), 0)
    await client._send_unsubscribe(4711)
    await s.flush(client)
    s.expect("unknown subscription", client.events, [])


async def flush_order(s):
    client, other = await s.connect(), await s.connect()
    own = await client.subscribe(s.subject("own"))
    seen = 0
    for n in range(50):
        subscription = await client.subscribe(s.subject(f"f.{n}"))
        await client.publish(s.subject(f"f.{n}"), b"x")
        await s.flush(client)
        seen += subscription.pending_msgs
    s.expect("own messages before the pong", seen, 50)
    seen = 0
    for n in range(50):
        await other.publish(s.subject("own"), b"x")
        await s.flush(other)
        await s.flush(client)
        seen += own.pending_msgs
        await own.next_msg(1)
    s.expect("others' messages before the pong", seen, 50)



async def drain_subscription(s):
    client, other = await s.connect(), await s.connect()
    processed = []

    async def slow(message):
        await asyncio.sleep(0.001)
        processed.append(message.data)

    subscription = await client.subscribe(s.subject("d"), cb=slow)
    await s.flush(client)
    for _ in range(100):
        await other.publish(s.subject("d"), b"x")
    await s.flush(other)
    await s.flush(client)
    await subscription.drain()
    await s.until(lambda: len(processed) == 100, 5, "drained messages")
    await other.publish(s.subject("d"), b"late")
    await s.flush(other)
    await s.flush(client)
    s.expect("processed", len(processed), 100)
    s.expect("open", client.is_connected, True)


async def drain_connection(s):
    client, other = await s.connect(), await s.connect()
    processed = []

    async def answer(message):
        await asyncio.sleep(0.001)
        processed.append(message.data)
        await client.publish(s.subject("answers"), message.data)

    await client.subscribe(s.subject("d"), cb=answer)
    answers = await other.subscribe(s.subject("answers"))
    await s.flush(client)
    await s.flush(other)
    for _ in range(100):
        await other.publish(s.subject("d"), b"x")
    await s.flush(other)
    await s.flush(client)
    await client.drain()
    s.expect("processed", len(processed), 100)
    s.expect("answers sent while draining", len(await s.take(answers, 100)), 100)
    s.expect("closed", client.is_closed, True)


async def echo_off(s):
    client, other = await s.connect(no_echo=True), await s.connect()
    own = await client.subscribe(s.subject("e"))
    others = await other.subscribe(s.subject("e"))
    await s.flush(client)
    await s.flush(other)
    await client.publish(s.subject("e"), b"x")
    await s.flush(client)
    s.expect("own", len(await s.rest(client, own)), 0)
    s.expect("other's", len(await s.rest(other, others)), 1)
    await other.publish(s.subject("e"), b"y")
    await s.flush(other)
    s.expect("from another", len(await s.rest(client, own)), 1)


async def literal_wildcards(s):
    client = await s.connect()
    filters = {"l.>": ["l.*", "l.>"], "l.*": ["l.*", "l.>"], "l.x": []}
    subscriptions = [await client.subscribe(s.subject(f)) for f in filters]
    for subject in ("l.*", "l.>"):
        await client.publish(s.subject(subject), b"x")
    for (name, wanted), subscription in zip(filters.items(), subscriptions):
        s.expect(name, [s.relative(m.subject) for m in await s.rest(client, subscription)], wanted)
    s.expect("open", client.is_connected, True)


async def empty_payload(s):
    client = await s.connect()
    subscription = await client.subscribe(s.subject("e"))
    await client.publish(s.subject("e"), b"")
    await client.publish(s.subject("e"), b"", reply="r.e")
    got = await s.take(subscription, 2)
    s.expect("payloads", [m.data.decode() for m in got], ["", ""])
    s.expect("replies", [m.reply for m in got], ["", "r.e"])


async def large_payload(s):
    client, other = await s.connect(), await s.connect()
    subscription = await other.subscribe(s.subject("l"))
    await s.flush(other)
    limit = client.max_payload
    sizes = [limit, limit - 1, limit // 2, 65_536, 65_535, 4096]
    hashes = []
    for size in sizes:
        payload = hashlib.sha256(str(size).encode()).digest() * (size // 32 + 1)
        payload = payload[:size]
        hashes.append(hashlib.sha256(payload).hexdigest())
        await client.publish(s.subject("l"), payload)
    got = await s.take(subscription, len(sizes))
    s.expect("same content", [hashlib.sha256(m.data).hexdigest() for m in got] == hashes, True)
    payload = b"x" * (limit - 200)
    await client.publish(s.subject("l"), payload, headers={"A": "b"})
    got = await s.take(subscription, 1)
    s.expect("with headers", bool(got) and got[0].data == payload and got[0].headers == {"A": "b"}, True)
    s.note("max_payload", limit)


async def max_payload(s):
    client = await s.connect()
    limit = client.max_payload
    try:
        await client.publish(s.subject("m"), b"x" * (limit + 1))
        s.expect("client", None, "MaxPayloadError")
    except nats.errors.Error as error:
        s.expect("client", name_of(error), "MaxPayloadError")
    await s.flush(client)
    s.expect("open", client.is_connected, True)
    client._max_payload = limit * 4
    await client.publish(s.subject("m"), b"x" * (limit + 1))
    await s.event(client, "closed")
    text = next((str(detail) for name, detail in client.events if name == "error"), None)
    s.note("error", text)
    s.expect("server closes", client.is_closed, True)
    hinted = await s.connect()
    hinted._max_payload = limit * 4
    # The headers count too.
    await hinted.publish(s.subject("m"), b"x" * (limit - 1), headers={"A": "b"})
    await s.event(hinted, "closed")
    s.expect("headers count", hinted.is_closed, True)


async def thousand_subjects(s):
    client, other = await s.connect(), await s.connect()
    counts = {}

    def count(n):
        async def callback(message):
            counts.setdefault(n, []).append(message.data.decode())

        return callback

    subscriptions = [await client.subscribe(s.subject(f"t.{n}"), cb=count(n)) for n in range(1000)]
    await s.flush(client)
    for n in range(1000):
        await other.publish(s.subject(f"t.{n}"), str(n).encode())
    await s.flush(other)
    await s.until(lambda: len(counts) == 1000, 5, "1000 subjects")
    s.expect("each its own", all(counts[n] == [str(n)] for n in range(1000)), True)
    counts.clear()
    for subscription in subscriptions[::2]:
        await subscription.unsubscribe()
    await s.flush(client)
    for n in range(1000):
        await other.publish(s.subject(f"t.{n}"), str(n).encode())
    await s.flush(other)
    await s.flush(client)
    await s.until(lambda: len(counts) >= 500, 5, "500 subjects")
    s.expect("after half were ended", sorted(counts) == list(range(1, 1000, 2)), True)


async def ten_thousand(s):
    client, other = await s.connect(), await s.connect()
    subscription = await other.subscribe(s.subject("n"), pending_msgs_limit=-1)
    await s.flush(other)
    for n in range(10_000):
        await client.publish(s.subject("n"), f"{n:016}".encode())
    await s.flush(client)
    got = await s.take(subscription, 10_000)
    s.expect("received", len(got), 10_000)
    s.expect("in order", [int(m.data) for m in got] == list(range(10_000)), True)
    s.expect("none left", len(await s.rest(other, subscription)), 0)


SCENARIOS = [
    wildcards,
    headers,
    queue_groups,
    request_reply,
    many_replies,
    no_responders,
    unsubscribe_max,
    flush_order,
    drain_subscription,
    drain_connection,
    echo_off,
    literal_wildcards,
    empty_payload,
    large_payload,
    max_payload,
    thousand_subjects,
    ten_thousand,
]
