#!/usr/bin/env python3
"""Runs the suites of all client libraries against a real nats-server, and against another server, and compares.

Without --other-url only nats-server is tested: every scenario must be ok. With it, every fact of every scenario must be the
same on both, but for the differences that differences.toml lists, each with its reason; one that is listed and does not
occur is a failure as well. What is particular to a run (random prefixes, tenants) never enters the facts.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

import servers

HERE = pathlib.Path(__file__).resolve().parent
SUITES = {
    "nats-py": [HERE / "python/.venv/bin/python", HERE / "python/suite.py"],
    "nats.js": ["node", HERE / "javascript/suite.js"],
    "async-nats": [HERE / "rust/target/debug/nats-client-rust"],
    # No library: bytes, and the lines that come back.
    "raw": [sys.executable, HERE / "raw/suite.py"],
}
# A suite ends itself before this many seconds; this is the backstop.
SUITE_S = 180
WITH_HARNESS = ("reconnect", "lame_duck")
ABSENT = "(absent)"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nats-server", default=find_nats_server(), help="the binary of nats-server")
    parser.add_argument("--max-payload", type=int, default=1_048_576, help="of nats-server; set it to the other's")
    parser.add_argument("--no-reference", action="store_true", help="test the other server alone")
    parser.add_argument("--client", action="append", choices=list(SUITES), help="only these; default: all")
    parser.add_argument("--scenario", default="all")
    parser.add_argument("--tls-first", action="store_true", help="all connections of the other server begin with TLS")
    parser.add_argument("--differences", type=pathlib.Path, default=HERE / "differences.toml")
    parser.add_argument("--results", type=pathlib.Path, help="write every line of the suites to this file")
    parser.add_argument("--from-results", type=pathlib.Path, help="run nothing; judge what --results has written")
    parser.add_argument("--verbose", action="store_true", help="print the facts and notes too")
    other = parser.add_argument_group("the other server")
    other.add_argument("--other-url")
    other.add_argument("--other-name", default="glocal")
    other.add_argument("--other-ca")
    other.add_argument("--other-cert")
    other.add_argument("--other-key")
    other.add_argument("--other-denied", help="a subject that the user may neither write nor read")
    other.add_argument("--other-refused", action="append", default=[], metavar="NAME=CERT:KEY")
    other.add_argument("--other-command", help="starts it in the foreground; without it, it is not restarted")
    other.add_argument("--other-log")
    settled = "begin a suite only when it tells of no responders: a broker that starts does not know yet who is elsewhere"
    other.add_argument("--other-settled", action="store_true", help=settled)
    other.add_argument("--other-lame-duck-signal", default="TERM")
    options = parser.parse_args()
    if options.other_url and not (options.other_ca and options.other_cert and options.other_key):
        parser.error("--other-url needs --other-ca, --other-cert and --other-key")
    if options.no_reference and not options.other_url:
        parser.error("--no-reference needs --other-url")
    return options


def find_nats_server():
    # Debian installs it where the PATH of an ordinary user does not look.
    path = f"{HERE}/.nats-server/usr/sbin:{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    return shutil.which("nats-server", path=path)


def other_server(options):
    identity = ["--ca", options.other_ca, "--cert", options.other_cert, "--key", options.other_key]
    if options.other_denied:
        identity += ["--denied", options.other_denied]
    for refused in options.other_refused:
        identity += ["--refused", refused]
    command = shlex.split(options.other_command) if options.other_command else None
    duck = signal.Signals["SIG" + options.other_lame_duck_signal.removeprefix("SIG")]
    return servers.Server(options.other_name, options.other_url, identity, command, duck, options.other_log)


def lines_of(stream, into):
    for line in stream:
        into.put(line)
    into.put(None)


def environment(server):
    """async-nats reads the machine's root certificates after it has opened its socket: a file of one is read at once."""
    roots = server.identity[server.identity.index("--ca") + 1]
    return {**os.environ, "SSL_CERT_FILE": roots}


