#!/usr/bin/env bash
# What tenants cost that do nothing: a broker whose bundle has a hundred thousand of them starts, and one with a thousand, and
# both carry the same messages. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# Binaries that are named are taken as they are.
BUILD=true
[ -z "${MESH_BIN:-}" ] || [ -z "${RAW_LOAD_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'END'
usage: run/bench/tenants.sh [--tenants N] [--rounds N] [--messages N]

  --tenants N    tenants in the bundle (default 100000), beside a bundle with a thousand
  --rounds N     starts of each, in turns (default 5); medians count
  --messages N   messages of 256 B in each round (default 300000)

MESH_BIN and RAW_LOAD_BIN name other binaries than those that this script builds in target/release; KEEP=1 keeps the logs.
END
}

TENANTS=100000
FEW=1000
ROUNDS=5
MESSAGES=300000
while [ $# -gt 0 ]; do
    case $1 in
        --tenants) TENANTS=${2:?'--tenants needs a number'} && shift ;;
        --rounds) ROUNDS=${2:?'--rounds needs a number'} && shift ;;
        --messages) MESSAGES=${2:?'--messages needs a number'} && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ "$TENANTS" -gt "$FEW" ] || die "--tenants is above $FEW"

RAW_LOAD_BIN=${RAW_LOAD_BIN:-$TARGET_DIR/release/examples/raw-load}
if $BUILD; then (cd "$REPO" && cargo build --release --quiet --bin glocal --example raw-load); fi
need_binary
[ -x "$RAW_LOAD_BIN" ] || die "'$RAW_LOAD_BIN' is not built" "cargo build --release --example raw-load"

BASE=$(mktemp -d "${TMPDIR:-/tmp}/glocal-tenants.XXXXXX")
NODE="region-a-broker-a"
finish() {
    for MESH_DIR in "$BASE"/*/; do stop_mesh >/dev/null; done
    if [ "$SHORT" -ne 0 ] || [ -n "${KEEP:-}" ]; then say "logs are kept in $BASE"; else rm -rf "$BASE"; fi
}
trap finish EXIT

# plan COUNT: two brokers with an edge that may carry everybody; the other broker is never started.
plan() {
    printf 'fabric = "many"\noperator = "operator"\nsuperusers = []\n\n'
    local region
    for region in a b; do
        printf '[[region]]\nname = "region-%s"\n\n[[node]]\nname = "region-%s/broker-%s"\nrole = "region"\n' $region $region $region
        printf 'hosts = ["127.0.0.1"]\nlisten = "127.0.0.1"\nbroker_port = 34000\nquic_port = 34001\nbridge_port = 34000\n'
        printf 'ops_listen = "127.0.0.1:34002"\n\n'
    done
    printf '[[edge]]\nname = "a-b"\ndial = "region-a/broker-a"\naccept = "region-b/broker-b"\ntenants = ["*"]\n\n'
    awk -v count="$1" 'BEGIN {
        for (n = 0; n < count; n++) printf "[[tenant]]\nid = \"tenant%06d\"\nregions = [\"region-a\"]\n\n", n
    }'
    printf '[[agent]]\nname = "ada"\nregion = "region-a"\ntenant = "tenant000500"\n'
}

for count in "$FEW" "$TENANTS"; do
    MESH_DIR=$BASE/$count
    mkdir -p "$MESH_DIR"
    plan "$count" >"$MESH_DIR/plan.toml"
    plan_with_free_ports "$MESH_DIR/plan.toml" >"$MESH_DIR/fabric.toml"
    began=$(now_ms)
    make_fabric
    say "$count tenants: plan applied in $(($(now_ms) - began)) ms"
done

# Memory of a node, in bytes, when it has not changed for a while.
resident() { awk '/^VmRSS:/ { printf "%d\n", $2 * 1024 }' "/proc/$1/status"; }
settled() {
    local before=$SEEN
    SEEN=$(resident "$1")
    [ "$SEEN" = "$before" ]
}

# round COUNT: one start; how long it took, what it holds, and what a million messages cost go to files.
round() {
    local count=$1 began pid
    MESH_DIR=$BASE/$count
    began=$(now_ms)
    start_node $NODE
    await_node $NODE || die "$NODE does not start with $count tenants"
    echo "$(($(now_ms) - began))" >>"$BASE/$count.start"
    pid=$(cat "$(pid_file $NODE)")
    # What else the machine does is not in this one.
    cat "/proc/$pid"/task/*/schedstat | awk '{ nanos += $1 } END { printf "%d\n", nanos / 1000000 }' >>"$BASE/$count.start_cpu"
    SEEN=0
    wait_for 20 settled "$pid" || say "its memory still changes"
    resident "$pid" >>"$BASE/$count.bytes"
    local agent=$MESH_DIR/agents/tenant000500
    "$RAW_LOAD_BIN" pair --protocol native --server "127.0.0.1:$(node_key $NODE broker_port)" --broker "broker=$pid" \
        --cert "$agent/ada@region-a.pem" --key "$agent/ada@region-a.key" \
        --size 256 --count "$MESSAGES" >"$MESH_DIR/pair.json" || die "the load has failed"
    sed -n 's/.*"broker_cpu_s_per_million":\([0-9.]*\).*/\1/p' "$MESH_DIR/pair.json" >>"$BASE/$count.cpu"
    stop_node $NODE >/dev/null
}

for ((n = 0; n < ROUNDS; n++)); do
    round "$FEW"
    round "$TENANTS"
done
for count in "$FEW" "$TENANTS"; do
    say "$count tenants: ready after $(median <"$BASE/$count.start") ms, of which $(median <"$BASE/$count.start_cpu") ms of CPU;" \
        "$(median <"$BASE/$count.bytes") bytes, $(median <"$BASE/$count.cpu") CPU s a million messages"
done

start=$(median <"$BASE/$TENANTS.start")
each=$(awk -v a="$(median <"$BASE/$TENANTS.bytes")" -v b="$(median <"$BASE/$FEW.bytes")" -v n="$((TENANTS - FEW))" 'BEGIN { printf "%.0f", (a - b) / n }')
ratio=$(awk -v a="$(median <"$BASE/$TENANTS.cpu")" -v b="$(median <"$BASE/$FEW.cpu")" 'BEGIN { printf "%.2f", a / b }')
goal tenants.start_ms "$start" most 2000
goal tenants.idle_bytes "$each" most 4096
# What instructions say of it exactly is in smoke.sh; CPU is disturbed by whatever else the machine does.
goal tenants.message_cpu_ratio "$ratio" most 1.1
[ "$SHORT" -eq 0 ]
