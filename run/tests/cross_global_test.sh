#!/usr/bin/env bash
# Two globals. tenantB is on the edges of both regions but not on the edge between the globals: nothing of it crosses there,
# seen at both ends. Then a newer bundle, given to one broker only, lets it cross, and the next one takes that back, while
# tenantA's traffic runs over the same edge: none of it is lost, repeated or out of order, and no bridge is dropped. Ends
# with totals; the exit code is the number of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-mesh.XXXXXX")
STEADY_PID=
finish() {
    [ -z "$STEADY_PID" ] || kill -TERM "$STEADY_PID" 2>/dev/null || true
    stop_subscribers
    stop_mesh >/dev/null
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

ONE=global-1-broker
TWO=global-2-broker
A=region-a-broker
B=region-b-broker
EDGE=globals
ALICE=tenantA/alice@region-a
ANNA=tenantA/anna@region-b
BOB=tenantB/bob@region-a
BERTA=tenantB/berta@region-b
# Messages of tenantA while bundles change, and how fast.
STEADY_COUNT=6000
STEADY_RATE=400

plan_with_free_ports "$REPO/mesh-configs/two-global/fabric.toml" >"$MESH_DIR/fabric.toml"
make_fabric
# The brokers' own configuration does not narrow: the bundle alone decides. Each reads the bundle that it is handed.
mkdir -p "$MESH_DIR/handed"
for node in $ONE $TWO $A $B; do
    sed -i -e 's/^tenants = .*/tenants = ["*"]/' "$MESH_DIR/nodes/$node/node.toml"
    cp "$MESH_DIR/nodes/$node/bundle.glocal" "$MESH_DIR/handed/$node.glocal"
done

# crossing TENANTS: signs the next bundle, with these tenants on the edge between the globals.
crossing() {
    awk -v edge="$EDGE" -v tenants="$1" '
        /^name *=/ { here = ($0 ~ "\"" edge "\"") }
        here && /^tenants *=/ { print "tenants = [" tenants "]"; here = 0; next }
        { print }' "$MESH_DIR/fabric.toml" >"$MESH_DIR/next.toml"
    mv "$MESH_DIR/next.toml" "$MESH_DIR/fabric.toml"
    make_fabric
}

# hand NODE: the newest bundle, as a whole.
hand() {
    cp "$MESH_DIR/nodes/$1/bundle.glocal" "$MESH_DIR/handed/$1.next"
    mv "$MESH_DIR/handed/$1.next" "$MESH_DIR/handed/$1.glocal"
}

all_have_version() {
    local node
    for node in $ONE $TWO $A $B; do metric_is "$node" "$1" glocal_bundle_version || return 1; done
}

publish() { client "$1" "$2" pub "$3" "$4" >/dev/null; }

# heard NAME WHO NODE TEXT: publishes until the subscriber hears it.
heard() {
    publish "$2" "$3" orders.probe "$4" 2>/dev/null
    wait_for 1 grep -qF "$4" "$MESH_DIR/run/$1.out"
}

# sent_over NODE: copies of tenantB's messages that the node made for other brokers.
sent_over() { metric "$1" glocal_relayed_out_total tenant=tenantB; }

no_trace() { ! received "$1" | grep -qF "$2"; }

in_order() {
    received steady | awk -v count="$STEADY_COUNT" '
        match($0, /n-[0-9]+/) { if (substr($0, RSTART + 2, RLENGTH - 2) != seen + first) exit 1; seen++ }
        BEGIN { first = '"$1"' }
        END { if (seen != count) { print seen " of " count; exit 1 } }'
}

for node in $TWO $ONE $A $B; do start_node "$node" "GLOCAL_BUNDLE=$MESH_DIR/handed/$node.glocal"; done
for node in $ONE $TWO $A $B; do
    if ! await_node "$node" || ! wait_for 20 bridged "$node"; then
        fail "$node starts with its bridges" "$(tail -n 5 "$(log_file "$node")")"
        summary || exit "$FAILED"
    fi
done

# ── Not on the edge: nothing crosses ─────────────────────────────────────────

subscriber anna $ANNA $B 'orders.>' || true
subscriber berta $BERTA $B 'orders.>' || true
subscriber berta-below $BERTA $A 'orders.>' || true
check 'tenantA crosses between the globals' wait_for 10 heard anna $ALICE $A before-a
check 'tenantB crosses where its edge allows it' wait_for 10 heard berta-below $BOB $A before-b
publish $BOB $A orders.new before-b2
publish $ALICE $A orders.end before-end
check 'what tenantA said after has crossed' wait_for 10 grep -qF before-end "$MESH_DIR/run/anna.out"
check 'region-b heard nothing of tenantB' no_trace berta before-b
check 'global-1 sent none of tenantB' metric_is $ONE 0 glocal_relayed_out_total tenant=tenantB
check 'global-2 took none of tenantB' metric_is $TWO 0 glocal_relayed_in_total tenant=tenantB
check 'global-2 had nothing to refuse' metric_is $TWO 0 glocal_edge_refused_total edge=$EDGE

# ── Widened while tenantA's traffic runs; one broker is told ─────────────────

subscriber steady $ANNA $B 'steady.>' || true
check 'the steady traffic is wanted' wait_for 10 heard anna $ALICE $A ready-a
client_exec $ALICE $A pub steady.on 'n-{{n}}' --class ctrl --count $STEADY_COUNT --rate $STEADY_RATE/s >"$MESH_DIR/run/steady.log" 2>&1 &
STEADY_PID=$!
UPS=$(metric $ONE glocal_edge_ups_total edge=$EDGE)
check 'tenantA is flowing' wait_for 10 received_lines steady 200
crossing '"tenantA", "tenantB", "cresco-system"'
hand $B
check 'the farthest broker hears of the new bundle' wait_for 10 all_have_version 2
check 'tenantB crosses now' wait_for 10 heard berta $BOB $A during-b
check 'global-1 sends tenantB' metric_at_least $ONE 1 glocal_relayed_out_total tenant=tenantB

# ── Narrowed again ───────────────────────────────────────────────────────────

crossing '"tenantA", "cresco-system"'
hand $ONE
check 'every broker hears of the narrowing' wait_for 10 all_have_version 3
SENT=$(sent_over $ONE)
publish $BOB $A orders.new after-b
publish $ALICE $A orders.end after-end
check 'what tenantA said after the narrowing has crossed' wait_for 10 grep -qF after-end "$MESH_DIR/run/anna.out"
check 'nothing of tenantB crosses any more' no_trace berta after-b
check 'global-1 sends no more of tenantB' metric_is $ONE "$SENT" glocal_relayed_out_total tenant=tenantB
# Waited for here, since only the shell that started it can.
if wait "$STEADY_PID"; then
    pass 'all of the steady traffic was published'
else
    fail 'all of the steady traffic was published' "$(cat "$MESH_DIR/run/steady.log")"
fi
STEADY_PID=
FIRST=$(received steady | sed -n '1s/.*n-\([0-9]*\).*/\1/p')
check "tenantA's traffic came whole and in order" wait_for 10 in_order "${FIRST:-0}"
check 'the bridge between the globals was never dropped' metric_is $ONE "$UPS" glocal_edge_ups_total edge=$EDGE
for node in $ONE $TWO $A $B; do
    check "$node dropped nothing of tenantA" metric_is "$node" 0 glocal_dropped_total tenant=tenantA
    check "$node refused no bundle" metric_is "$node" 0 glocal_bundle_refused_total
done

summary || exit "$FAILED"
