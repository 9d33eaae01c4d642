#!/usr/bin/env python3
"""Watches what crosses an edge, tenant by tenant, for ten seconds, and says how far each is from its share.

    shares.py --far HOST:PORT [--seconds S] --edges COMMAND [--returns TENANT] TENANT:WEIGHT[:COST]…

Messages are counted where they come in, on the metrics page at --far, which is asked many times a second. A tenant's rate is
taken from the first to the last time that its count was seen to grow, so that a message of which a part has come does not
disturb. COST is what a message takes of the link, 1 by default. COMMAND prints the near broker's edges in JSON; it is asked
once a second whether a tenant's lane is empty.

The ten seconds begin once every tenant's count has grown all along, or, with --returns, when the count of that one grows
after it stood still. Prints one JSON object: the greatest deviation in percent, messages a second of all and of each, how
often a lane was looked at, and how often it was found empty.
"""

import argparse
import http.client
import json
import shlex
import subprocess
import sys
import threading
import time

# How long every tenant must have been seen to grow, twice in a row, and how long one must stand still to be idle.
STEADY_S = 1.5
IDLE_S = 2
# How long to wait for the ten seconds to begin.
PATIENCE_S = 90
COUNTER = "glocal_relayed_in_total{"


class Far:
    """The metrics page of the broker at the far end."""

    def __init__(self, at, tenants):
        self.connection = http.client.HTTPConnection(at, timeout=5)
        self.tenants = tenants
        self.pause = 0.01 if len(tenants) < 50 else 0.1

    def look(self):
        """When it was, and the counts."""
        before = time.monotonic()
        self.connection.request("GET", "/metrics")
        page = self.connection.getresponse().read().decode()
        at = (before + time.monotonic()) / 2
        counts = dict.fromkeys(self.tenants, 0)
        for line in page.splitlines():
            if line.startswith(COUNTER) and 'class="live"' in line:
                tenant = line.split('tenant="', 1)[1].split('"', 1)[0]
                if tenant in counts:
                    counts[tenant] += int(line.rsplit(" ", 1)[1])
        time.sleep(self.pause)
        return at, counts


def await_all(far):
    """Until every count has grown in each of two spells in a row."""
    deadline = time.monotonic() + PATIENCE_S
    steady, (at, before) = 0, far.look()
    while steady < 2:
        now, counts = far.look()
        if now > deadline:
            still = [tenant for tenant in counts if counts[tenant] == before[tenant]]
            sys.exit(f"no steady flood: {', '.join(still) or 'nobody'} stands still")
        if now - at >= STEADY_S:
            grown = all(counts[tenant] > before[tenant] for tenant in counts)
            steady, at, before = steady + 1 if grown else 0, now, counts


def await_return(far, tenant):
    """Until the count of one grows that has grown before and then stood still."""
    deadline = time.monotonic() + PATIENCE_S
    since, before = far.look()
    seen = before[tenant]
    while True:
        now, counts = far.look()
        if now > deadline:
            sys.exit(f"{tenant} does not return")
        if counts[tenant] != before[tenant]:
            if before[tenant] > seen and now - since >= IDLE_S:
                return
            since, before = now, counts


def growth(far, seconds):
    """For each tenant its first and its last growth, when and the count: in the first second, and in all of them."""
    (began, before), spans, of_first = far.look(), {}, None
    while True:
        now, counts = far.look()
        if of_first is None and now > began + 1:
            of_first = dict(spans)
        if now > began + seconds:
            return of_first, spans
        for tenant, count in counts.items():
            if count > before[tenant]:
                first, _ = spans.get(tenant, ((now, count), None))
                spans[tenant] = (first, (now, count))
        before = counts


class Shares:
    """What tenants got by their spans of growth, and how far it is from what their weights say."""

    def __init__(self, spans, weights, costs):
        self.rates = {}
        for tenant in weights:
            (first, start), (last, end) = spans.get(tenant, ((0, 0), (0, 0)))
            self.rates[tenant] = (end - start) / (last - first) if last > first else 0.0
        taken = {tenant: rate * costs[tenant] for tenant, rate in self.rates.items()}
        self.total, weight_sum = sum(taken.values()), sum(weights.values())
        share = {tenant: self.total * weight / weight_sum for tenant, weight in weights.items()}
        self.off = {tenant: 100 * (taken[tenant] / share[tenant] - 1) if share[tenant] else -100.0 for tenant in weights}

    def greatest(self):
        """The greatest deviation in percent."""
        return round(max(abs(off) for off in self.off.values()), 3)


class Lanes(threading.Thread):
    """Looks at the near broker's lanes once a second."""

    def __init__(self, command, tenants):
        super().__init__(daemon=True)
        self.command, self.tenants = command, tenants
        self.looks, self.empty, self.least = 0, 0, None
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(1):
            printed = subprocess.run(self.command, capture_output=True, check=True).stdout
            queued = dict.fromkeys(self.tenants, 0)
            for edge in json.loads(printed)["edges"]:
                for lane in edge["lanes"]:
                    if lane["tenant"] in queued:
                        queued[lane["tenant"]] += lane["bytes"]
            self.looks += len(queued)
            self.empty += sum(1 for bytes_queued in queued.values() if bytes_queued == 0)
            least = min(queued.values())
            self.least = least if self.least is None else min(self.least, least)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--far", required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--returns")
    parser.add_argument("--edges", required=True)
    parser.add_argument("tenant", nargs="+")
    args = parser.parse_args()
    weights, costs = {}, {}
    for tenant, weight, *cost in (text.split(":") for text in args.tenant):
        weights[tenant], costs[tenant] = int(weight), float(cost[0]) if cost else 1.0
    far, lanes = Far(args.far, list(weights)), Lanes(shlex.split(args.edges), list(weights))
    if args.returns:
        await_return(far, args.returns)
    else:
        await_all(far)
    lanes.start()
    of_first, spans = growth(far, args.seconds)
    lanes.over.set()
    lanes.join()
    shares = Shares(spans, weights, costs)
    print(json.dumps({
        "deviation_percent": shares.greatest(),
        "first_second_percent": Shares(of_first or {}, weights, costs).greatest(),
        "messages_per_s": sum(shares.rates.values()), "link": shares.total,
        "looks": lanes.looks, "empty": lanes.empty, "least_queued_bytes": lanes.least,
        "each": {tenant: {"per_s": round(rate, 2), "percent_off": round(shares.off[tenant], 3)} for tenant, rate in shares.rates.items()},
    }))


main()
