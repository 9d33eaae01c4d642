// What the programs here share: arguments, and a line 'ok …' or 'FAIL …' for each check, which a script counts.

import { execFile } from "node:child_process";
import { parseArgs, promisify } from "node:util";

// Every argument is a text and must be given.
export function options(...names) {
  const { values } = parseArgs({ options: Object.fromEntries(names.map((name) => [name, { type: "string" }])) });
  for (const name of names) {
    if (values[name] === undefined) {
      process.stderr.write(`error: --${name} is needed\n`);
      process.exit(2);
    }
  }
  return values;
}

// Passes when the function returns within the time; its error explains a failure.
export async function check(what, action, seconds = 20) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${seconds} s`)), seconds * 1000);
  });
  try {
    const result = await Promise.race([action(), late]);
    process.stdout.write(`ok    ${what}\n`);
    return result;
  } catch (error) {
    process.stdout.write(`FAIL  ${what}\n      ${String(error?.message ?? error).replaceAll("\n", "\n      ")}\n`);
    process.exitCode = 1;
    return undefined;
  } finally {
    clearTimeout(timer);
  }
}

export function equal(found, wanted) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`${a.slice(0, 300)} instead of ${b.slice(0, 300)}`);
}

// Passes when the promise fails, and returns its error.
export async function refused(promise) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  await value?.close?.();
  throw new Error("it was not refused");
}

// The command line client, with the identity that the environment names.
export const glocal = (binary, ...args) => promisify(execFile)(binary, args, { timeout: 20_000 });
