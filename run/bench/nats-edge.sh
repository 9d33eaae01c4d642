#!/usr/bin/env bash
# What a message costs on the NATS edge: the same raw load, one publisher and one subscriber over mutual TLS, against
# this broker and nats-server in turns. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# Binaries that are named are taken as they are.
BUILD=true
[ -z "${MESH_BIN:-}" ] || [ -z "${RAW_LOAD_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

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
PIDS=()
finish() {
    local pid
    for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${PIDS[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$WORK"
}
trap finish EXIT

on() { local cpu=$1 && shift; if [ "$(nproc)" -ge 2 ] && command -v taskset >/dev/null; then exec taskset -c "$cpu" "$@"; else exec "$@"; fi; }

"$MESH_BIN" fabric apply "$REPO/mesh-configs/single.fabric.toml" --out "$WORK" >"$WORK/apply.log"
NODE=$WORK/nodes/region-a-broker
(on 0 "$MESH_BIN" run -c "$NODE/node.toml" -D broker_port=0 -D quic_port=0 -D bridge_port=0 -D ops_listen=off \
    -D nats_port=0 -D runtime_threads=1 -D ready_file="$WORK/ready.json") 2>"$WORK/glocal.log" &
PIDS+=("$!")
wait_for 10 test -s "$WORK/ready.json" || die "the broker did not start: $(tail -n 3 "$WORK/glocal.log")"
GLOCAL_AT=$(sed -n 's/.*"nats": "\([^"]*\)".*/\1/p' "$WORK/ready.json")
GLOCAL_PID=$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$WORK/ready.json")

NATS_PORT=$(free_ports 1)
cat >"$WORK/nats.conf" <<END
listen: "127.0.0.1:$NATS_PORT"
tls { cert_file: "$NODE/node.pem", key_file: "$NODE/node.key", ca_file: "$NODE/root.pem", verify: true }
END
(on 0 "$NATS_SERVER" -c "$WORK/nats.conf") 2>"$WORK/nats.log" &
PIDS+=("$!")
NATS_PID=$!
wait_for 10 grep -q 'Server is ready' "$WORK/nats.log" || die "nats-server did not start: $(tail -n 3 "$WORK/nats.log")"

load() {
    (on 1 "$RAW_LOAD_BIN" pair --protocol nats --server "$1" --broker "broker=$2" --cert "$WORK/agents/tenantA/alice@region-a.pem" \
        --key "$WORK/agents/tenantA/alice@region-a.key" --size "$3" --count "$4")
}
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"; }
median() { sort -n | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

load "$GLOCAL_AT" "$GLOCAL_PID" 256 50000 >/dev/null
load "127.0.0.1:$NATS_PORT" "$NATS_PID" 256 50000 >/dev/null
say "$("$MESH_BIN" --version) against $("$NATS_SERVER" --version), $ROUNDS rounds of $COUNT messages, medians"
printf '%6s  %14s %14s %7s   %14s %14s %7s\n' size 'glocal msg/s' 'nats msg/s' ratio 'glocal CPU s/M' 'nats CPU s/M' ratio
SHORT=0
for size in "${SIZES[@]}"; do
    for _ in $(seq "$ROUNDS"); do
        load "$GLOCAL_AT" "$GLOCAL_PID" "$size" "$COUNT" >>"$WORK/glocal.$size"
        load "127.0.0.1:$NATS_PORT" "$NATS_PID" "$size" "$COUNT" >>"$WORK/nats.$size"
    done
    ours=$(field per_s <"$WORK/glocal.$size" | median)
    theirs=$(field per_s <"$WORK/nats.$size" | median)
    our_cpu=$(field broker_cpu_s_per_million <"$WORK/glocal.$size" | median)
    their_cpu=$(field broker_cpu_s_per_million <"$WORK/nats.$size" | median)
    awk -v s="$size" -v a="$ours" -v b="$theirs" -v c="$our_cpu" -v d="$their_cpu" -v goals="$WORK/goals" 'BEGIN {
        printf "%6d  %14d %14d %6.2fx   %14.3f %14.3f %6.2fx\n", s, a, b, a / b, c, d, c / d
        printf "goal nats.cpu_ratio_%dB %.3f 1 %s\n", s, c / d, (c <= d) ? "ok" : "short" >>goals
    }'
done
cat "$WORK/goals"
if grep -q ' short$' "$WORK/goals"; then SHORT=1; fi
[ "$SHORT" -eq 0 ]
