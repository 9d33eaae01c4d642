#!/usr/bin/env bash
# What a message costs on the NATS edge: the same raw load, one publisher and one subscriber over mutual TLS, against
# this broker and nats-server in turns. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# Binaries that are named are taken as they are.
BUILD=true
[ -z "${MESH_BIN:-}" ] || [ -z "${RAW_LOAD_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source=run/bench/peers/brokers-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/peers/brokers-lib.sh"

usage() {
    cat <<'END'
usage: run/bench/nats-edge.sh [--rounds N] [--count N] [--size BYTES]…

  --rounds N   rounds of each broker per size, medians are over them; 5
  --count N    messages of each round; 400000
  --size N     payload in bytes, may be repeated; 16, 256 and 1024

nats-server is the machine's, or what tests/clients/install.sh has unpacked; NATS_SERVER names another. MESH_BIN and
RAW_LOAD_BIN name other binaries than those that this script builds in target/release. Where there are two processors,
the broker has the first and the load the second.
END
}

ROUNDS=5 COUNT=400000 SIZES=()
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) ROUNDS=$2 && shift ;;
        --count) COUNT=$2 && shift ;;
        --size) SIZES+=("$2") && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ ${#SIZES[@]} -gt 0 ] || SIZES=(16 256 1024)

RAW_LOAD_BIN=${RAW_LOAD_BIN:-$TARGET_DIR/release/examples/raw-load}
if $BUILD; then (cd "$REPO" && cargo build --release --quiet --bin glocal --example raw-load); fi
need_binary
[ -x "$RAW_LOAD_BIN" ] || die "'$RAW_LOAD_BIN' is not built" "cargo build --release --example raw-load"
NATS_SERVER=${NATS_SERVER:-$(PATH=$REPO/tests/clients/.nats-server/usr/sbin:$PATH:/usr/sbin command -v nats-server || true)}
if [ -z "$NATS_SERVER" ]; then
    "$REPO/tests/clients/install.sh" nats-server >/dev/null
    NATS_SERVER=$(PATH=$REPO/tests/clients/.nats-server/usr/sbin:$PATH:/usr/sbin command -v nats-server)
fi

WORK=$(mktemp -d "${TMPDIR:-/tmp}/glocal-nats-bench.XXXXXX")
finish() {
    stop_brokers
    rm -rf "$WORK"
}
trap finish EXIT

"$MESH_BIN" fabric apply "$REPO/mesh-configs/single.fabric.toml" --out "$WORK" >"$WORK/apply.log"
NODE=$WORK/nodes/region-a-broker
start_glocal glocal-nats
PROGRAM[nats]=$NATS_SERVER
start_nats nats

load() {
    (on 1 "$RAW_LOAD_BIN" pair --protocol nats --server "$1" --broker "broker=$2" --cert "$WORK/agents/tenantA/alice@region-a.pem" \
        --key "$WORK/agents/tenantA/alice@region-a.key" --size "$3" --count "$4")
}
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }

load "${AT[glocal-nats]}" "${PID[glocal-nats]}" 256 50000 >/dev/null
load "${AT[nats]}" "${PID[nats]}" 256 50000 >/dev/null
say "$("$MESH_BIN" --version) against $("$NATS_SERVER" --version), $ROUNDS rounds of $COUNT messages, medians"
printf '%6s  %14s %14s %7s   %14s %14s %7s\n' size 'glocal msg/s' 'nats msg/s' ratio 'glocal CPU s/M' 'nats CPU s/M' ratio
for size in "${SIZES[@]}"; do
    for _ in $(seq "$ROUNDS"); do
        load "${AT[glocal-nats]}" "${PID[glocal-nats]}" "$size" "$COUNT" >>"$WORK/glocal.$size"
        load "${AT[nats]}" "${PID[nats]}" "$size" "$COUNT" >>"$WORK/nats.$size"
    done
    ours=$(field per_s <"$WORK/glocal.$size" | median)
    theirs=$(field per_s <"$WORK/nats.$size" | median)
    our_cpu=$(field broker_cpu_s_per_million <"$WORK/glocal.$size" | median)
    their_cpu=$(field broker_cpu_s_per_million <"$WORK/nats.$size" | median)
    awk -v s="$size" -v a="$ours" -v b="$theirs" -v c="$our_cpu" -v d="$their_cpu" 'BEGIN {
        printf "%6d  %14d %14d %6.2fx   %14.3f %14.3f %6.2fx\n", s, a, b, a / b, c, d, c / d
    }'
    goal "nats.cpu_ratio_${size}B" "$(awk -v c="$our_cpu" -v d="$their_cpu" 'BEGIN { printf "%.3f", c / d }')" most 1 >>"$WORK/goals"
done
cat "$WORK/goals"
[ "$SHORT" -eq 0 ]
