// Scenarios of the NATS client protocol with nats.js, and the parts of a matrix test. See tests/clients/README.md.

import * as connections from "./connections.js";
import { emit, HARNESS_MS, parse, runScenario, Scenario, SCENARIO_MS, watchdog } from "./harness.js";
import * as messages from "./messages.js";
import { ROLES } from "./roles.js";

async function runRole(options) {
  const scenario = new Scenario(options, options.role);
  let [result, ok, error] = [{}, false, null];
  try {
    [result, ok] = await ROLES[options.role](scenario);
  } catch (failure) {
    error = `${failure?.name}: ${failure?.message}`;
  }
  await scenario.close();
  emit({ role: options.role, id: options.id, ...result, ok, error });
  return ok;
}

async function run(options) {
  if (options.role) return runRole(options);
  const plain = { ...messages.SCENARIOS, ...connections.SCENARIOS };
  const table = [
    ...Object.entries(plain).map((entry) => [...entry, SCENARIO_MS]),
    ...Object.entries(connections.WITH_HARNESS).map((entry) => [...entry, HARNESS_MS]),
  ];
  if (options.scenario === "list") {
    for (const [name] of table) process.stdout.write(name + "\n");
    return true;
  }
  const names = options.scenario === "all" ? null : options.scenario.split(",");
  const unknown = (names ?? []).filter((name) => !table.some(([known]) => known === name));
  if (unknown.length) {
    process.stderr.write(`unknown scenario: ${unknown.join(", ")}\n`);
    process.exit(2);
  }
  let fine = true;
  for (const [name, body, ms] of table) {
    if (!names || names.includes(name)) fine = (await runScenario(options, name, body, ms)) && fine;
  }
  return fine;
}

const options = parse();
if (options.role && !ROLES[options.role]) {
  process.stderr.write(`unknown role: ${options.role}\n`);
  process.exit(2);
}
watchdog(options.watchdog);
process.exit((await run(options)) ? 0 : 1);