def run_suite(client, server, options):
    """The scenarios' results by name, in order. The suite asks for restarts; this side carries them out."""
    command = [*SUITES[client], "--url", server.url, *server.identity, "--json", "--scenario", options.scenario]
    if options.tls_first and server.name != "nats-server":
        command.append("--tls-first")
    pipe = subprocess.PIPE
    suite = subprocess.Popen(
        list(map(str, command)), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment(server)
    )
    lines, noise, results = queue.Queue(), queue.Queue(), {}
    threading.Thread(target=lines_of, args=(suite.stdout, lines), daemon=True).start()
    threading.Thread(target=lines_of, args=(suite.stderr, noise), daemon=True).start()
    deadline = time.monotonic() + SUITE_S
    try:
        while True:
            line = lines.get(timeout=max(0.1, deadline - time.monotonic()))
            if line is None:
                break
            told = json.loads(line)
            if "ready" in told:
                answer(suite, server, told["action"])
            else:
                results[told["scenario"]] = told
        suite.wait(10)
    except queue.Empty:
        results["suite"] = {"scenario": "suite", "outcome": {}, "ok": False, "error": f"not done after {SUITE_S} s"}
    finally:
        if suite.poll() is None:
            suite.kill()
            suite.wait(10)
    if not results:
        text = "".join(iter(noise.get, None))
        results["suite"] = {"scenario": "suite", "outcome": {}, "ok": False, "error": f"said nothing: {text[-400:]}"}
    return results


def answer(suite, server, action):
    try:
        server.act(action)
        said = "done"
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        said = f"failed: {error}"
        print(f"      {server.name}: {error}", file=sys.stderr)
    try:
        suite.stdin.write(said + "\n")
        suite.stdin.flush()
    except BrokenPipeError:
        pass


def settle(server, seconds=10):
    """Asks what nobody answers until the server says so."""
    ask = [*SUITES["raw"], "--url", server.url, *server.identity, "--scenario", "no responders"]
    deadline = time.monotonic() + seconds
    while b"503" not in subprocess.run(list(map(str, ask)), capture_output=True, timeout=seconds).stdout:
        if time.monotonic() > deadline:
            print(f"      {server.name}: tells nothing of no responders after {seconds} s", file=sys.stderr)
            return


def run_server(server, options):
    results = {}
    server.start()
    try:
        for client in options.client or SUITES:
            if options.other_settled and server.name != "nats-server":
                settle(server)
            began = time.monotonic()
            results[client] = run_suite(client, server, options)
            print(f"{server.name:12} {client:11} {time.monotonic() - began:5.1f} s", flush=True)
    finally:
        server.stop()
    return results


def table(results, judged):
    """One row a scenario, one column a client and server."""
    columns = [(server, client) for server in results for client in results[server]]
    names = []
    for server, client in columns:
        names += [name for name in results[server][client] if name not in names]
    print()
    width = max(map(len, [*names, "scenario"])) + 1
    print(f"{'scenario':{width}}" + "".join(f"{server[:11]:>12}" for server, _ in columns))
    print(f"{'':{width}}" + "".join(f"{client[:11]:>12}" for _, client in columns))
    for name in names:
        row = []
        for server, client in columns:
            told = results[server][client].get(name)
            state = "-" if told is None else "ok" if told["ok"] else "FAILED"
            row.append(judged.get((server, client, name), state))
        print(f"{name:{width}}" + "".join(f"{state:>12}" for state in row))
    print()


def listed(path):
    if not path.exists():
        return []
    entries = []
    for entry in tomllib.loads(path.read_text()).get("difference", []):
        if not entry.get("reason") or not entry.get("scenario"):
            sys.exit(f"{path}: a difference needs a scenario and a reason: {entry}")
        scenarios = entry["scenario"]
        entries += [{**entry, "scenario": s} for s in ([scenarios] if isinstance(scenarios, str) else scenarios)]
    return entries


def matches(entry, client, scenario, fact, ours, theirs):
    return (
        entry.get("client", client) == client
        and fnmatch.fnmatchcase(scenario, entry["scenario"])
        and entry.get("fact", fact) == fact
        and entry.get("reference", ours) == ours
        and entry.get("other", theirs) == theirs
    )


