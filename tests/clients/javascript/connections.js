// Scenarios about connections: what a server says of itself, who gets in, what may be done, and how connections end.

import { nameOf, sleep } from "./harness.js";

async function info(s) {
  const client = await s.connect();
  const told = client.info;
  s.expect("headers", told.headers, true);
  s.expect("tls_required", told.tls_required, true);
  s.expect("tls_verify", told.tls_verify, true);
  s.expect("proto", told.proto, 1);
  s.expect("semver", /^\d+\.\d+\.\d+(-.+)?$/.test(told.version), true);
  s.expect("nonce", "nonce" in told, false);
  s.expect("jetstream", Boolean(told.jetstream), false);
  s.expect("client_id", Number.isSafeInteger(told.client_id) && told.client_id > 0, true);
  s.note("info", told);
}

async function verbosePedantic(s) {
  const verbose = await s.connect({ verbose: true });
  const plain = s.subscribe(verbose, s.subject("v"));
  for (let n = 0; n < 20; n++) verbose.publish(s.subject("v"), `${n}`);
  await verbose.flush();
  s.expect("verbose", plain.messages.length, 20);
  s.expect("verbose errors", s.errors(verbose).map(nameOf), []);
  const pedantic = await s.connect({ pedantic: true });
  const subscription = s.subscribe(pedantic, s.subject("p"));
  for (let n = 0; n < 20; n++) pedantic.publish(s.subject("p"), `${n}`);
  await pedantic.flush();
  s.expect("pedantic", subscription.messages.length, 20);
  pedantic.publish(s.subject("*"), "x");
  await pedantic.flush();
  await s.until(() => s.errors(pedantic).length > 0, 1000).catch(() => {});
  s.fact("pedantic error", s.errors(pedantic).map((e) => `${nameOf(e)}: ${e.message}`));
  pedantic.publish(s.subject("p"), "still here");
  s.expect("open", (await s.take(subscription, 21)).length, 21);
}

async function permissions(s) {
  const client = await s.connect();
  const denied = s.options.denied;
  const own = s.subscribe(client, s.subject("p"));
  const told = async (act) => {
    const before = s.errors(client).length;
    act();
    await client.flush();
    await s.until(() => s.errors(client).length > before, 1000).catch(() => {});
    return s.errors(client).slice(before);
  };
  const facts = (errors) => errors.map((e) => [e.name, e.operation, e.subject === denied, e.queue ?? null]);
  const published = await told(() => client.publish(denied, "x"));
  s.expect("publish", facts(published), [["PermissionViolationError", "publish", true, null]]);
  s.expect("publish text", published.map((e) => e.message.startsWith(`Permissions Violation for Publish to "${denied}"`)), [true]);
  const refused = s.subscribe(client, denied);
  const subscribed = await told(() => {});
  s.expect("subscribe", facts(subscribed), [["PermissionViolationError", "subscription", true, null]]);
  s.expect("subscription is told", refused.errors.map(nameOf), ["PermissionViolationError"]);
  s.expect("subscription is closed", refused.isClosed(), true);
  const queued = await told(() => s.subscribe(client, denied, { queue: "workers" }));
  s.expect("subscribe with queue", facts(queued), [["PermissionViolationError", "subscription", true, "workers"]]);
  for (const noMux of [false, true]) {
    try {
      await client.request(denied, "", { timeout: 1000, noMux });
      s.expect(`request${noMux ? " without mux" : ""}`, "answered", "refused");
    } catch (error) {
      s.fact(`request${noMux ? " without mux" : ""}`, nameOf(error));
    }
  }
  client.publish(s.subject("p"), "still here");
  s.expect("open", (await s.take(own, 1)).map((m) => m.string()), ["still here"]);
  s.expect("not closed", client.events.filter((e) => ["closed", "disconnect"].includes(e.type)), []);
  s.note("texts", s.errors(client).map((e) => e.message));
}

async function refused(s, options) {
  const began = Date.now();
  try {
    const client = await s.connect(options);
    // TLS 1.3 lets a client finish before the server has looked at its certificate: it must not get an answer.
    await client.flush();
    return client.isClosed();
  } catch (error) {
    s.notes.refusals = [...(s.notes.refusals ?? []), `${nameOf(error)}: ${error?.message} (${Date.now() - began} ms)`];
    return true;
  }
}

async function certificates(s) {
  const none = [undefined, undefined];
  s.expect("none", await refused(s, { certificate: none }), true);
  s.expect("none, with password", await refused(s, { certificate: none, user: "admin", pass: "admin" }), true);
  s.expect("none, with token", await refused(s, { certificate: none, token: "admin" }), true);
  for (const entry of s.options.refused) {
    const [name, files] = entry.split("=");
    s.expect(name, await refused(s, { certificate: files.split(":") }), true);
  }
  await s.connect();
  s.expect("own", true, true);
}

// User names, passwords and tokens beside a certificate open nothing; a server may also refuse the whole connection.
async function credentials(s) {
  const nkey = () => ({ nkey: "UAAAA", sig: "c2ln", jwt: "e30.e30.e30", user: "admin", pass: "admin", auth_token: "admin" });
  const cases = {
    "password grants": { user: "admin", pass: "admin" },
    "token grants": { token: "admin" },
    "all of them grant": { authenticator: nkey },
  };
  for (const [name, options] of Object.entries(cases)) {
    try {
      const client = await s.connect(options);
      client.publish(s.options.denied, "x");
      await client.flush();
      await s.until(() => s.errors(client).length > 0, 1000).catch(() => {});
      s.expect(name, !s.errors(client).some((e) => e.name === "PermissionViolationError"), false);
    } catch (error) {
      s.expect(name, false, false);
      s.note(name, `${nameOf(error)}: ${error?.message}`);
    }
  }
}

