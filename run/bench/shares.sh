#!/usr/bin/env bash
# Whether tenants that flood get their shares of a real link: two brokers, a link between them that a token bucket shapes, an
# edge configured with its rate, and tenants of several weights that all publish more than it carries, for ten seconds each.
# Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# A binary that is named is taken as it is.
BUILD=()
[ -n "${MESH_BIN:-}" ] || BUILD+=(--bin glocal)
# shellcheck source=run/lib.sh
source "$HERE/../lib.sh"
# shellcheck source=run/netns-lib.sh
source "$HERE/../netns-lib.sh"
# shellcheck source=run/bench/fairness/link-lib.sh
source "$HERE/fairness/link-lib.sh"
# shellcheck source=run/bench/fairness/pair-lib.sh
source "$HERE/fairness/pair-lib.sh"

usage() {
    cat <<'END_OF_USAGE'
usage: run/bench/shares.sh [--rate MBIT] [--many-rate MBIT] [--tenants N] [--case NAME]… [--via netns|proxy]

  --rate N         what the link carries, in Mbit/s; 100. The link has to be scarcer than processors: less on a slow machine
  --many-rate N    the same in the case 'many', whose load needs most of two processors at 100 Mbit/s; 30
  --tenants N      of the case 'many'; 300
  --case NAME      only these, by default all of:
                     16 1024 65536 1048576   three tenants of weights 1:2:4, all with payloads of so many bytes, within 2 %
                     mixed   weight 1 has 64 KiB, 2 has 1 KiB, 4 has 16 B, and the other way round; within 2 %
                     return  weight 1 floods, is idle for seconds, and comes back: ten seconds from then, within 2 %
                     many    tenants of equal weights, 1 KiB each, within 5 %
  --via WAY        the link: 'netns', network namespaces and 'tc tbf', which needs root; or 'proxy', tbf-proxy over loopback,
                   for everybody. By default the first that can be had

examples:
  run/bench/shares.sh                              everything; three minutes
  run/bench/shares.sh --case many --tenants 100
  run/bench/shares.sh --via proxy --case 1024 --rate 50

MESH_BIN and PROXY_BIN name other binaries than those that this script builds. KEEP=1 keeps logs and figures.
END_OF_USAGE
}

MBIT=100 MANY_MBIT=30 MANY=300 CASES=()
while [ $# -gt 0 ]; do
    case $1 in
        --rate) MBIT=${2:?'--rate needs a number'} && shift ;;
        --many-rate) MANY_MBIT=${2:?'--many-rate needs a number'} && shift ;;
        --tenants) MANY=${2:?'--tenants needs a number'} && shift ;;
        --case) CASES+=("${2:?'--case needs a name'}") && shift ;;
        --via) VIA=${2:?'--via needs a way'} && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
for number in "$MBIT" "$MANY_MBIT" "$MANY"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || die "'$number' is no whole number" "see $0 --help"
done
[ ${#CASES[@]} -gt 0 ] || CASES=(16 1024 65536 1048576 mixed return many)
for case in "${CASES[@]}"; do
    case $case in
        16 | 1024 | 65536 | 1048576 | mixed | return | many) ;;
        *) die "there is no case '$case'" 'one of 16, 1024, 65536, 1048576, mixed, return, many' ;;
    esac
done

