#!/usr/bin/env python3
"""Every kind of client publishes, every kind subscribes, over none, one and two bridges, in the own and in a foreign tenant.

The own tenant's subscribers must get each message once, the foreign tenant's none. Then every kind asks and every kind
answers, and a foreign tenant's request finds nobody. The mesh runs already; its directory says where its nodes are and which
agents have certificates. Prints tables of cells and, last, the totals; the exit code is the number of cells that failed.

Nothing sleeps to be sure that nothing comes. A subscriber of the foreign tenant is done when a marker of its own tenant has
come, sent the same way after the own tenant's subscribers had everything; then it still looks for more for a moment.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
KINDS = ("native", "nats-py", "nats.js", "async-nats")
OWN, FOREIGN = "tenantA", "tenantB"
PUBLISHERS = "region-a-broker-a"
# How far from the publishers, and the node where those subscribers are.
DISTANCES = (("same node", PUBLISHERS), ("one bridge", "global-broker-g"), ("two bridges", "region-b-broker-b"))
MARKER = "end"
# Milliseconds that a subscriber looks for more than it expects.
SETTLE_MS = 200
# Seconds that all clients may take to start, and all messages to arrive.
START_S, ARRIVE_S = 60, 30
CLIENTS_AT_ONCE = 4


class Mesh:
    def __init__(self, directory, binary):
        self.directory = directory
        self.binary = binary

    def node(self, name):
        return tomllib.loads((self.directory / "nodes" / name / "node.toml").read_text())

    def files(self, tenant, node):
        """Root, certificate and key of an agent of the tenant in the region of the node."""
        folder = self.directory / "agents" / tenant
        certificate = sorted(folder.glob(f"*@{self.node(node)['regionname']}.pem"))[0]
        return folder / "root.pem", certificate, certificate.with_suffix(".key")

    def glocal(self, tenant, node, *arguments):
        root, certificate, key = self.files(tenant, node)
        server = f"127.0.0.1:{self.node(node)['broker_port']}"
        command, *rest = arguments
        options = ("--server", server, "--root", root, "--cert", certificate, "--key", key)
        return [str(part) for part in (self.binary, command, *options, *rest)]

    def library(self, kind, tenant, node, *arguments):
        programs = {
            "nats-py": (HERE / "python/.venv/bin/python", HERE / "python/suite.py"),
            "nats.js": ("node", HERE / "javascript/suite.js"),
            "async-nats": (HERE / "rust/target/debug/nats-client-rust",),
        }
        root, certificate, key = self.files(tenant, node)
        url = f"tls://127.0.0.1:{self.node(node)['nats_port']}"
        options = ("--url", url, "--ca", root, "--cert", certificate, "--key", key)
        return [str(part) for part in (*programs[kind], *options, *arguments)]


class Process:
    """A client that runs; its lines come through a queue, None at the end. Ended by its process number."""

    running = []

    def __init__(self, command):
        # No settings of whoever runs this, and a session of its own: ^C ends this program first, which ends the clients.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GLOCAL_")}
        self.lines = queue.Queue()
        self.errors = []
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
        )
        Process.running.append(self)
        streams = ((self.process.stdout, self.lines.put), (self.process.stderr, self.told))
        self.readers = [threading.Thread(target=self.read, args=stream, daemon=True) for stream in streams]
        for reader in self.readers:
            reader.start()

    def read(self, stream, take):
        for line in stream:
            take(line.rstrip("\n"))
        if stream is self.process.stdout:
            self.lines.put(None)

    def told(self, line):
        self.errors.append(line)

    def line(self, deadline):
        """The next line; None at the end of output or when the deadline passes."""
        try:
            return self.lines.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def native_ready(self, deadline):
        """Whether the command line client says that the broker has confirmed."""
        while "subscribed" not in self.errors:
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def library_ready(self, deadline):
        line = self.line(deadline)
        return line is not None and "ready" in json.loads(line)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
        # The output may end before the last line of errors is read.
        for reader in self.readers:
            reader.join(5)


class NativeSubscriber(Process):
    def __init__(self, mesh, tenant, node, subject, expect):
        super().__init__(mesh.glocal(tenant, node, "sub", subject, "--raw"))
        self.expect = expect

    ready = Process.native_ready

    def received(self, deadline):
        payloads = []
        while len(payloads) < self.expect:
            line = self.line(deadline)
            if line is None:
                break
            payloads.append(line)
        settled = time.monotonic() + SETTLE_MS / 1000
        while (line := self.line(settled)) is not None:
            payloads.append(line)
        self.end()
        counts = collections.Counter(payload.rpartition("-")[0] for payload in payloads)
        return counts, len(payloads) - len(set(payloads))


class LibrarySubscriber(Process):
    def __init__(self, mesh, kind, tenant, node, subject, expect):
        patience = (START_S + 2 * ARRIVE_S) * 1000
        super().__init__(
            mesh.library(
                *(kind, tenant, node, "--role", "sub", "--subject", subject, "--expect", expect),
                *("--settle-ms", SETTLE_MS, "--timeout-ms", patience, "--watchdog", patience // 1000),
            )
        )
        self.expect = expect

    ready = Process.library_ready

    def received(self, deadline):
        line = self.line(deadline)
        if line is None:
            # Not all has come: it tells what has when it is asked to end.
            try:
                self.process.stdin.write("\n")
                self.process.stdin.flush()
            except OSError:
                pass
            line = self.line(time.monotonic() + 5)
        if line is None:
            return collections.Counter(), 0
        told = json.loads(line)
        self.errors += told.get("errors", [])
        return collections.Counter(told.get("by_publisher", {})), told.get("duplicates", 0)


def subscriber(mesh, kind, tenant, node, subject, expect):
    if kind == "native":
        return NativeSubscriber(mesh, tenant, node, subject, expect)
    return LibrarySubscriber(mesh, kind, tenant, node, subject, expect)


def publish(mesh, kind, tenant, subject, name, count):
    """Returns what went wrong, or nothing."""
    if kind == "native":
        command = mesh.glocal(tenant, PUBLISHERS, "pub", subject, name + "-{{n}}", "--count", count)
    else:
        role = ("--role", "pub", "--subject", subject, "--id", name, "--count", count)
        command = mesh.library(kind, tenant, PUBLISHERS, *role)
    process = Process(command)
    try:
        status = process.process.wait(ARRIVE_S)
    except subprocess.TimeoutExpired:
        process.end()
        return f"{kind} publishes to {subject}: not done within {ARRIVE_S} s"
    return f"{kind} publishes to {subject}: exit code {status}: {process.errors[-3:]}" if status else None


def await_interest(mesh, tenant, node, deadline):
    """Interest of one node travels in order: when a request is answered there, all earlier subscriptions are known here."""
    if node == PUBLISHERS:
        return True
    probe = f"probe.{node}"
    answering = Process(mesh.glocal(tenant, node, "reply", probe, "here"))
    try:
        while time.monotonic() < deadline:
            asking = Process(mesh.glocal(tenant, PUBLISHERS, "request", probe, "", "--timeout", 1))
            if asking.process.wait(20) == 0:
                return True
        return False
    finally:
        answering.end()


def run(mesh, count, troubles):
    """What each kind of subscriber of each tenant got at each distance, by kind of publisher, and its doubles."""
    subscribers = {}
    for number, (_, node) in enumerate(DISTANCES):
        for tenant, expect in ((OWN, len(KINDS) * count + 1), (FOREIGN, 1)):
            for kind in KINDS:
                found = subscriber(mesh, kind, tenant, node, f"matrix.{number}.>", expect)
                subscribers[number, tenant, kind] = found
    deadline = time.monotonic() + START_S
    for (number, tenant, kind), found in subscribers.items():
        if not found.ready(deadline):
            troubles.append(f"{kind} of {tenant} does not subscribe ({DISTANCES[number][0]}): {found.errors[-3:]}")
    everywhere = [(tenant, node) for _, node in DISTANCES for tenant in (OWN, FOREIGN)]
    with concurrent.futures.ThreadPoolExecutor(CLIENTS_AT_ONCE) as pool:
        for (tenant, node), known in zip(everywhere, pool.map(lambda t: await_interest(mesh, *t, deadline), everywhere)):
            if not known:
                troubles.append(f"the interest of {tenant} at {node} did not become known at {PUBLISHERS}")

        def all_publish(tenant, kinds, name, messages):
            jobs = [(kind, number) for number in range(len(DISTANCES)) for kind in kinds]
            names = {kind: name or kind for kind in kinds}
            done = pool.map(
                lambda j: publish(mesh, j[0], tenant, f"matrix.{j[1]}.{names[j[0]]}", names[j[0]], messages), jobs
            )
            troubles.extend(trouble for trouble in done if trouble)

        def all_receive(tenant):
            until = time.monotonic() + ARRIVE_S
            chosen = [key for key in subscribers if key[1] == tenant]
            with concurrent.futures.ThreadPoolExecutor(len(chosen)) as readers:
                return dict(zip(chosen, readers.map(lambda key: subscribers[key].received(until), chosen)))

        all_publish(OWN, KINDS, None, count)
        all_publish(OWN, ("native",), MARKER, 1)
        results = all_receive(OWN)
        all_publish(FOREIGN, ("native",), MARKER, 1)
        results.update(all_receive(FOREIGN))
    for (number, tenant, kind), (counts, duplicates) in results.items():
        if duplicates or counts.total() != subscribers[number, tenant, kind].expect:
            place = f"{kind} of {tenant} ({DISTANCES[number][0]})"
            troubles.append(f"{place}: {dict(counts)}, {duplicates} twice, says {subscribers[number, tenant, kind].errors[-3:]}")
    return results


def responder(mesh, kind, node, subject):
    """Answers `KIND:` and the request. Returns the process, and what says whether it is ready."""
    if kind == "native":
        process = Process(mesh.glocal(OWN, node, "reply", subject, "--quiet", "--command", "printf native:; cat"))
        return process, process.native_ready
    role = ("--role", "reply", "--subject", subject, "--id", kind, "--timeout-ms", (START_S + ARRIVE_S) * 1000)
    process = Process(mesh.library(kind, OWN, node, *role, "--watchdog", START_S + 2 * ARRIVE_S))
    return process, process.library_ready


def ask(mesh, kind, tenant, subject):
    """The answers that came, and what was said of errors."""
    if kind == "native":
        command = mesh.glocal(tenant, PUBLISHERS, "request", subject, "native-0", "--raw", "--timeout", 5)
    else:
        role = ("--role", "request", "--subject", subject, "--id", kind, "--timeout-ms", 5000)
        command = mesh.library(kind, tenant, PUBLISHERS, *role)
    process = Process(command)
    lines = list(iter(lambda: process.line(time.monotonic() + ARRIVE_S), None))
    process.end()
    if kind == "native":
        return lines, " ".join(process.errors)
    told = json.loads(lines[-1]) if lines else {}
    return told.get("replies", []), " ".join([*told.get("errors", []), str(told.get("error")), *process.errors])


def requests(mesh, troubles):
    """The cells of requests, by who asks, who answers (nobody, for a foreign tenant) and distance."""
    deadline = time.monotonic() + START_S
    places = [(kind, number) for number in range(len(DISTANCES)) for kind in KINDS]
    started = [responder(mesh, kind, DISTANCES[number][1], f"service.{number}.{kind}") for kind, number in places]
    for (kind, number), (process, ready) in zip(places, started):
        if not ready(deadline):
            troubles.append(f"{kind} does not answer ({DISTANCES[number][0]}): {process.errors[-3:]}")
    for _, node in DISTANCES:
        if not await_interest(mesh, OWN, node, deadline):
            troubles.append(f"the interest of {OWN} at {node} did not become known at {PUBLISHERS}")

    def cell(asking, answering, number):
        tenant = OWN if answering else FOREIGN
        replies, errors = ask(mesh, asking, tenant, f"service.{number}.{answering or 'native'}")
        if answering:
            right = replies == [f"{answering}:{asking}-0"]
        else:
            said = "nobody answers" if asking == "native" else "NoResponders"
            right = not replies and said in errors
        if not right:
            troubles.append(f"{asking} of {tenant} asks {answering} ({DISTANCES[number][0]}): {replies}, {errors[-300:]}")
        return right

    keys = [(a, b, number) for a in KINDS for b in (*KINDS, None) for number in range(len(DISTANCES))]
    with concurrent.futures.ThreadPoolExecutor(CLIENTS_AT_ONCE) as pool:
        return dict(zip(keys, pool.map(lambda key: cell(*key), keys)))


def judge(results, count):
    """The cells by publisher, subscriber and distance: what the own and the foreign subscriber got, and whether that is right."""
    cells = {}
    for (number, tenant, kind), (counts, duplicates) in results.items():
        whole = counts[MARKER] == 1 and duplicates == 0
        for publisher in KINDS:
            wanted = count if tenant == OWN else 0
            cells[publisher, kind, number, tenant] = (counts[publisher], whole and counts[publisher] == wanted)
    return cells


def table(cells, count):
    print(f"messages of {OWN} that came, of {count} sent: to subscribers of {OWN} (own) and of {FOREIGN} (foreign)\n")
    print(f"{'publisher':<12}{'subscriber':<14}" + "".join(f"{name:<18}" for name, _ in DISTANCES).rstrip())
    print(" " * 26 + "".join(f"{'own':<8}{'foreign':<10}" for _ in DISTANCES).rstrip())
    for publisher in KINDS:
        for kind in KINDS:
            line = f"{publisher:<12}{kind:<14}"
            for number in range(len(DISTANCES)):
                for tenant, width in ((OWN, 8), (FOREIGN, 10)):
                    came, right = cells[publisher, kind, number, tenant]
                    line += f"{came if right else f'{came} FAIL':<{width}}"
            print(line.rstrip())


def request_table(cells):
    print(f"\nrequests of {OWN} that its responders there answered, and of {FOREIGN} that found nobody\n")
    print(f"{'asks':<12}{'answers':<14}" + "".join(f"{name:<18}" for name, _ in DISTANCES).rstrip())
    for asking in KINDS:
        for answering in (*KINDS, None):
            line = f"{asking:<12}{answering or 'nobody':<14}"
            for number in range(len(DISTANCES)):
                right = cells[asking, answering, number]
                line += f"{'FAIL' if not right else 'answered' if answering else 'nobody':<18}"
            print(line.rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", required=True, type=pathlib.Path, help="the directory of the mesh")
    parser.add_argument("--binary", required=True, type=pathlib.Path, help="the program 'glocal'")
    parser.add_argument("--count", type=int, default=20, help="messages for each cell")
    options = parser.parse_args()
    troubles = []
    began = time.monotonic()
    mesh = Mesh(options.mesh, options.binary)
    try:
        cells = judge(run(mesh, options.count, troubles), options.count)
        request_cells = requests(mesh, troubles)
    finally:
        for process in Process.running:
            process.end()
    table(cells, options.count)
    request_table(request_cells)
    print()
    for trouble in troubles:
        print(f"note: {trouble}")
    verdicts = [right for _, right in cells.values()] + list(request_cells.values())
    failed = verdicts.count(False)
    print(f"{len(verdicts)} cells in {time.monotonic() - began:.1f} s")
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
