#!/usr/bin/env bash
# What a bridge costs: request/reply on one node and over one bridge in turns, then 100 000 messages of 256 B at 20 000/s
# over two hops, each accounted for. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# Binaries that are named are taken as they are.
BUILD=true
[ -z "${MESH_BIN:-}" ] || [ -z "${HOP_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'END'
usage: run/bench/hop.sh [--pair]

  --pair   besides, as much as goes through from one publisher to one subscriber, on one node and over two hops;
           takes a minute more and has no goals

MESH_BIN and HOP_BIN name other binaries than those that this script builds in target/release; KEEP=1 keeps the logs.
END
}

PAIR=false
while [ $# -gt 0 ]; do
    case $1 in
        --pair) PAIR=true ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

HOP_BIN=${HOP_BIN:-$TARGET_DIR/release/examples/hop}
if $BUILD; then (cd "$REPO" && cargo build --release --quiet --bin glocal --example hop); fi
need_binary
[ -x "$HOP_BIN" ] || die "'$HOP_BIN' is not built" "cargo build --release --example hop"

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-bench.XXXXXX")
finish() {
    stop_mesh >/dev/null
    if [ "$SHORT" -ne 0 ] || [ -n "${KEEP:-}" ]; then say "logs are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

GLOBAL=global-broker-g
A=region-a-broker-a
B=region-b-broker-b
"$REPO/run/mesh-up.sh" two-region --dir "$MESH_DIR" --dynamic >"$MESH_DIR.up" 2>&1 || {
    SHORT=1
    cat "$MESH_DIR.up" >&2
    die "the mesh did not come up"
}
mv "$MESH_DIR.up" "$MESH_DIR/up.log"

address() { printf '%s:%s' "$(node_key "$1" listen_address)" "$(node_key "$1" broker_port)"; }

hop() {
    local status=0
    "$HOP_BIN" --agents "$MESH_DIR/agents" --broker "region-a=$(cat "$(pid_file $A)")" \
        --broker "global=$(cat "$(pid_file $GLOBAL)")" --broker "region-b=$(cat "$(pid_file $B)")" "$@" \
        >"$MESH_DIR/hop.out" || status=$?
    # Goals come last, after all figures.
    grep '^goal ' "$MESH_DIR/hop.out" >>"$MESH_DIR/goals" || true
    grep -v '^goal ' "$MESH_DIR/hop.out" || true
    [ "$status" -eq 0 ] || SHORT=1
}

AT_A=$(address $A)
AT_GLOBAL=$(address $GLOBAL)
AT_B=$(address $B)
ALICE=tenantA/alice@region-a
ANNA=tenantA/anna@region-b

hop latency --requester "$ALICE=$AT_A" --near "$ALICE=$AT_A" --far "$ALICE=$AT_GLOBAL"
hop stream --publisher "$ALICE=$AT_A" --subscriber "$ANNA=$AT_B"
# Counters that were not read would be zero as well: what passed through each broker has to be in them.
for seen in "$A glocal_relayed_out_total" "$GLOBAL glocal_relayed_in_total" "$B glocal_delivered_total"; do
    read -r node name <<<"$seen"
    counted=$(metric "$node" "$name" tenant=tenantA class=live)
    [ "$counted" -ge 100000 ] || die "$node counts $counted as $name, which cannot be"
done
for node in $GLOBAL $A $B; do
    goal "stream.dropped_by_$node" "$(metric "$node" glocal_dropped_total)" most 0 >>"$MESH_DIR/goals"
done
if $PAIR; then
    say "on one node:"
    hop pair --publisher "$ALICE=$AT_A" --subscriber "$ALICE=$AT_A" --size 16 --size 256 --size 1024
    say "over two hops:"
    hop pair --publisher "$ALICE=$AT_A" --subscriber "$ANNA=$AT_B" --size 16 --size 256 --size 1024
fi

cat "$MESH_DIR/goals"
[ "$SHORT" -eq 0 ]
