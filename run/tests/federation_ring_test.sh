#!/usr/bin/env bash
# A ring of five brokers, and a full mesh of four: each subscriber gets each message once, wherever it was published, each
# edge carries no more copies than the shortest ways need, and the other tenant hears nothing. Ends with totals; the exit
# code is the number of failures. COUNT is how much each publishes (1000 in a long run). Case RB-35.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

MESH_DIR=
finish() {
    stop_subscribers
    if [ -n "$MESH_DIR" ]; then stop_mesh >/dev/null; fi
    for dir in "${DIRS[@]}"; do
        if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $dir"; else rm -rf "$dir"; fi
    done
}
DIRS=()
trap finish EXIT

# Messages of each publisher.
COUNT=${COUNT:-50}

# bring_up PLAN: a mesh of it on free ports, every bridge up.
bring_up() {
    local node
    MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-ring.XXXXXX")
    DIRS+=("$MESH_DIR")
    plan_with_free_ports "$1" >"$MESH_DIR/fabric.toml"
    make_fabric
    mapfile -t NODES < <(nodes)
    for node in "${NODES[@]}"; do start_node "$node"; done
    for node in "${NODES[@]}"; do
        if ! await_node "$node" || ! wait_for 20 bridged "$node"; then
            fail "$node starts with its bridges" "$(tail -n 5 "$(log_file "$node")")"
            summary || exit "$FAILED"
        fi
    done
}

# agent TENANT NODE: the agent of the tenant in the region of the node.
agent() {
    local file
    file=$(printf '%s\n' "$MESH_DIR/agents/$1"/*"@$(node_key "$2" regionname).pem" | head -n 1)
    printf '%s/%s' "$1" "$(basename "$file" .pem)"
}

# heard SUBSCRIBER PUBLISHER…: it has heard every publisher's probe.
heard_all() {
    local name=$1 from
    shift
    for from in "$@"; do grep -qxF "probe $from" "$MESH_DIR/run/$name.out" || return 1; done
}

# probe: everybody publishes until everybody has heard everybody, since interest takes a moment to cross the mesh.
probe() {
    local node
    for node in "${NODES[@]}"; do client "$(agent tenantA "$node")" "$node" pub ring.probe "probe $node" >/dev/null 2>&1; done
    for node in "${NODES[@]}"; do heard_all "$node" "${NODES[@]}" || return 1; done
}

# exact SUBSCRIBER: each message of each publisher once, in order, and nothing else.
exact() {
    local from wrong=0 lines
    for from in "${NODES[@]}"; do
        lines=$(grep "^$from-" "$MESH_DIR/run/$1.out" | tr '\n' ' ')
        if [ "$lines" != "$(seq -f "$from-%g" -s ' ' 1 "$COUNT") " ]; then
            say "$1 got of $from $(wc -w <<<"$lines") messages: ${lines:0:80}…"
            wrong=1
        fi
    done
    return "$wrong"
}

# copies NODE CLASS: copies that the node has made for its edges.
copies() { metric "$1" glocal_relayed_out_total tenant=tenantA "class=$2"; }

all_copies() {
    local node sum=0
    for node in "${NODES[@]}"; do sum=$((sum + $(copies "$node" live))); done
    printf '%d' "$sum"
}

# rounds NAME EDGES: everybody publishes COUNT messages to everybody; at most EDGES copies of each message on all edges.
round() {
    local node before after most
    for node in "${NODES[@]}"; do
        subscriber "$node" "$(agent tenantA "$node")" "$node" 'ring.>' --raw
        subscriber "$node-b" "$(agent tenantB "$node")" "$node" 'ring.>' --raw
    done
    check "$1: everybody hears everybody" wait_for 20 probe
    sleep 0.3
    before=$(all_copies)
    for node in "${NODES[@]}"; do
        client "$(agent tenantA "$node")" "$node" pub ring.data "$node-{{n}}" --count "$COUNT" >/dev/null 2>"$MESH_DIR/run/pub.err" ||
            fail "$1: $node publishes" "$(cat "$MESH_DIR/run/pub.err")"
    done
    for node in "${NODES[@]}"; do check "$1: $node gets each message once and in order" wait_for 10 exact "$node"; done
    # What is doubled comes after its first copy.
    sleep 0.3
    for node in "${NODES[@]}"; do check "$1: and still so a moment later, at $node" exact "$node"; done
    after=$(all_copies)
    most=$((COUNT * ${#NODES[@]} * $2))
    if [ $((after - before)) -le "$most" ]; then
        pass "$1: $((after - before)) copies on edges, at most $most"
    else
        fail "$1: $((after - before)) copies on edges, more than $most"
    fi
    for node in "${NODES[@]}"; do
        check "$1: tenantB hears nothing at $node" test ! -s "$MESH_DIR/run/$node-b.out"
    done
    stop_subscribers
}

bring_up "$REPO/mesh-configs/ring/fabric.toml"
round 'ring of five' 4
stop_mesh >/dev/null

# The ring of four with both diagonals.
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-ring.XXXXXX")
DIRS+=("$MESH_DIR")
awk '
    # Blocks are paragraphs; those of region-e go, and the two edges to it become the diagonals and the missing side.
    BEGIN { RS = ""; ORS = "\n\n" }
    /name = "region-e/ && /^\[\[(region|node)\]\]/ { next }
    /^\[\[agent\]\]/ && /region = "region-e"/ { next }
    /^\[\[edge\]\]/ && /name = "d-e"/ { gsub(/d-e/, "d-a"); gsub(/region-e\/broker-e/, "region-a/broker-a") }
    /^\[\[edge\]\]/ && /name = "e-a"/ {
        print "[[edge]]\nname = \"a-c\"\ndial = \"region-a/broker-a\"\naccept = \"region-c/broker-c\"\ntenants = [\"*\"]"
        print "[[edge]]\nname = \"b-d\"\ndial = \"region-b/broker-b\"\naccept = \"region-d/broker-d\"\ntenants = [\"*\"]"
        next
    }
    { sub(/, "region-e"/, ""); print }' "$REPO/mesh-configs/ring/fabric.toml" >"$MESH_DIR/four.toml"
bring_up "$MESH_DIR/four.toml"
round 'full mesh of four' 3

summary || exit "$FAILED"