def differences(reference, other):
    """Every fact that is not the same, as (client, scenario, fact, reference's value, other's value)."""
    found = []
    for client, scenarios in reference.items():
        for name in [*scenarios, *(n for n in other[client] if n not in scenarios)]:
            ours, theirs = scenarios.get(name), other[client].get(name)
            if ours is None or theirs is None:
                found.append((client, name, "scenario", told(ours), told(theirs)))
                continue
            for fact in [*ours["outcome"], *(f for f in theirs["outcome"] if f not in ours["outcome"])]:
                left, right = ours["outcome"].get(fact, ABSENT), theirs["outcome"].get(fact, ABSENT)
                if left != right:
                    found.append((client, name, fact, left, right))
    return found


def told(result):
    return ABSENT if result is None else "told"


def judge(results, reference, other, options):
    """The failures, as lines, and what the table shows instead of ok."""
    failures, judged = [], {}
    entries = listed(options.differences)
    used = set()
    excused = set()
    if reference and other:
        for client, name, fact, left, right in differences(results[reference], results[other]):
            known = [n for n, e in enumerate(entries) if matches(e, client, name, fact, left, right)]
            used.update(known)
            if known:
                excused.add((client, name))
                judged.setdefault((other, client, name), "intended")
                print(f"intended  {client}, {name}: {entries[known[0]]['reason']}")
                if options.verbose:
                    print(f"          {fact}: {left!r} → {right!r}")
            else:
                judged[(other, client, name)] = "DIFFERS"
                failures.append(f"{client} {name}: {fact}: {reference} {left!r}, {other} {right!r}")
        if options.scenario == "all" and not options.client:
            stale = [e for n, e in enumerate(entries) if n not in used]
            failures += [f"listed in {options.differences.name}, but there is no such difference: {e}" for e in stale]
    for server, clients in results.items():
        for client, scenarios in clients.items():
            for name, result in scenarios.items():
                if not result["ok"] and not (server == other and (client, name) in excused):
                    failures.append(f"{server} {client} {name}: {result['error']}")
    return failures, judged


def check_installed(options):
    missing = []
    for client in options.client or SUITES:
        for part in SUITES[client]:
            if isinstance(part, pathlib.Path) and not part.exists():
                missing.append(str(part.relative_to(HERE)))
    if not options.no_reference and not options.nats_server:
        missing.append("nats-server")
    if missing:
        sys.exit(f"error: not installed: {', '.join(missing)}\nhint: tests/clients/install.sh")


def run(options):
    """The results by server, client and scenario, and the names of the two servers, None for one that was left out."""
    if options.from_results:
        results = json.loads(options.from_results.read_text())
        names = list(results)
        return results, names[0], names[1] if len(names) > 1 else None
    check_installed(options)
    with tempfile.TemporaryDirectory(prefix="nats-clients-") as directory:
        todo = []
        if not options.no_reference:
            todo.append(servers.reference(options.nats_server, pathlib.Path(directory), options.max_payload))
        if options.other_url:
            todo.append(other_server(options))
        results = {server.name: run_server(server, options) for server in todo}
    if options.results:
        # In order: the reference comes first.
        options.results.write_text(json.dumps(results, indent=1) + "\n")
    reference = None if options.no_reference else todo[0].name
    return results, reference, todo[-1].name if options.other_url else None


def main():
    options = arguments()
    results, reference, other = run(options)
    if options.verbose:
        print(json.dumps(results, indent=1, sort_keys=True))
    failures, judged = judge(results, reference, other, options)
    table(results, judged)
    for failure in failures:
        print(f"FAIL  {failure}")
    ran = sum(len(scenarios) for clients in results.values() for scenarios in clients.values())
    good = sum(r["ok"] for clients in results.values() for scenarios in clients.values() for r in scenarios.values())
    print(f"{good} of {ran} scenario runs ok, {len(failures)} failures")
    return 1 if failures or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
