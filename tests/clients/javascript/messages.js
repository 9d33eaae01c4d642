// Scenarios about messages: names, headers, groups, requests, ends of subscriptions, order and sizes.

import { createInbox, headers as makeHeaders } from "@nats-io/nats-core";
import { createHash } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import { nameOf, sleep } from "./harness.js";

const SUBJECTS = ["a", "a.b", "a.c", "x.b", "a.b.c"];
// Filters, and the subjects that each of them gets.
const FILTERS = {
  "*": ["a"],
  ">": SUBJECTS,
  "a.*": ["a.b", "a.c"],
  "*.b": ["a.b", "x.b"],
  "a.>": ["a.b", "a.c", "a.b.c"],
  "a.b": ["a.b"],
  "*.*.c": ["a.b.c"],
  a: ["a"],
  "b.>": [],
};
const range = (count, from = 0, step = 1) => Array.from({ length: count }, (_, n) => from + n * step);
const sorted = (numbers) => [...numbers].sort((a, b) => a - b);
const sha256 = (data) => createHash("sha256").update(data).digest("hex");

async function wildcards(s) {
  const client = await s.connect();
  const subscriptions = Object.keys(FILTERS).map((f) => s.subscribe(client, s.subject(f)));
  const twice = s.subscribe(client, s.subject("a.b"));
  for (const subject of SUBJECTS) client.publish(s.subject(subject), "x");
  await client.flush();
  const subjects = (n) => subscriptions[n].messages.map((m) => s.relative(m.subject));
  Object.entries(FILTERS).forEach(([f, wanted], n) => s.expect(f, subjects(n), wanted));
  s.expect("same filter twice", twice.messages.length, 1);
}

async function headers(s) {
  const client = await s.connect();
  const subscription = s.subscribe(client, s.subject("h"));
  const sent = makeHeaders();
  sent.append("Key", "v1");
  sent.append("Key", "v2");
  sent.append("key", "lower");
  sent.append("X-Space", "a b  c");
  sent.append("X-Colon", "a:b");
  sent.append("X-Text", "grün");
  const only = makeHeaders();
  only.append("Only", "header");
  client.publish(s.subject("h"), "body", { headers: sent });
  client.publish(s.subject("h"), "", { headers: only });
  client.publish(s.subject("h"), "plain");
  const got = await s.take(subscription, 3);
  const wanted = [["Key", ["v1", "v2"]], ["key", ["lower"]], ["X-Space", ["a b  c"]], ["X-Colon", ["a:b"]], ["X-Text", ["grün"]]];
  s.expect("headers", [...got[0].headers], wanted);
  s.expect("body", got[0].string(), "body");
  s.expect("empty body", [got[1].string(), [...got[1].headers]], ["", [["Only", ["header"]]]]);
  s.expect("no headers", got[2].headers === undefined, true);
}

async function queueGroups(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const members = [client, client, other].map((c) => s.subscribe(c, s.subject("q"), { queue: "g" }));
  const second = s.subscribe(other, s.subject("q"), { queue: "h" });
  const plain = s.subscribe(other, s.subject("q"));
  const filters = ["o.*", "o.>"].map((f) => s.subscribe(client, s.subject(f), { queue: "k" }));
  await client.flush();
  await other.flush();
  for (const n of range(90)) {
    client.publish(s.subject("q"), `${n}`);
    client.publish(s.subject("o.x"), `${n}`);
  }
  await client.flush();
  await other.flush();
  const numbers = (subs) => sorted(subs.flatMap((m) => m.messages.map((x) => Number(x.string()))));
  s.expect("each message once", isDeepStrictEqual(numbers(members), range(90)), true);
  s.expect("every member got some", members.every((m) => m.messages.length > 0), true);
  s.expect("second group", second.messages.length, 90);
  s.expect("plain subscriber", plain.messages.length, 90);
  s.expect("two filters, one group", isDeepStrictEqual(numbers(filters), range(90)), true);
}

