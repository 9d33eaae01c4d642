// The parts of a matrix test: this client publishes, subscribes, asks or answers, as it is told on the command line.

import { emit, nameOf, sleep, stdinLine } from "./harness.js";

// This client hands on what the server refused a moment after the PONG behind it.
async function told(s, client) {
  await sleep(5);
  return s.errors(client).map((e) => e.message);
}

async function publish(s) {
  const { subject, id, count } = s.options;
  const client = await s.connect();
  for (let n = 0; n < count; n++) client.publish(subject, `${id}-${n}`);
  await client.flush();
  const errors = await told(s, client);
  return [{ published: count, errors }, errors.length === 0];
}

// Ends when all that it expects has come and nothing more for a while, or a line or the end of standard input says so.
async function subscribe(s) {
  const { subject, queue, expect } = s.options;
  const client = await s.connect();
  const received = [];
  let last = Date.now();
  const callback = (error, m) => {
    if (error) return;
    received.push(m.string());
    last = Date.now();
  };
  client.subscribe(subject, { queue, callback });
  await client.flush();
  emit({ ready: "sub", errors: await told(s, client) });
  let stopped = false;
  stdinLine().then(() => (stopped = true));
  const deadline = Date.now() + s.options["timeout-ms"];
  const settled = () => expect > 0 && received.length >= expect && Date.now() - last >= s.options["settle-ms"];
  while (!stopped && Date.now() < deadline && !settled()) await sleep(5);
  await client.flush().catch(() => {});
  const by_publisher = {};
  for (const text of received) {
    const publisher = text.slice(0, Math.max(0, text.lastIndexOf("-")));
    by_publisher[publisher] = (by_publisher[publisher] ?? 0) + 1;
  }
  const duplicates = received.length - new Set(received).size;
  const result = { received: received.length, duplicates, by_publisher, errors: await told(s, client) };
  return [result, received.length === expect && duplicates === 0];
}

async function ask(s) {
  const { subject, id, count, expect } = s.options;
  const client = await s.connect();
  const replies = [];
  const errors = [];
  for (let n = 0; n < count; n++) {
    await client
      .request(subject, `${id}-${n}`, { timeout: s.options["timeout-ms"] })
      .then((reply) => replies.push(reply.string()), (error) => errors.push(nameOf(error)));
  }
  return [{ replies, errors }, replies.length === expect];
}

async function answer(s) {
  const { subject, queue, id } = s.options;
  const client = await s.connect();
  let answered = 0;
  const callback = (error, m) => {
    if (error) return;
    answered += 1;
    m.respond(`${id}:${m.string()}`);
  };
  client.subscribe(subject, { queue, callback });
  await client.flush();
  emit({ ready: "reply", errors: await told(s, client) });
  await Promise.race([stdinLine(), sleep(s.options["timeout-ms"])]);
  await client.flush();
  return [{ answered }, true];
}

export const ROLES = { pub: publish, sub: subscribe, request: ask, reply: answer };
