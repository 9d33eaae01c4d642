#!/usr/bin/env bash
# An edge without tenantB in its set carries none of tenantB's frames. Proved at both ends: with every check on, nothing is
# sent; with the sender's check off, which only a test build can do, the receiver refuses and counts what comes; with both
# off, tenantB's message does cross, so that the checks are what stops it. Ends with totals; the exit code is the number
# of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

# The build whose guards can be switched off, by name, from the environment. Never a release build.
if [ -z "${GUARDS_BIN:-}" ]; then
    say 'building the test build with switchable guards'
    (cd "$REPO" && GLOCAL_GUARDS_BUILD=1 cargo build --quiet --locked --bin glocal)
    GUARDS_BIN=$TARGET_DIR/debug/glocal
fi

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-mesh.XXXXXX")
finish() {
    stop_subscribers
    stop_mesh >/dev/null
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

GLOBAL=global-broker-g
A=region-a-broker-a
B=region-b-broker-b
EDGE=global-region-b
ALICE=tenantA/alice@region-a
ANNA=tenantA/anna@region-b
BOB=tenantB/bob@region-a
BERTA=tenantB/berta@region-b

# The two-region plan, but the edge to region-b is for tenantA alone.
plan_with_free_ports "$REPO/mesh-configs/two-region/fabric.toml" |
    awk -v edge="$EDGE" '
        /^name *=/ { here = ($0 ~ "\"" edge "\"") }
        here && /^tenants *=/ { print "tenants = [\"tenantA\"]"; here = 0; next }
        { print }' >"$MESH_DIR/fabric.toml"
make_fabric
narrow() {
    local edge
    edge=$(grep -A 4 -xF "name = \"$EDGE\"" "$MESH_DIR/nodes/$1/node.toml")
    say "$edge"
    grep -qxF 'tenants = ["tenantA"]' <<<"$edge"
}
for node in $GLOBAL $B; do check "the edge is for tenantA alone at $node" narrow "$node"; done

# start_mesh [VARIABLE=VALUE…]: the global and region-b get the variables and, if there are any, the test build.
start_mesh() {
    local node
    start_node $A
    for node in $GLOBAL $B; do
        if [ $# -gt 0 ]; then NODE_BIN=$GUARDS_BIN start_node "$node" "$@"; else start_node "$node"; fi
    done
    for node in $GLOBAL $A $B; do
        if ! await_node "$node" || ! wait_for 20 bridged "$node"; then
            fail "$node starts with its bridges" "$(tail -n 5 "$(log_file "$node")")"
            summary || exit "$FAILED"
        fi
    done
}

end_mesh() {
    stop_subscribers
    stop_mesh >/dev/null
}

publish() { client "$1" "$2" pub "$3" "$4" "${@:5}"; }

# across SUBSCRIBER WHO NODE: interest crosses the mesh soon after a subscription; this says when WHO is heard.
across() {
    publish "$2" "$3" orders.probe "from $2" >/dev/null 2>&1
    wait_for 1 grep -qF "orders.probe from $2" "$MESH_DIR/run/$1.out"
}

# traffic NAME: tenantB subscribes at the global and in both regions and publishes in both; tenantA does the same and is
# seen to cross, before and after, so that what has not come by then does not come.
traffic() {
    subscriber "$1-anna" $ANNA $B 'orders.>' || true
    subscriber "$1-alice" $ALICE $A 'orders.>' || true
    subscriber "$1-berta" $BERTA $B 'orders.>' || true
    subscriber "$1-bob" $BOB $A 'orders.>' || true
    subscriber "$1-bob-global" $BOB $GLOBAL 'orders.>' || true
    check "$1: tenantA crosses from region-a to region-b" wait_for 10 across "$1-anna" $ALICE $A
    check "$1: tenantA crosses from region-b to region-a" wait_for 10 across "$1-alice" $ANNA $B
    check "$1: tenantB crosses the edge that allows it" wait_for 10 across "$1-bob-global" $BOB $A
    publish $BOB $A orders.new from-bob >/dev/null || true
    publish $BERTA $B orders.new from-berta >/dev/null || true
    publish $ALICE $A orders.end "$1" >/dev/null || true
    publish $ANNA $B orders.end "$1" >/dev/null || true
    check "$1: what came after has crossed to region-b" wait_for 10 grep -qF "orders.end $1" "$MESH_DIR/run/$1-anna.out"
    check "$1: what came after has crossed to region-a" wait_for 10 grep -qF "orders.end $1" "$MESH_DIR/run/$1-alice.out"
}

nothing_of() { received "$1" && ! received "$1" | grep -q "$2"; }

isolated() {
    check "$1: region-b got nothing of tenantB from region-a" nothing_of "$1-berta" from-bob
    check "$1: the global got nothing of tenantB from region-b" nothing_of "$1-bob-global" from-berta
    check "$1: region-a got nothing of tenantB from region-b" nothing_of "$1-bob" from-berta
    check "$1: region-b took none of tenantB's frames" metric_is $B 0 glocal_relayed_in_total tenant=tenantB
}

# ── Every check on ────────────────────────────────────────────────────────────

start_mesh
traffic on
isolated on
check 'on: region-b sent none of tenantB' metric_is $B 0 glocal_relayed_out_total tenant=tenantB
# What the global tells tenantB of its own sessions may go to region-a, where tenantB is allowed.
all_to_a() { metric_is $A "$(metric $GLOBAL glocal_relayed_out_total tenant=tenantB)" glocal_relayed_in_total tenant=tenantB; }
check 'on: what the global sent of tenantB went to region-a, all of it' wait_for 5 all_to_a
check 'on: tenantA was sent' metric_at_least $B 1 glocal_relayed_out_total tenant=tenantA
check 'on: region-b had nothing to refuse' metric_is $B 0 glocal_edge_refused_total edge=$EDGE
check 'on: the global had nothing to refuse' metric_is $GLOBAL 0 glocal_edge_refused_total edge=$EDGE
end_mesh

# ── The sender's check off, at both ends: each end's own check refuses ────────

start_mesh GLOCAL_GUARDS_OFF=edge-sender
traffic sender-off
isolated sender-off
check 'sender-off: region-b refused what the global sent' wait_for 5 metric_at_least $B 1 glocal_edge_refused_total edge=$EDGE
check 'sender-off: the global refused what region-b sent' wait_for 5 metric_at_least $GLOBAL 1 glocal_edge_refused_total edge=$EDGE
end_mesh

# ── Both checks off: it crosses, so the checks are what stops it ──────────────

start_mesh GLOCAL_GUARDS_OFF=edge-sender,edge-receiver
traffic both-off
check 'both-off: without its checks the edge carries tenantB' wait_for 10 across both-off-bob-global $BERTA $B
end_mesh

summary || exit "$FAILED"
