// What every scenario needs: arguments, connections, facts, time limits and the talk with whoever started the program.
//
// One line of JSON goes to standard output for each scenario. A scenario records facts, which are compared between
// servers, and notes, which are only shown. Nothing waits without a deadline, and a watchdog ends the program when all
// else fails.

import { connect } from "@nats-io/transport-node";
import { randomBytes } from "node:crypto";
import { writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { isDeepStrictEqual, parseArgs } from "node:util";

// Milliseconds that one scenario may take, and that one that waits for the harness may take.
export const SCENARIO_MS = 12_000;
export const HARNESS_MS = 30_000;

export function parse() {
  const text = { type: "string" };
  const { values } = parseArgs({
    options: {
      url: text,
      ca: text,
      cert: text,
      key: text,
      "tls-first": { type: "boolean", default: false },
      scenario: { type: "string", default: "all" },
      json: { type: "boolean", default: true },
      denied: { type: "string", default: "denied.subject" },
      refused: { type: "string", multiple: true, default: [] },
      watchdog: { type: "string", default: "120" },
      role: text,
      subject: text,
      queue: text,
      id: { type: "string", default: "js" },
      count: { type: "string", default: "1" },
      expect: { type: "string", default: "1" },
      "settle-ms": { type: "string", default: "200" },
      "timeout-ms": { type: "string", default: "10000" },
    },
  });
  if (!values.url || !values.ca) {
    process.stderr.write("error: --url and --ca are needed\n");
    process.exit(2);
  }
  for (const name of ["count", "expect", "settle-ms", "timeout-ms", "watchdog"]) values[name] = Number(values[name]);
  return values;
}

// Written at once: the program may be ended right after.
export function emit(value) {
  writeSync(1, JSON.stringify(value) + "\n");
}

export function watchdog(seconds) {
  const end = () => {
    emit({ scenario: "watchdog", outcome: {}, ok: false, error: `not finished after ${seconds} s` });
    process.exit(3);
  };
  setTimeout(end, seconds * 1000).unref();
}

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// An error as `Name` or, for the errors of requests, `RequestError/NoResponders`.
export function nameOf(error) {
  const cause = error?.cause?.name;
  return cause && cause !== "Error" ? `${error.name}/${cause}` : error?.name;
}

let answers;
let waiting = [];

// The next line of standard input, or null at its end.
export function stdinLine() {
  if (!answers) {
    answers = [];
    const lines = createInterface({ input: process.stdin });
    const give = (line) => (waiting.length ? waiting.shift()(line) : answers.push(line));
    lines.on("line", give);
    lines.on("close", () => {
      for (const next of waiting.splice(0)) next(null);
      answers.push(null);
    });
  }
  if (answers.length) return Promise.resolve(answers.shift());
  return new Promise((done) => waiting.push(done));
}

// The facts of one scenario, and its connections, closed when it ends.
export class Scenario {
  constructor(options, name) {
    this.options = options;
    this.name = name;
    this.prefix = "s" + randomBytes(5).toString("hex");
    this.facts = {};
    this.notes = {};
    this.failures = [];
    this.connections = [];
  }

  subject(rest) {
    return `${this.prefix}.${rest}`;
  }

  relative(subject) {
    return subject.startsWith(this.prefix + ".") ? subject.slice(this.prefix.length + 1) : subject;
  }

  fact(name, value) {
    this.facts[name] = value;
  }

  expect(name, value, wanted) {
    this.facts[name] = value;
    if (!isDeepStrictEqual(value, wanted)) {
      this.failures.push(`${name}: ${JSON.stringify(value)} instead of ${JSON.stringify(wanted)}`);
    }
  }

  note(name, value) {
    this.notes[name] = value;
  }

  // A client, and the events that it reported, as {type, …}.
  async connect(extra = {}) {
    const { certificate = [this.options.cert, this.options.key], tls = {}, ...rest } = extra;
    const [certFile, keyFile] = certificate;
    const url = new URL(this.options.url.replace("tls:", "http:"));
    const client = await connect({
      servers: [`${url.hostname}:${url.port}`],
      tls: { caFile: this.options.ca, certFile, keyFile, handshakeFirst: this.options["tls-first"], ...tls },
      reconnect: false,
      timeout: 3000,
      noAsyncTraces: true,
      ...rest,
    });
    client.events = [];
    (async () => {
      for await (const status of client.status()) client.events.push(status);
    })();
    client.closed().then((error) => client.events.push({ type: "closed", error }));
    this.connections.push(client);
    return client;
  }

  // A subscription whose messages are kept in an array, `messages`.
  subscribe(client, subject, options = {}) {
    const messages = [];
    const errors = [];
    const callback = (error, message) => (error ? errors.push(error) : messages.push(message));
    const subscription = client.subscribe(subject, { callback, ...options });
    subscription.messages = messages;
    subscription.errors = errors;
    return subscription;
  }

  respond(client, subject, answer = (data) => data) {
    return client.subscribe(subject, { callback: (error, m) => error ?? m.respond(answer(m.data)) });
  }

  async until(condition, ms = 5000, what = "condition") {
    const deadline = Date.now() + ms;
    while (!condition()) {
      if (Date.now() > deadline) throw new Error(`timeout: no ${what} within ${ms} ms`);
      await sleep(3);
    }
  }

  async event(client, type, ms = 5000) {
    await this.until(() => client.events.some((e) => e.type === type), ms, `event '${type}'`);
    return client.events.find((e) => e.type === type);
  }

  errors(client) {
    return client.events.filter((e) => e.type === "error").map((e) => e.error);
  }

  // Waits for `count` messages; returns what there is when they do not come.
  async take(subscription, count, ms = 5000) {
    await this.until(() => subscription.messages.length >= count, ms).catch(() => {});
    return subscription.messages;
  }

  // Asks whoever started the program to do something to the server, and waits until it says that it is done.
  async harness(action) {
    emit({ ready: this.name, action });
    if ((await stdinLine()) !== "done") throw new Error(`no harness did '${action}'`);
  }

  async close() {
    for (const client of this.connections) await Promise.race([client.close().catch(() => {}), sleep(2000)]);
  }
}

export async function runScenario(options, name, body, ms) {
  const scenario = new Scenario(options, name);
  const began = Date.now();
  let error = null;
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`timeout after ${ms} ms`)), ms);
  });
  try {
    await Promise.race([body(scenario), late]);
  } catch (failure) {
    error = `${failure?.name}: ${failure?.message}`;
  }
  clearTimeout(timer);
  await scenario.close();
  if (error === null && scenario.failures.length) error = scenario.failures.join("; ");
  scenario.note("ms", Date.now() - began);
  emit({ scenario: name, outcome: scenario.facts, notes: scenario.notes, ok: error === null, error });
  return error === null;
}
