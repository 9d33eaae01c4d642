// nats.js over WebSocket in Node.js, with a client certificate, beside native clients of the same tenant.
//
// Prints a line for each check. The native side is the command line client, as the environment says who it is; a native
// responder answers on ws.service, and whoever started this looks at what a native subscriber got on ws.out.

import { wsconnect } from "@nats-io/nats-core";
import { readFileSync } from "node:fs";
import WebSocket from "ws";
import { check, equal, glocal, options, refused } from "./report.js";

const { url, ca, cert, key, tenant, binary, origin, unlisted } = options(
  ...["url", "ca", "cert", "key", "tenant", "binary", "origin", "unlisted"],
);
const identity = { ca: readFileSync(ca), cert: readFileSync(cert), key: readFileSync(key) };

// Node's own WebSocket takes no certificate; the package 'ws' does, and has the same interface.
function connect(tls, extra) {
  const wsFactory = (url) => ({ socket: new WebSocket(url, { ...tls, ...extra }), encrypted: true });
  return wsconnect({ servers: url, wsFactory, reconnect: false, timeout: 5000 });
}

// The payloads of the next messages of a subscription.
async function take(subscription, count) {
  const texts = [];
  for await (const message of subscription) {
    texts.push(message.string());
    if (texts.length === count) break;
  }
  return texts;
}

const numbered = (name, count) => Array.from({ length: count }, (_, n) => `${name}-${n}`);
const bytes = (length) => Uint8Array.from({ length }, (_, n) => (n * 31 + (n >> 9)) & 0xff);

const client = await check("wsconnect gets in with a certificate", () => connect(identity));
if (!client) process.exit(1);

await check("it is told its own tenant", async () => {
  equal((await client.request("$SYS.REQ.USER.INFO")).json().data.account, tenant);
});
await check("native messages arrive over WebSocket, each once and in order", async () => {
  const subscription = client.subscribe("ws.in");
  await client.flush();
  const native = glocal(binary, "pub", "ws.in", "native-{{n}}", "--count", "20");
  const texts = await take(subscription, 20);
  await native;
  equal(texts, [...texts].sort((a, b) => a.split("-")[1] - b.split("-")[1]));
  equal(new Set(texts).size, 20);
});
await check("messages published over WebSocket are taken", async () => {
  for (const text of numbered("ws", 20)) client.publish("ws.out", text);
  await client.flush();
});
await check("a native responder answers a request", async () => {
  equal((await client.request("ws.service", "?", { timeout: 5000 })).string(), "at your service");
});
await check("a request that nobody answers says so at once", async () => {
  const began = Date.now();
  const error = await refused(client.request("ws.nobody", "?", { timeout: 5000 }));
  equal([error.cause?.name ?? error.name, Date.now() - began < 2500], ["NoResponders", true]);
});
await check("a foreign subject is refused, and the connection goes on", async () => {
  const told = new Promise((resolve) => client.subscribe("T.tenantB.>", { callback: (error) => error && resolve(error) }));
  equal((await told).name, "PermissionViolationError");
  await client.flush();
});
for (const [what, length] of [["200 KiB", 200 * 1024], ["the largest payload", client.info.max_payload]]) {
  await check(`${what} cross in both directions`, async () => {
    const subscription = client.subscribe("ws.large", { max: 1 });
    const payload = bytes(length);
    client.publish("ws.large", payload);
    let came = 0;
    for await (const message of subscription) came += Buffer.compare(message.data, payload) === 0 ? 1 : 0;
    equal(came, 1);
  });
}
await check("3000 messages at once come back, in order", async () => {
  const subscription = client.subscribe("ws.many");
  const wanted = numbered("x".repeat(100), 3000);
  for (const text of wanted) client.publish("ws.many", text);
  equal(await take(subscription, 3000), wanted);
});
await check("two connections of one tenant hear one another", async () => {
  const other = await connect(identity, { origin });
  const subscription = other.subscribe("ws.other");
  await other.flush();
  client.publish("ws.other", "hello");
  equal(await take(subscription, 1), ["hello"]);
  await other.close();
});
await check("a drain ends the connection cleanly", async () => {
  await client.drain();
  const error = await client.closed();
  if (error) throw error;
});
await check("an origin that is not listed is refused with 403", async () => {
  await refused(connect(identity, { origin: unlisted }));
  // The library keeps the answer to itself.
  const socket = new WebSocket(url, { ...identity, origin: unlisted });
  equal(await new Promise((resolve) => socket.on("error", (error) => resolve(error.message))), "Unexpected server response: 403");
});
await check("without a certificate there is no connection", () => refused(connect({ ca: identity.ca })));
await check("a server of another root is not trusted by the client", () => refused(connect({ ...identity, ca: [] })));
// Connections of checks that failed are still open.
process.exit();