async function requestReply(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const answer = (data) => `re:${Buffer.from(data)}`;
  s.respond(other, s.subject("echo"), answer);
  s.subscribe(other, s.subject("silent"));
  await other.flush();
  const reply = await client.request(s.subject("echo"), "one", { timeout: 3000 });
  s.expect("reply", reply.string(), "re:one");
  s.expect("inbox", reply.subject.split(".")[0], "_INBOX");
  const many = await Promise.all(range(20).map((n) => client.request(s.subject("echo"), `${n}`, { timeout: 3000 })));
  s.expect("matched", isDeepStrictEqual(many.map((m) => m.string()), range(20).map((n) => `re:${n}`)), true);
  const old = await client.request(s.subject("echo"), "o", { timeout: 3000, noMux: true });
  s.expect("old style", old.string(), "re:o");
  const h = makeHeaders();
  h.append("A", "b");
  const withHeaders = await client.request(s.subject("echo"), "h", { timeout: 3000, headers: h });
  s.expect("with headers", withHeaders.string(), "re:h");
  try {
    await client.request(s.subject("silent"), "", { timeout: 200 });
    s.expect("silence", "answered", "timeout");
  } catch (error) {
    s.fact("silence", nameOf(error));
  }
}

async function manyReplies(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  other.subscribe(s.subject("many"), { callback: (_, m) => range(5).forEach((n) => m.respond(`${n}`)) });
  await other.flush();
  const inbox = createInbox();
  const replies = s.subscribe(client, inbox);
  client.publish(s.subject("many"), "", { reply: inbox });
  s.expect("replies", (await s.take(replies, 5)).map((m) => m.string()), ["0", "1", "2", "3", "4"]);
  await client.flush();
  s.expect("no more", replies.messages.length - 5, 0);
  for (const strategy of ["count", "stall"]) {
    const got = [];
    const options = { strategy, maxMessages: 5, maxWait: 2000, stall: 150 };
    for await (const m of await client.requestMany(s.subject("many"), "", options)) got.push(m.string());
    s.expect(`requestMany ${strategy}`, got, ["0", "1", "2", "3", "4"]);
  }
}

async function noResponders(s) {
  const client = await s.connect();
  const began = performance.now();
  try {
    await client.request(s.subject("nobody"), "", { timeout: 3000 });
    s.expect("error", null, "RequestError/NoResponders");
  } catch (error) {
    s.expect("error", nameOf(error), "RequestError/NoResponders");
  }
  const took = performance.now() - began;
  s.expect("fast", took < 1000, true);
  s.note("ms to error", Math.round(took * 10) / 10);
  const inbox = createInbox();
  const replies = s.subscribe(client, inbox);
  client.publish(s.subject("nobody"), "question", { reply: inbox });
  const [got] = await s.take(replies, 1);
  s.expect("status", `${got?.headers?.code}`, "503");
  s.expect("body", got?.string(), "");
  s.expect("to the inbox", got?.subject === inbox, true);
  s.note("headers", got?.headers ? [...got.headers] : null);
  client.publish(s.subject("nobody"), "", { reply: s.subject("unread") });
  await client.flush();
  s.expect("reply that nobody reads", s.errors(client).map(nameOf), []);
}

async function unsubscribeMax(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const limited = s.subscribe(client, s.subject("l"), { max: 3 });
  const gone = s.subscribe(client, s.subject("l"));
  gone.unsubscribe();
  const taken = s.subscribe(client, s.subject("l"));
  await client.flush();
  for (const n of range(5)) other.publish(s.subject("l"), `${n}`);
  await other.flush();
  await client.flush();
  s.expect("at most three", limited.messages.map((m) => m.string()), ["0", "1", "2"]);
  s.expect("limited is closed", limited.isClosed(), true);
  s.expect("ended at once", gone.messages.length, 0);
  s.expect("no limit", taken.messages.length, 5);
  // On the wire, since the client itself stops to deliver: a limit below what was delivered ends the subscription now.
  const before = client.stats().inMsgs;
  client.protocol.sendCommand(`UNSUB ${taken.getID()} 2\r\n`);
  await client.flush();
  other.publish(s.subject("l"), "late");
  await other.flush();
  await client.flush();
  s.expect("limit reached already", client.stats().inMsgs - before, 0);
  client.protocol.sendCommand("UNSUB 4711\r\n");
  await client.flush();
  s.expect("unknown subscription", s.errors(client).map(nameOf), []);
}

