// The example page in headless Chromium, with a client certificate, beside native clients of the same tenant.
//
// Prints a line for each check. The page is served here under two origins, of which the broker lists one. The native side is
// the command line client, as the environment says who it is; whoever started this looks at what a native subscriber got on
// page.out. NODE_EXTRA_CA_CERTS must name the root: Playwright checks the broker's certificate in this process.

import { buildSync } from "esbuild";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { chromium } from "playwright-core";
import { check, equal, glocal, options } from "./report.js";

const { url, cert, key, tenant, binary, page: file, port, executable, directory, screenshot } = options(
  ...["url", "cert", "key", "tenant", "binary", "page", "port", "executable", "directory", "screenshot"],
);
// Both reach the same server here, but they are different origins, and the broker lists the first.
const LISTED = `http://127.0.0.1:${port}`;
const UNLISTED = `http://localhost:${port}`;
const FLAGS = [
  ...["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
  ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
];

// The page and the library in one file, as the page's own comment says.
function serve() {
  const stdin = { contents: 'export { wsconnect } from "@nats-io/nats-core";', resolveDir: import.meta.dirname };
  const [library] = buildSync({ stdin, bundle: true, format: "esm", write: false, outdir: "." }).outputFiles;
  const contents = {
    "/browser.html": ["text/html", readFileSync(file)],
    "/nats-core.js": ["text/javascript", library.contents],
  };
  const server = createServer((request, response) => {
    const [type, body] = contents[new URL(request.url, LISTED).pathname] ?? [];
    response.writeHead(body ? 200 : 404, { "content-type": type ?? "text/plain" }).end(body);
  });
  return new Promise((resolve) => server.listen(Number(port), () => resolve(server)));
}

// The page in a browser profile of its own; `text` says how its state must begin.
async function open(browser, origin, certificate, text) {
  const clientCertificates = certificate ? [{ origin: url.replace("wss:", "https:"), certPath: cert, keyPath: key }] : [];
  const context = await browser.newContext({ clientCertificates });
  const page = await context.newPage();
  await page.goto(`${origin}/browser.html?url=${encodeURIComponent(url)}`);
  await page.waitForFunction(() => document.getElementById("state").textContent !== "connecting", null, { timeout: 10_000 });
  const state = await page.textContent("#state");
  if (!state.startsWith(text)) throw new Error(`the page says '${state}' instead of '${text}…'`);
  return page;
}

async function fill(page, form, fields, done) {
  for (const [name, value] of Object.entries(fields)) await page.fill(`#${form} [name=${name}]`, value);
  await page.click(`#${form} button`);
  await page.waitForFunction((wanted) => document.getElementById("done").textContent === wanted, done, { timeout: 5000 });
}

const messages = (page) => page.locator("#messages li").allTextContents();

const server = await serve();
const browser = await chromium.launch({ executablePath: executable, args: FLAGS, env: { ...process.env, HOME: directory } });
try {
  const page = await check("the page connects with the browser's certificate", () => open(browser, LISTED, true, "connected"));
  if (page) {
    await check("the page is told its own tenant", async () => {
      const row = await page.locator("#whoami dt:text-is('account') + dd").textContent();
      equal(row, tenant);
    });
    await check("a native message reaches the page", async () => {
      await fill(page, "subscribe", { filter: "page.>" }, "subscribed to page.>");
      await glocal(binary, "pub", "page.in", "from a native client");
      await page.waitForSelector("#messages li");
      equal(await messages(page), ["page.in from a native client"]);
    });
    await check("a message from the page is taken, and comes back once", async () => {
      await fill(page, "publish", { subject: "page.out", payload: "from the page" }, "published to page.out");
      await page.waitForFunction(() => document.querySelectorAll("#messages li").length >= 2);
      equal(await messages(page), ["page.in from a native client", "page.out from the page"]);
    });
    await check("markup in a message stays text", async () => {
      await glocal(binary, "pub", "page.in", "<b id=injected>bold</b>");
      await page.waitForFunction(() => document.querySelectorAll("#messages li").length >= 3);
      equal((await messages(page))[2], "page.in <b id=injected>bold</b>");
      equal(await page.locator("#injected").count(), 0);
    });
    await check("the page is refused a foreign subject, and stays connected", async () => {
      await page.fill("#subscribe [name=filter]", "T.tenantB.>");
      await page.click("#subscribe button");
      await page.waitForSelector("#messages li:text('refused: Permissions Violation')", { timeout: 5000 });
      equal((await page.textContent("#state")).startsWith("connected"), true);
    });
    if (screenshot) await page.screenshot({ path: screenshot });
  }
  await check("the same page under an origin that is not listed is refused", () =>
    open(browser, UNLISTED, true, "not connected"));
  await check("the page without a certificate is refused", () => open(browser, LISTED, false, "not connected"));
} finally {
  await browser.close();
  server.close();
}
