#!/usr/bin/env bash
# What a tenant feels while others flood the link it shares with them: two brokers, a link between them that a token bucket
# shapes, and 100 messages a second of one tenant beside floods of every class and size; or the same beside the brokers of
# others. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# A binary that is named is taken as it is.
BUILD=()
[ -n "${MESH_BIN:-}" ] || BUILD+=(--bin glocal)
# shellcheck source=run/lib.sh
source "$HERE/../lib.sh"
# shellcheck source=run/netns-lib.sh
source "$HERE/../netns-lib.sh"
# shellcheck source=run/bench/peers/brokers-lib.sh
source "$HERE/peers/brokers-lib.sh"
# shellcheck source=run/bench/fairness/link-lib.sh
source "$HERE/fairness/link-lib.sh"
# shellcheck source=run/bench/fairness/pair-lib.sh
source "$HERE/fairness/pair-lib.sh"
# shellcheck source=run/bench/fairness/peers-lib.sh
source "$HERE/fairness/peers-lib.sh"

usage() {
    cat <<'END_OF_USAGE'
usage: run/bench/fairness.sh [--rate MBIT] [--duration SECONDS] [--rounds N] [--case NAME]… [--via netns|proxy]
                             [--flood CLASS:BYTES:TENANTS]… | --peer NAME… [--write]

  --rate N       what the link carries, in Mbit/s; 100
  --duration S   seconds of each phase of each case; 5, and with --peer 4
  --rounds N     rounds of each case, medians are over them; 3
  --case NAME    only these, by default all of:
                   shaped    the link is shaped, and the edge is configured with its rate; not with --peer
                   measured  the link is shaped, and nobody has told the brokers
                   unshaped  as fast as this machine goes
  --via WAY      the link: 'netns', network namespaces and 'tc tbf', which needs root; or 'proxy', tbf-proxy over loopback, for
                 everybody. By default the first that can be had
  --flood F      only these floods, such as live:1024:10 for ten tenants that publish 1 KiB in live
  --peer NAME    beside the brokers of others, under the raw load of run/bench/peers.sh: nats-2.9, nats-2.15, zenoh, all, or ours
                 for this broker only; may be repeated. A peer that cannot be installed is left out by name
  --write        writes the table of --peer into docs/PERFORMANCE.md, between its two markers

examples:
  run/bench/fairness.sh                              this broker, every class and size; twenty minutes
  run/bench/fairness.sh --peer all --write           beside others; ten minutes, and twenty once to build zenohd
  run/bench/fairness.sh --via proxy --case measured --flood live:1024:1 --rounds 1

MESH_BIN, RAW_LOAD_BIN, ZENOH_LOAD_BIN and PROXY_BIN name other binaries than those that this script builds; LOAD_BIN names
another 'glocal' as the load of floods. KEEP=1 keeps logs and figures.
END_OF_USAGE
}

MBIT=100 SECONDS_EACH='' ROUNDS=3 CASES=() FLOODS=() PEERS=() WRITE=false
# How long after each phase a late message still counts.
GRACE_SECONDS=10
while [ $# -gt 0 ]; do
    case $1 in
        --rate) MBIT=${2:?'--rate needs a number'} && shift ;;
        --duration) SECONDS_EACH=${2:?'--duration needs a number'} && shift ;;
        --rounds) ROUNDS=${2:?'--rounds needs a number'} && shift ;;
        --case) CASES+=("${2:?'--case needs a name'}") && shift ;;
        --flood) FLOODS+=("${2:?'--flood needs a flood'}") && shift ;;
        --via) VIA=${2:?'--via needs a way'} && shift ;;
        --peer) PEERS+=("${2:?'--peer needs a name'}") && shift ;;
        --write) WRITE=true ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
