"""Scenarios of the NATS client protocol with nats-py, and the parts of a matrix test. See tests/clients/README.md."""

import asyncio
import os
import sys

import connections
import messages
from harness import HARNESS_S, SCENARIO_S, Scenario, arguments, emit, name_of, run_scenario, watchdog
from roles import ROLES


async def run_role(options):
    scenario = Scenario(options, options.role)
    try:
        result, ok = await ROLES[options.role](scenario)
        error = None
    except Exception as failure:
        result, ok, error = {}, False, f"{name_of(failure)}: {failure}"
    await scenario.close()
    emit({"role": options.role, "id": options.id, **result, "ok": ok, "error": error})
    return ok


async def run(options):
    if options.role:
        return await run_role(options)
    plain = messages.SCENARIOS + connections.SCENARIOS
    table = [(f, SCENARIO_S) for f in plain] + [(f, HARNESS_S) for f in connections.WITH_HARNESS]
    if options.scenario == "list":
        for function, _ in table:
            print(function.__name__)
        return True
    names = None if options.scenario == "all" else options.scenario.split(",")
    unknown = set(names or []) - {f.__name__ for f, _ in table}
    if unknown:
        sys.exit(f"unknown scenario: {', '.join(sorted(unknown))}")
    fine = True
    for function, seconds in table:
        if names is None or function.__name__ in names:
            fine &= await run_scenario(options, function.__name__, function, seconds)
    return fine


options = arguments()
watchdog(options.watchdog)
succeeded = asyncio.run(run(options))
sys.stdout.flush()
# A thread may still wait for standard input: it must not keep the program.
os._exit(0 if succeeded else 1)