async function flushOrder(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  let seen = 0;
  for (const n of range(50)) {
    const subscription = s.subscribe(client, s.subject(`f.${n}`));
    client.publish(s.subject(`f.${n}`), "x");
    await client.flush();
    seen += subscription.messages.length;
  }
  s.expect("own messages before the pong", seen, 50);
  const own = s.subscribe(client, s.subject("own"));
  await client.flush();
  seen = 0;
  for (const n of range(50)) {
    other.publish(s.subject("own"), "x");
    await other.flush();
    await client.flush();
    if (own.messages.length === n + 1) seen += 1;
  }
  s.expect("others' messages before the pong", seen, 50);
}

async function drainSubscription(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const subscription = client.subscribe(s.subject("d"));
  await client.flush();
  for (const _ of range(100)) other.publish(s.subject("d"), "x");
  await other.flush();
  await client.flush();
  const drained = subscription.drain();
  let processed = 0;
  for await (const _ of subscription) {
    await sleep(1);
    processed += 1;
  }
  await drained;
  other.publish(s.subject("d"), "late");
  await other.flush();
  await client.flush();
  s.expect("processed", processed, 100);
  s.expect("open", !client.isClosed(), true);
}

async function drainConnection(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  let processed = 0;
  const callback = (_, m) => {
    processed += 1;
    client.publish(s.subject("answers"), m.data);
  };
  client.subscribe(s.subject("d"), { callback });
  const answers = s.subscribe(other, s.subject("answers"));
  await client.flush();
  await other.flush();
  for (const _ of range(100)) other.publish(s.subject("d"), "x");
  await other.flush();
  await client.drain();
  s.expect("processed", processed, 100);
  s.expect("answers sent while draining", (await s.take(answers, 100)).length, 100);
  s.expect("closed", client.isClosed(), true);
}

async function echoOff(s) {
  const [client, other] = [await s.connect({ noEcho: true }), await s.connect()];
  const own = s.subscribe(client, s.subject("e"));
  const others = s.subscribe(other, s.subject("e"));
  await client.flush();
  await other.flush();
  client.publish(s.subject("e"), "x");
  await client.flush();
  s.expect("own", own.messages.length, 0);
  s.expect("other's", (await s.take(others, 1)).length, 1);
  other.publish(s.subject("e"), "y");
  s.expect("from another", (await s.take(own, 1)).length, 1);
}

async function literalWildcards(s) {
  const client = await s.connect();
  const filters = { "l.>": ["l.*", "l.>"], "l.*": ["l.*", "l.>"], "l.x": [] };
  const subscriptions = Object.keys(filters).map((f) => s.subscribe(client, s.subject(f)));
  for (const subject of ["l.*", "l.>"]) client.publish(s.subject(subject), "x");
  await client.flush();
  const subjects = (n) => subscriptions[n].messages.map((m) => s.relative(m.subject));
  Object.entries(filters).forEach(([f, wanted], n) => s.expect(f, subjects(n), wanted));
  s.expect("open", !client.isClosed(), true);
}

async function emptyPayload(s) {
  const client = await s.connect();
  const subscription = s.subscribe(client, s.subject("e"));
  client.publish(s.subject("e"));
  client.publish(s.subject("e"), "", { reply: "r.e" });
  // What this client sends for a reply with headers that are empty: HPUB with a header length of 0.
  client.protocol.sendCommand(`HPUB ${s.subject("e")} r.h 0 2\r\nhi\r\n`);
  const got = await s.take(subscription, 3);
  s.expect("payloads", got.map((m) => m.string()), ["", "", "hi"]);
  s.expect("replies", got.map((m) => m.reply ?? ""), ["", "r.e", "r.h"]);
  s.expect("open", !client.isClosed(), true);
}