async function handshakeOrders(s) {
  for (const [name, handshakeFirst] of [["INFO first", false], ["TLS first", true]]) {
    try {
      const client = await s.connect({ tls: { handshakeFirst }, timeout: 2000 });
      const subscription = s.subscribe(client, s.subject("t"));
      client.publish(s.subject("t"), "x");
      s.fact(name, (await s.take(subscription, 1)).length === 1);
    } catch (error) {
      s.fact(name, false);
      s.note(name, `${nameOf(error)}: ${error?.message}`);
    }
  }
  if (!s.facts["INFO first"] && !s.facts["TLS first"]) s.failures.push("neither order works");
}

async function slowConsumer(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  const slow = client.subscribe(s.subject("slow"), { slow: 10 });
  const quick = s.subscribe(client, s.subject("quick"));
  await client.flush();
  for (let n = 0; n < 200; n++) other.publish(s.subject("slow"), `${n}`);
  other.publish(s.subject("quick"), "x");
  await other.flush();
  s.expect("error", (await s.event(client, "slowConsumer")).type, "slowConsumer");
  s.expect("others are served", (await s.take(quick, 1)).length, 1);
  const handled = [];
  for await (const m of slow) {
    handled.push(Number(m.string()));
    if (handled.length === 200) break;
  }
  // This client only tells; it keeps everything.
  s.expect("in order from the first", handled.every((value, n) => value === n), true);
  s.expect("open", !client.isClosed(), true);
}

async function close(s) {
  const [client, other] = [await s.connect(), await s.connect()];
  s.respond(client, s.subject("c"), () => "yes");
  await client.flush();
  s.expect("answer", (await other.request(s.subject("c"), "", { timeout: 3000 })).string(), "yes");
  await client.close();
  await s.event(client, "closed");
  s.expect("without error", client.events.find((e) => e.type === "closed").error === undefined, true);
  try {
    client.publish(s.subject("c"), "x");
    s.expect("publish afterwards", null, "ClosedConnectionError");
  } catch (error) {
    s.expect("publish afterwards", error.name, "ClosedConnectionError");
  }
  const ask = () => other.request(s.subject("c"), "", { timeout: 500 }).then(() => null, nameOf);
  const deadline = Date.now() + 3000;
  let answered = await ask();
  while (answered !== "RequestError/NoResponders" && Date.now() < deadline) {
    await sleep(20);
    answered = await ask();
  }
  s.expect("its subscriptions are gone", answered, "RequestError/NoResponders");
}

async function inboxPrefix(s) {
  const [client, other] = [await s.connect({ inboxPrefix: `_INBOX.${s.prefix}.me` }), await s.connect()];
  other.subscribe(s.subject("i"), { callback: (_, m) => m.respond(m.reply) });
  await other.flush();
  const reply = await client.request(s.subject("i"), "", { timeout: 3000 });
  s.expect("prefix", reply.string().startsWith(`_INBOX.${s.prefix}.me.`), true);
}

async function pings(s) {
  const client = await s.connect({ pingInterval: 100, maxPingOut: 2 });
  const subscription = s.subscribe(client, s.subject("p"));
  await sleep(1000);
  client.publish(s.subject("p"), "x");
  s.expect("open after ten pings", (await s.take(subscription, 1)).length, 1);
  s.expect("events", client.events.filter((e) => e.type !== "ping"), []);
}

const patient = (s) =>
  s.connect({ reconnect: true, reconnectTimeWait: 100, reconnectJitterTLS: 20, maxReconnectAttempts: -1, timeout: 1000 });

// After the server came back, the old subscription receives again.
async function worksAgain(s, client, subscription) {
  await s.event(client, "reconnect", 20_000);
  await client.flush();
  client.publish(s.subject("again"), "after");
  s.expect("subscription lives on", (await s.take(subscription, 1)).map((m) => m.string()), ["after"]);
  s.expect("request", (await client.request(s.subject("echo"), "again", { timeout: 3000 })).string(), "again");
}

function answering(s, client) {
  s.respond(client, s.subject("echo"));
  return s.subscribe(client, s.subject("again"));
}

async function reconnect(s) {
  const client = await patient(s);
  const subscription = answering(s, client);
  await client.flush();
  await s.harness("restart");
  await s.event(client, "disconnect", 10_000);
  await worksAgain(s, client, subscription);
  s.fact("events", [...new Set(client.events.map((e) => e.type))].filter((t) => !["error", "ldm", "update"].includes(t)).sort());
}

async function lameDuck(s) {
  const client = await patient(s);
  const subscription = answering(s, client);
  await client.flush();
  await s.harness("lame duck");
  await s.event(client, "ldm", 10_000);
  await s.event(client, "disconnect", 10_000);
  await worksAgain(s, client, subscription);
  const types = client.events.map((e) => e.type).filter((t) => !["error", "update"].includes(t));
  s.expect("told before the end", types.indexOf("ldm") < types.indexOf("disconnect"), true);
  s.fact("events", [...new Set(types)].sort());
}

export const SCENARIOS = {
  info,
  verbose_pedantic: verbosePedantic,
  permissions,
  certificates,
  credentials,
  handshake_orders: handshakeOrders,
  slow_consumer: slowConsumer,
  close,
  inbox_prefix: inboxPrefix,
  pings,
};

// These need somebody who does things to the server.
export const WITH_HARNESS = { reconnect, lame_duck: lameDuck };