link_way
[ -n "${PROXY_BIN:-}" ] || [ "$VIA" = netns ] || BUILD+=(--example tbf-proxy)
PROXY_BIN=${PROXY_BIN:-$TARGET_DIR/release/examples/tbf-proxy}
if [ ${#BUILD[@]} -gt 0 ]; then (cd "$REPO" && cargo build --release --quiet --locked "${BUILD[@]}"); fi
need_binary
need_tool python3
# A broker has a socket for each client.
FILES=$((4 * MANY + 1024))
[ "$(ulimit -n)" -ge $FILES ] || ulimit -n $FILES || die "$MANY tenants need $FILES open files" 'ulimit -n, or fewer --tenants'

# How long the counting takes, and how long a flood lasts that surrounds it.
WINDOW_SECONDS=10
FLOOD_SECONDS=18
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-shares.XXXXXX")
LOADS=() COSTS=()
EDGES=("$MESH_BIN" edges --state-dir "$MESH_DIR/nodes/region-left-broker/state" --json)
finish() {
    end_loads
    stop_mesh >/dev/null
    link_close
    if [ "$SHORT" -ne 0 ] || [ -n "${KEEP:-}" ]; then say "logs and figures are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM
export GLOCAL_CONFIG_DIR=$MESH_DIR/contexts

link_open
say "the link is made by $VIA" >&2
WEIGHTED=(one:1 two:2 four:4)
mapfile -t EQUAL < <(if [[ " ${CASES[*]} " = *' many '* ]]; then seq -f 'equal%g:1' "$MANY"; fi)
make_pair victim "${WEIGHTED[@]}" "${EQUAL[@]}"

# ── Loads, each a process in the background.

end_loads() {
    end_children "${LOADS[@]}"
    LOADS=()
}

# load SECONDS COMMAND…: begins after so many seconds.
load() {
    local after=$1
    shift
    {
        sleep "$after"
        exec_in load "$MESH_BIN" bench "$@"
    } >>"$MESH_DIR/bench.out" 2>>"$MESH_DIR/bench.err" </dev/null &
    LOADS+=("$!")
}

# listen TENANT
listen() {
    rm -f "$MESH_DIR/$1.ready"
    load 0 sub --context "$1-right" --duration 120 --ready-file "$MESH_DIR/$1.ready" --json
    wait_for 10 test -s "$MESH_DIR/$1.ready" || die "$1 does not listen: $(tail -n 3 "$MESH_DIR/bench.err")"
}

# flood TENANT BYTES [SECONDS [AFTER]]: as fast as the broker takes it.
flood() { load "${4:-0}" pub --context "$1-left" --size "$2" --duration "${3:-$FLOOD_SECONDS}" --class live --threads 1 --json; }

# ── Cases.

# Ends loads and brokers.
rest() {
    end_loads
    stop_mesh >/dev/null
    link_rest
}

# watch NAME [--returns TENANT] TENANT:WEIGHT[:COST]…: counts, and prints a row.
watch() {
    local name=$1 returns=()
    shift
    [ "$1" != --returns ] || { returns=("$1" "$2") && shift 2; }
    in_place load python3 "$HERE/fairness/shares.py" --far "$(node_key region-right-broker ops_listen)" --edges "${EDGES[*]@Q}" \
        --seconds $WINDOW_SECONDS "${returns[@]}" "$@" >"$MESH_DIR/$name.json" ||
        die "$name: nothing was measured" "$(tail -n 3 "$MESH_DIR/bench.err")"
    printf '%-14s %6s  %10.0f  %9s  %12s\n' "$name" "$MBIT" "$(figure "$name" messages_per_s)" \
        "$(figure "$name" deviation_percent)" "$(figure "$name" least_queued_bytes)"
}

# figure NAME KEY: of what was counted.
figure() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$MESH_DIR/$1.json" "$2"; }

# judge NAME BOUND: everybody has a share within so many percent, and had something waiting all along.
judge() {
    goal "shares-$1.deviation_percent" "$(figure "$1" deviation_percent)" most "$2" >>"$MESH_DIR/goals"
    goal "shares-$1.empty_lanes" "$(figure "$1" empty)" most 0 >>"$MESH_DIR/goals"
}

# three NAME BYTES BYTES BYTES [COST COST COST]: the floods of weights 1, 2 and 4, by bytes of their payloads.
three() {
    local name=$1 sizes=("$2" "$3" "$4") costs=("${@:5}") n tenants=()
    for n in 0 1 2; do
        tenants+=("${WEIGHTED[n]}${costs[n]:+:${costs[n]}}")
        listen "${WEIGHTED[n]%:*}"
    done
    for n in 0 1 2; do flood "${WEIGHTED[n]%:*}" "${sizes[n]}"; done
    watch "$name" "${tenants[@]}"
    end_loads
}

# known TENANT: whether what it publishes is for the other broker, so that a message that is published now waits for the edge.
known() {
    in_place load "$MESH_BIN" bench pub --context "$1-left" -n 1 --size 16 && metric_at_least region-left-broker 1 glocal_relayed_out_total "tenant=$1"
}

# What messages of the three sizes are charged with, into COSTS: many of each wait for an edge that carries next to nothing.
weigh() {
    local -A size=([one]=16 [two]=1024 [four]=65536) count=([one]=20000 [two]=2000 [four]=60)
    local tenant
    start '64 kbit/s'
    for tenant in one two four; do
        listen "$tenant"
        wait_for 20 known "$tenant" || die "nobody at the left knows that $tenant listens at the right"
    done
    for tenant in one two four; do
        in_place load "$MESH_BIN" bench pub --context "$tenant-left" -n "${count[$tenant]}" --size "${size[$tenant]}" >>"$MESH_DIR/bench.out" 2>&1
    done
    COSTS=()
    for tenant in one two four; do
        COSTS+=("$(awk -v bytes="$(queued "$tenant")" -v out="$(metric region-left-broker glocal_relayed_out_total "tenant=$tenant")" \
            -v in_="$(metric region-right-broker glocal_relayed_in_total "tenant=$tenant")" 'BEGIN { printf "%.1f", bytes / (out - in_) }')")
    done
    rest
    say "messages of 16 B, 1 KiB and 64 KiB are charged with ${COSTS[*]} B"
}

# queued TENANT: bytes that wait for the edge.
queued() { "${EDGES[@]}" | python3 -c '
import json, sys
print(sum(lane["bytes"] for edge in json.load(sys.stdin)["edges"] for lane in edge["lanes"] if lane["tenant"] == sys.argv[1]))' "$1"; }

mixed() {
    local name
    weigh
    start "$MBIT Mbit/s"
    three mixed 65536 1024 16 "${COSTS[2]}" "${COSTS[1]}" "${COSTS[0]}"
    three mixed-reversed 16 1024 65536 "${COSTS[@]}"
    for name in mixed mixed-reversed; do judge "$name" 2; done
}

# The first one floods, what it has left drains while it is idle, and it comes back.
return_() {
    local tenant
    for tenant in one two four; do listen "$tenant"; done
    for tenant in two four; do flood "$tenant" 1024 60; done
    flood one 1024 4
    wait "${LOADS[-1]}"
    flood one 1024 $FLOOD_SECONDS 12
    watch return --returns one "${WEIGHTED[@]}"
    judge return 2
    goal shares-return.first_second_percent "$(figure return first_second_percent)" most 2 >>"$MESH_DIR/goals"
}

# One process floods for all, beside a trickle of the victim's; its first phase has the trickle alone.
many() {
    local tenant floods=()
    for tenant in "${EQUAL[@]%:*}"; do floods+=(--flood "$tenant-left:$tenant-right"); done
    load 0 flood-and-victim --context victim-left --to victim-right "${floods[@]}" --flood-size 1024 --duration $FLOOD_SECONDS --grace 1 --json
    watch many "${EQUAL[@]}"
    judge many 5
}

: >"$MESH_DIR/goals"
RATE=$MBIT
printf '%-14s %6s  %10s  %9s  %12s\n' case Mbit/s messages/s '% off' 'least queued'
for case in "${CASES[@]}"; do
    MBIT=$RATE
    [ "$case" != many ] || MBIT=$MANY_MBIT
    shape on
    [ "$case" = mixed ] || start "$MBIT Mbit/s"
    case $case in
        mixed | many) "$case" ;;
        return) return_ ;;
        *)
            three "${case}B" "$case" "$case" "$case"
            judge "${case}B" 2
            ;;
    esac
    rest
done
cat "$MESH_DIR/goals"
[ "$SHORT" -eq 0 ]