async function largePayload(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const subscription = s.subscribe(other, s.subject("l"));
  await other.flush();
  const limit = client.info.max_payload;
  const sizes = [limit, limit - 1, Math.floor(limit / 2), 65_536, 65_535, 4096];
  const payloads = sizes.map((size) => Buffer.alloc(size, createHash("sha256").update(`${size}`).digest()));
  for (const payload of payloads) client.publish(s.subject("l"), payload);
  const got = await s.take(subscription, sizes.length);
  s.expect("same content", isDeepStrictEqual(got.map((m) => sha256(m.data)), payloads.map(sha256)), true);
  const h = makeHeaders();
  h.append("A", "b");
  const payload = Buffer.alloc(limit - 200, "x");
  client.publish(s.subject("l"), payload, { headers: h });
  const last = (await s.take(subscription, sizes.length + 1))[sizes.length];
  s.expect("with headers", last !== undefined && payload.equals(last.data) && last.headers.get("A") === "b", true);
  s.note("max_payload", limit);
}

async function maxPayload(s) {
  const client = await s.connect();
  const limit = client.info.max_payload;
  try {
    client.publish(s.subject("m"), Buffer.alloc(limit + 1));
    s.expect("client", null, "InvalidArgumentError");
  } catch (error) {
    s.expect("client", error.name, "InvalidArgumentError");
  }
  await client.flush();
  s.expect("open", !client.isClosed(), true);
  client.protocol.info.max_payload = limit * 4;
  client.publish(s.subject("m"), Buffer.alloc(limit + 1));
  await s.event(client, "closed");
  s.note("error", s.errors(client).map((e) => e.message));
  s.expect("server closes", client.isClosed(), true);
  const hinted = await s.connect();
  hinted.protocol.info.max_payload = limit * 4;
  // The headers count too.
  const h = makeHeaders();
  h.append("A", "b");
  hinted.publish(s.subject("m"), Buffer.alloc(limit - 1), { headers: h });
  await s.event(hinted, "closed");
  s.expect("headers count", hinted.isClosed(), true);
}

async function thousandSubjects(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const subscriptions = range(1000).map((n) => s.subscribe(client, s.subject(`t.${n}`)));
  await client.flush();
  const publish = async () => {
    for (const n of range(1000)) other.publish(s.subject(`t.${n}`), `${n}`);
    await other.flush();
    await client.flush();
  };
  await publish();
  const own = subscriptions.every((x, n) => x.messages.length === 1 && x.messages[0].string() === `${n}`);
  s.expect("each its own", own, true);
  for (const n of range(500, 0, 2)) subscriptions[n].unsubscribe();
  await client.flush();
  await publish();
  const odd = subscriptions.every((x, n) => x.messages.length === (n % 2 ? 2 : 1));
  s.expect("after half were ended", odd, true);
}

async function tenThousand(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const subscription = s.subscribe(other, s.subject("n"));
  await other.flush();
  for (const n of range(10_000)) client.publish(s.subject("n"), `${n}`.padStart(16, "0"));
  await client.flush();
  const got = await s.take(subscription, 10_000);
  s.expect("received", got.length, 10_000);
  s.expect("in order", isDeepStrictEqual(got.map((m) => Number(m.string())), range(10_000)), true);
  await other.flush();
  s.expect("none left", subscription.messages.length - 10_000, 0);
}

export const SCENARIOS = {
  wildcards,
  headers,
  queue_groups: queueGroups,
  request_reply: requestReply,
  many_replies: manyReplies,
  no_responders: noResponders,
  unsubscribe_max: unsubscribeMax,
  flush_order: flushOrder,
  drain_subscription: drainSubscription,
  drain_connection: drainConnection,
  echo_off: echoOff,
  literal_wildcards: literalWildcards,
  empty_payload: emptyPayload,
  large_payload: largePayload,
  max_payload: maxPayload,
  thousand_subjects: thousandSubjects,
  ten_thousand: tenThousand,
};