for number in "$MBIT" "${SECONDS_EACH:-1}" "$ROUNDS"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || die "'$number' is no whole number" "see $0 --help"
done
[ -n "$SECONDS_EACH" ] || { if [ ${#PEERS[@]} -eq 0 ]; then SECONDS_EACH=5; else SECONDS_EACH=4; fi; }
if [ ${#PEERS[@]} -eq 0 ]; then
    ! $WRITE || die '--write is for --peer' "see $0 --help"
    [ ${#CASES[@]} -gt 0 ] || CASES=(shaped measured unshaped)
else
    [ ${#FLOODS[@]} -eq 0 ] || die '--flood is not for --peer' "see $0 --help"
    [ ${#CASES[@]} -gt 0 ] || CASES=(measured unshaped)
fi
for case in "${CASES[@]}"; do
    case $case in
        measured | unshaped) ;;
        shaped) [ ${#PEERS[@]} -eq 0 ] || die "'shaped' is not for --peer" 'nobody else can be told the rate of a link' ;;
        *) die "there is no case '$case'" 'one of shaped, measured, unshaped' ;;
    esac
done
for peer in "${PEERS[@]}"; do
    case $peer in
        nats-2.9 | nats-2.15 | zenoh | ours) ;;
        all) PEERS=(nats-2.9 nats-2.15 zenoh) ;;
        *) die "there is no peer '$peer'" 'one of nats-2.9, nats-2.15, zenoh, all, ours' ;;
    esac
done
[ ${#FLOODS[@]} -gt 0 ] || FLOODS=({live,ctrl,tele,bulk}:1024:{1,10} bulk:{16,65536}:1 bulk:1048576:{1,10})

link_way
[ -n "${PROXY_BIN:-}" ] || [ "$VIA" = netns ] || BUILD+=(--example tbf-proxy)
[ -n "${RAW_LOAD_BIN:-}" ] || [ ${#PEERS[@]} -eq 0 ] || BUILD+=(--example raw-load)
PROXY_BIN=${PROXY_BIN:-$TARGET_DIR/release/examples/tbf-proxy}
RAW_LOAD_BIN=${RAW_LOAD_BIN:-$TARGET_DIR/release/examples/raw-load}
ZENOH_LOAD_BIN=${ZENOH_LOAD_BIN:-$TARGET_DIR/peers/zenoh/build/release/zenoh-load}
if [ ${#BUILD[@]} -gt 0 ]; then (cd "$REPO" && cargo build --release --quiet --locked "${BUILD[@]}"); fi
need_binary
LOAD_BIN=${LOAD_BIN:-$MESH_BIN}
[ ${#PEERS[@]} -eq 0 ] || [ -x "$RAW_LOAD_BIN" ] || die "'$RAW_LOAD_BIN' is not built" 'cargo build --release --example raw-load'

FLOODERS=10
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-fairness.XXXXXX")
WORK=$MESH_DIR NODE=$MESH_DIR/nodes/region-left-broker
finish() {
    stop_mesh >/dev/null
    stop_brokers
    link_close
    if [ "$SHORT" -ne 0 ] || [ -n "${KEEP:-}" ]; then say "logs and figures are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT
trap 'exit 130' INT TERM
export GLOCAL_CONFIG_DIR=$MESH_DIR/contexts

OTHERS=()
for peer in "${PEERS[@]}"; do [ "$peer" = ours ] || OTHERS+=("$peer"); done
[ ${#OTHERS[@]} -eq 0 ] || install_peers "${OTHERS[@]}"
for line in "${LEFT_OUT[@]}"; do say "left out: $line" >&2; done

# ── Two brokers with a link between them, and who connects to them.

link_open
say "the link is made by $VIA" >&2
mapfile -t TENANTS < <(printf 'victim\n' && seq -f 'flood%g' $FLOODERS)
make_pair "${TENANTS[@]}"

# resident SIDE: kilobytes of a broker's memory.
resident() { awk '/^VmRSS:/ { print $2 }' "/proc/$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$(ready_file "region-$1-broker")")/status"; }

# field FILE PATH [median|sum|least|greatest]: of one figure of all lines of a file of reports, '-' where it is in none.
field() { python3 -c '
import json, statistics, sys
values = []
for line in open(sys.argv[1]):
    value = json.loads(line)
    for key in sys.argv[2].split("."): value = value[key]
    if value is not None: values.append(value)
how = dict(median=statistics.median, sum=sum, least=min, greatest=max)[sys.argv[3]]
print(round(how(values)) if values else "-")' "$1" "$2" "${3:-median}"; }

# left_for CLASS BYTES: 95 % of what a flood of such payloads can get of the link, in kbit/s: it is shared with the victim, and each
# packet of 1494 bytes has 76 of QUIC, UDP, IP and Ethernet. A frame between brokers has 57 bytes before its name (16 of prefix, 8
# of sequence, 33 of targets, origin, life and sender), 18 more where it is acknowledged end to end (step and life of the target);
# the names of the floods have 30, that of the victim has 29.
left_for() {
    awk -v mbit="$MBIT" -v class="$1" -v bytes="$2" 'BEGIN {
        head = 57 + 30 + (class == "ctrl" || class == "bulk" ? 18 : 0)
        printf "%d", 0.95 * (mbit * 1000 * 1418 / 1494 - 100 * (256 + 57 + 29) * 8 / 1000) * bytes / (bytes + head)
    }'
}

# measure CASE CLASS SIZE TENANTS
measure() {
    local name=$1-$2-$3B-x$4 reports before after floods=() n
    reports=$MESH_DIR/$name.json
    for ((n = 1; n <= $4; n++)); do floods+=(--flood "flood$n-left:flood$n-right"); done
    before=$(resident left)
    for ((n = 0; n < ROUNDS; n++)); do
        in_place load "$LOAD_BIN" bench flood-and-victim --context victim-left --to victim-right "${floods[@]}" --duration "$SECONDS_EACH" \
            --grace 3 --flood-class "$2" --flood-size "$3" --json >>"$reports" 2>>"$MESH_DIR/bench.err" || die "$name: $(tail -n 3 "$MESH_DIR/bench.err")"
    done
    after=$(resident left)
    local alone beside lost flood
    alone=$(field "$reports" alone.p99_us) beside=$(field "$reports" beside.p99_us)
    lost=$(($(field "$reports" alone.lost sum) + $(field "$reports" beside.lost sum)))
    flood=$(field "$reports" flood.delivered_bytes_per_s)
    printf '%-9s %-5s %8s %3s  %9s %9s  %5s  %8s  %8s\n' "$1" "$2" "$3" "$4" "$alone" "$beside" "$lost" "$((flood * 8 / 1000000))" "$(((after - before) / 1024))"
    local bound=$((3 * alone > 3000 ? 3 * alone : 3000))
    [ "$1" != measured ] || bound=43000
    {
        goal "$name.p99_us" "$beside" most "$bound"
        goal "$name.lost" "$lost" most 0
        goal "$name.grown_kib" $((after - before)) most 32768
        [ "$1" = unshaped ] || [ "$3" -lt 1024 ] || goal "$name.flood_kbit" $((flood * 8 / 1000)) least "$(left_for "$2" "$3")"
    } >>"$MESH_DIR/goals"
}

# Every case and flood of this broker.
floods_run() {
    local case flood class size tenants
    printf '%-9s %-5s %8s %3s  %9s %9s  %5s  %8s  %8s\n' case class size by 'p99 alone' 'p99 us' lost Mbit/s 'grown MiB'
    for case in "${CASES[@]}"; do
        case $case in
            shaped) shape on && start "$MBIT Mbit/s" ;;
            measured) shape on && start '' ;;
            unshaped) shape off && start '' ;;
        esac
        for flood in "${FLOODS[@]}"; do
            IFS=: read -r class size tenants <<<"$flood"
            measure "$case" "$class" "$size" "$tenants"
        done
        stop_mesh >/dev/null
        link_rest
    done
}

# The table of peers, into the document.
write() {
    {
        printf 'Medians of %s rounds of %s s (least–greatest), brokers in turns, each started afresh for each round; the link is made by %s, TCP keeps\n' \
            "$ROUNDS" "$SECONDS_EACH" "$(if [ "$VIA" = netns ]; then printf 'tc tbf'; else printf 'tbf-proxy'; fi)"
        printf 'to its pace by %s, the machine had a load of %s before.\n\n' "$(cat /proc/sys/net/ipv4/tcp_congestion_control 2>/dev/null || printf '?')" "$BUSY"
        cat "$MESH_DIR/table"
        printf '\n'
    } >"$MESH_DIR/found"
    into_document fairness "$MESH_DIR/found"
}

# What else the machine does, before this script adds to it.
BUSY=$(cut -d ' ' -f 1 /proc/loadavg)
: >"$MESH_DIR/goals"
if [ ${#PEERS[@]} -eq 0 ]; then floods_run; else peers_run "${PRESENT[@]}"; fi
! $WRITE || write
cat "$MESH_DIR/goals"
[ "$SHORT" -eq 0 ]
