#!/usr/bin/env bash
# What a tenant feels while others flood the link it shares with them: two brokers in network namespaces of their own, a link
# between them that `tc tbf` shapes, and 100 messages a second of one tenant beside floods of every class and size. Ends with
# lines "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# A binary that is named is taken as it is.
BUILD=true
[ -z "${MESH_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source=run/netns-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../netns-lib.sh"

usage() {
    cat <<'END_OF_USAGE'
usage: run/bench/fairness.sh [--rate MBIT] [--duration SECONDS] [--rounds N] [--case NAME]… [--flood CLASS:BYTES:TENANTS]…

  --rate N       what the link carries, in Mbit/s; 100
  --duration S   seconds of each phase of each case; 5
  --rounds N     rounds of each case, medians are over them; 3
  --case NAME    only these, by default all of:
                   shaped    the link is shaped, and the edge is configured with its rate
                   measured  the link is shaped, and nobody has told the brokers
                   unshaped  as fast as this machine goes
  --flood F      only these floods, such as live:1024:10 for ten tenants that publish 1 KiB in live

MESH_BIN names other brokers than the one that this script builds in target/release, LOAD_BIN another load; KEEP=1 keeps the logs.
END_OF_USAGE
}

MBIT=100 SECONDS_EACH=5 ROUNDS=3 CASES=() FLOODS=()
while [ $# -gt 0 ]; do
    case $1 in
        --rate) MBIT=${2:?'--rate needs a number'} && shift ;;
        --duration) SECONDS_EACH=${2:?'--duration needs a number'} && shift ;;
        --rounds) ROUNDS=${2:?'--rounds needs a number'} && shift ;;
        --case) CASES+=("${2:?'--case needs a name'}") && shift ;;
        --flood) FLOODS+=("${2:?'--flood needs a flood'}") && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[ ${#CASES[@]} -gt 0 ] || CASES=(shaped measured unshaped)
[ ${#FLOODS[@]} -gt 0 ] || FLOODS=({live,ctrl,tele,bulk}:1024:1 bulk:16:1 bulk:65536:1 bulk:1048576:1 live:1024:10)

if $BUILD; then (cd "$REPO" && cargo build --release --quiet --locked --bin glocal); fi
need_binary
LOAD_BIN=${LOAD_BIN:-$MESH_BIN}
need_netns
command -v tc >/dev/null || die "'tc' is missing" 'apt-get install iproute2'

FLOODERS=10
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-fairness.XXXXXX")
finish() {
    stop_mesh >/dev/null
    netns_clean
    if [ "$SHORT" -ne 0 ] || [ -n "${KEEP:-}" ]; then say "logs and figures are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT
export GLOCAL_CONFIG_DIR=$MESH_DIR/contexts

# ── Two brokers, a link between them, and a third place that reaches both without it.

for name in left right load; do netns_add "$name"; done
netns_join left right shared 10.76.0
netns_join load left to-left 10.76.1
netns_join load right to-right 10.76.2
HTTP_VIA=(in_netns load)

node() {
    printf '[[node]]\nname = "region-%s/broker"\nrole = "%s"\nhosts = ["%s"]\nlisten = "0.0.0.0"\n' "$1" "$2" "$3"
    printf 'broker_port = 32010\nquic_port = 32011\nbridge_port = 32010\nops_listen = "%s:32080"\n\n' "$3"
}
{
    printf 'fabric = "fairness"\noperator = "operator"\nsuperusers = []\n\n'
    for side in left right; do printf '[[region]]\nname = "region-%s"\n\n' "$side"; done
    node left global 10.76.1.2
    node right region 10.76.2.2
    printf '[[edge]]\nname = "link"\ndial = "region-right/broker"\naccept = "region-left/broker"\naddress = "10.76.0.1:32010"\ntenants = ["*"]\n\n'
    for tenant in victim $(seq -f 'flood%g' $FLOODERS); do
        printf '[[tenant]]\nid = "%s"\nregions = ["region-left", "region-right"]\n\n' "$tenant"
        for side in left right; do printf '[[agent]]\nname = "agent"\nregion = "region-%s"\ntenant = "%s"\n\n' "$side" "$tenant"; done
    done
} >"$MESH_DIR/fabric.toml"
make_fabric

declare -A AT=([left]=10.76.1.2:32010 [right]=10.76.2.2:32010)
for tenant in victim $(seq -f 'flood%g' $FLOODERS); do
    for side in left right; do
        "$MESH_BIN" context add "$tenant-$side" --server "${AT[$side]}" --root "$MESH_DIR/agents/$tenant/root.pem" \
            --cert "$MESH_DIR/agents/$tenant/agent@region-$side.pem" --key "$MESH_DIR/agents/$tenant/agent@region-$side.key" >/dev/null
    done
done

# start RATE|'': both brokers, the edge configured with the rate if one is given.
start() {
    local side config
    for side in left right; do
        config=$MESH_DIR/nodes/region-$side-broker/node.toml
        sed -i '/^rate = /d' "$config"
        [ -z "$1" ] || sed -i "s|^name = \"link\"\$|&\nrate = \"$1\"|" "$config"
        mkdir -p "$MESH_DIR/run"
        printf '#!/usr/bin/env bash\nexec ip netns exec %q %q "$@"\n' "$(netns "$side")" "$MESH_BIN" >"$MESH_DIR/run/$side.sh"
        chmod +x "$MESH_DIR/run/$side.sh"
        NODE_BIN=$MESH_DIR/run/$side.sh start_node "region-$side-broker"
    done
    for side in left right; do
        if ! await_node "region-$side-broker" || ! wait_for 20 bridged "region-$side-broker"; then die "region-$side/broker does not start"; fi
    done
}

# shape on|off: the link, in both directions. The buffer holds a third of a second, as a socket's or a router's does.
shape() {
    local side
    for side in left right; do
        ip netns exec "$(netns $side)" tc qdisc del dev shared root 2>/dev/null || true
        [ "$1" = off ] || ip netns exec "$(netns $side)" tc qdisc add dev shared root tbf rate "${MBIT}mbit" burst 16kb limit 4mb
    done
}

# resident SIDE: kilobytes of a broker's memory.
resident() { awk '/^VmRSS:/ { print $2 }' "/proc/$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$(ready_file "region-$1-broker")")/status"; }

# field FILE PATH: medians of one figure of all lines of a file of reports.
field() { python3 -c '
import json, statistics, sys
values = []
for line in open(sys.argv[1]):
    value = json.loads(line)
    for key in sys.argv[2].split("."): value = value[key]
    values.append(value)
print(round(statistics.median(values)) if sys.argv[3] == "median" else sum(values))' "$1" "$2" "${3:-median}"; }

# measure CASE CLASS SIZE TENANTS
measure() {
    local name=$1-$2-$3B-x$4 reports before after floods=() n
    reports=$MESH_DIR/$name.json
    for ((n = 1; n <= $4; n++)); do floods+=(--flood "flood$n-left:flood$n-right"); done
    before=$(resident left)
    for ((n = 0; n < ROUNDS; n++)); do
        in_netns load "$LOAD_BIN" bench flood-and-victim --context victim-left --to victim-right "${floods[@]}" --duration "$SECONDS_EACH" \
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
        # What is left of the link: beside the victim, and what QUIC, UDP, IP and Ethernet add to the payload of every packet.
        [ "$1" = unshaped ] || [ "$3" -lt 1024 ] || goal "$name.flood_mbit" $((flood * 8 / 1000000)) least $((MBIT * 95 * 93 / 10000))
    } >>"$MESH_DIR/goals"
}

printf '%-9s %-5s %8s %3s  %9s %9s  %5s  %8s  %8s\n' case class size by 'p99 alone' 'p99 us' lost Mbit/s 'grown MiB'
for case in "${CASES[@]}"; do
    case $case in
        shaped) shape on && start "$MBIT Mbit/s" ;;
        measured) shape on && start '' ;;
        unshaped) shape off && start '' ;;
        *) die "there is no case '$case'" 'one of shaped, measured, unshaped' ;;
    esac
    for flood in "${FLOODS[@]}"; do
        IFS=: read -r class size tenants <<<"$flood"
        measure "$case" "$class" "$size" "$tenants"
    done
    stop_mesh >/dev/null
done
cat "$MESH_DIR/goals"
[ "$SHORT" -eq 0 ]
