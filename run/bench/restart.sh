#!/usr/bin/env bash
# How long a hub with many agents and edges is away when it is killed and started again: 2 000 sessions and 8 edges must be
# back within 5 s of the start of the new process, the edges before the last session. Ends with lines
# "goal <name> <measured> <bound> ok|short"; fails when one is short. Case RB-74.
set -euo pipefail
# Binaries that are named are taken as they are.
BUILD=true
[ -z "${MESH_BIN:-}" ] || [ -z "${HOP_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'END'
usage: run/bench/restart.sh [--sessions N] [--edges N] [--rounds N]

  --sessions N   agents at the hub (default 2000)
  --edges N      brokers around it (default 8)
  --rounds N     how often it is killed (default 3); the slowest round counts

MESH_BIN and HOP_BIN name other binaries than those that this script builds in target/release; KEEP=1 keeps the logs.
END
}

SESSIONS=2000
EDGES=8
ROUNDS=3
while [ $# -gt 0 ]; do
    case $1 in
        --sessions) SESSIONS=${2:?'--sessions needs a number'} && shift ;;
        --edges) EDGES=${2:?'--edges needs a number'} && shift ;;
        --rounds) ROUNDS=${2:?'--rounds needs a number'} && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

HOP_BIN=${HOP_BIN:-$TARGET_DIR/release/examples/hop}
if $BUILD; then (cd "$REPO" && cargo build --release --quiet --bin glocal --example hop); fi
need_binary

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-restart.XXXXXX")
CROWD=
finish() {
    [ -z "$CROWD" ] || kill "$CROWD" 2>/dev/null || true
    stop_mesh >/dev/null
    if [ "$SHORT" -ne 0 ] || [ -n "${KEEP:-}" ]; then say "logs are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT
ulimit -n "$(ulimit -H -n)"

HUB=region-hub-broker-hub
{
    printf 'fabric = "star"\noperator = "operator"\nsuperusers = []\n\n'
    printf '[[region]]\nname = "region-hub"\n\n'
    for ((n = 1; n <= EDGES; n++)); do printf '[[region]]\nname = "region-%d"\n\n' "$n"; done
    node() { printf '[[node]]\nname = "%s"\nrole = "%s"\nhosts = ["127.0.0.1"]\nlisten = "127.0.0.1"\nbroker_port = %d\nquic_port = %d\nbridge_port = %d\nops_listen = "127.0.0.1:%d"\n\n' "$1" "$2" "$3" $(($3 + 1)) "$3" $(($3 + 2)); }
    node region-hub/broker-hub global 34000
    for ((n = 1; n <= EDGES; n++)); do node "region-$n/broker-$n" region $((34000 + 10 * n)); done
    printf '[[tenant]]\nid = "tenantA"\nregions = ["region-hub"]\n\n'
    for ((n = 1; n <= EDGES; n++)); do
        printf '[[edge]]\nname = "hub-%d"\ndial = "region-%d/broker-%d"\naccept = "region-hub/broker-hub"\ntenants = ["*"]\n\n' "$n" "$n" "$n"
    done
    printf '[[agent]]\nname = "ada"\nregion = "region-hub"\ntenant = "tenantA"\n'
} >"$MESH_DIR/star.toml"
plan_with_free_ports "$MESH_DIR/star.toml" >"$MESH_DIR/fabric.toml"
make_fabric

mapfile -t NODES < <(nodes)
for node in "${NODES[@]}"; do start_node "$node"; done
for node in "${NODES[@]}"; do
    if ! await_node "$node" || ! wait_for 20 bridged "$node"; then
        SHORT=1
        die "$node does not start with its bridges"
    fi
done

mkfifo "$MESH_DIR/to-crowd" "$MESH_DIR/from-crowd"
"$HOP_BIN" --agents "$MESH_DIR/agents" crowd --who "tenantA/ada@region-hub=127.0.0.1:$(node_key $HUB broker_port)" --sessions "$SESSIONS" \
    <"$MESH_DIR/to-crowd" >"$MESH_DIR/from-crowd" 2>"$MESH_DIR/crowd.err" &
CROWD=$!
exec 8>"$MESH_DIR/to-crowd" 9<"$MESH_DIR/from-crowd"
answer() {
    local line
    IFS= read -r -t 120 line <&9 || { SHORT=1 && die "the sessions say nothing: $(cat "$MESH_DIR/crowd.err")"; }
    say "$line"
}
say "$SESSIONS sessions, $EDGES edges: $(answer)"

# Every session is there again, the publisher's own included; every edge is.
sessions_back() { metric_at_least $HUB $((SESSIONS + 1)) glocal_sessions; }
edges_back() { metric_is $HUB "$EDGES" glocal_edge_up; }

LONGEST=0
EDGES_LONGEST=0
for ((round = 1; round <= ROUNDS; round++)); do
    pid=$(cat "$(pid_file $HUB)")
    kill -KILL "$pid"
    # Until all of it has gone; the shell's word about it is expected.
    wait "$pid" 2>/dev/null || true
    began=$(now_ms)
    start_node $HUB
    # Both are looked at each time, whichever comes first.
    edges_took=
    until edges_back >/dev/null 2>&1 && sessions_back >/dev/null 2>&1; do
        [ -n "$edges_took" ] || ! edges_back >/dev/null 2>&1 || edges_took=$(($(now_ms) - began))
        [ "$(now_ms)" -lt $((began + 30000)) ] || break
        sleep 0.05
    done
    { edges_back && sessions_back; } >/dev/null || { SHORT=1 && fail "round $round: not everybody is back within 30 s" "$(metric $HUB glocal_sessions) sessions, $(metric $HUB glocal_edge_up) edges"; }
    took=$(($(now_ms) - began))
    edges_took=${edges_took:-$took}
    echo check >&8
    heard=$(answer | sed 's/[^0-9]//g')
    say "round $round: edges back after $edges_took ms, all after $took ms, $heard of $SESSIONS sessions get their message"
    [ "$heard" = "$SESSIONS" ] || SHORT=1
    if [ "$took" -gt "$LONGEST" ]; then LONGEST=$took; fi
    if [ "$edges_took" -gt "$EDGES_LONGEST" ]; then EDGES_LONGEST=$edges_took; fi
done
echo end >&8
wait "$CROWD" || true
CROWD=

goal restart.edges_back_ms "$EDGES_LONGEST" most 5000
goal restart.all_back_ms "$LONGEST" most 5000
[ "$SHORT" -eq 0 ]
