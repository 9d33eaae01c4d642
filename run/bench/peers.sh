#!/usr/bin/env bash
# This broker beside the brokers of others, in turns, under the same raw load and with the same certificates: one publisher
# and one subscriber, request/reply, new and idle connections, across one link, fan-out. Ends with lines
# "goal <name> <measured> <bound> ok|short"; fails when one is short.
set -euo pipefail
# Binaries that are named are taken as they are.
BUILD=true
[ -z "${MESH_BIN:-}" ] || [ -z "${RAW_LOAD_BIN:-}" ] || BUILD=false
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=run/lib.sh
source "$HERE/../lib.sh"
# shellcheck source=run/bench/peers/brokers-lib.sh
source "$HERE/peers/brokers-lib.sh"

PEERS=nats-2.9,nats-2.15,zenoh,mosquitto,activemq
ROWS=pair-16,pair-256,pair-1024,request,connect,idle,link,transit,fanout
usage() {
    cat <<END
usage: run/bench/peers.sh [--rounds N] [--count N] [--only PEER,…] [--rows ROW,…] [--write] [--install-only]

  --rounds N      rounds of each broker in each row, after one that is not counted; figures are medians; 5
  --count N       messages of each round; requests, deliveries and new connections go with it; 400000
  --only PEER,…   which others: $PEERS; 'none' for none
  --rows ROW,…    what is measured: $ROWS
  --write         writes the tables into docs/PERFORMANCE.md, between its two markers
  --install-only  installs the others below target/peers, and ends

examples:
  run/bench/peers.sh --install-only                                  once; zenohd takes twenty minutes to build
  run/bench/peers.sh                                                 everything, an hour
  run/bench/peers.sh --only nats-2.9,nats-2.15 --rows pair-16,pair-256 --rounds 3
  run/bench/peers.sh --only none --rows pair-256,connect,idle        this broker and the bare relay

A peer that cannot be installed is left out, by name and with the reason, and so are the goals that need it. Brokers have
the first processor and the load the second, where there are two. MESH_BIN and RAW_LOAD_BIN name other binaries than those
that this script builds in target/release. KEEP=1 keeps the logs and every round's figures.
END
}

ROUNDS=5 COUNT=400000 WRITE=false INSTALL_ONLY=false
while [ $# -gt 0 ]; do
    case $1 in
        --rounds) ROUNDS=${2:?--rounds needs a number} && shift ;;
        --count) COUNT=${2:?--count needs a number} && shift ;;
        --only) PEERS=${2:?--only needs names} && shift ;;
        --rows) ROWS=${2:?--rows needs names} && shift ;;
        --write) WRITE=true ;;
        --install-only) INSTALL_ONLY=true ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
for row in ${ROWS//,/ }; do
    case $row in
        pair-16 | pair-256 | pair-1024 | request | connect | idle | link | transit | fanout) ;;
        *) die "there is no row '$row'" "see run/bench/peers.sh --help" ;;
    esac
done

WORK=$(mktemp -d "${TMPDIR:-/tmp}/glocal-peers.XXXXXX")
finish() {
    stop_brokers
    if [ -n "${KEEP:-}" ]; then say "logs and figures are kept in $WORK"; else rm -rf "$WORK"; fi
}
trap finish EXIT

# shellcheck disable=SC2086 # names, one a word
[ "$PEERS" = none ] || install_peers ${PEERS//,/ }
for name in "${PRESENT[@]}"; do say "$name: ${VERSION[$name]}"; done
for line in "${LEFT_OUT[@]}"; do say "left out: $line"; done
! $INSTALL_ONLY || exit 0

RAW_LOAD_BIN=${RAW_LOAD_BIN:-$TARGET_DIR/release/examples/raw-load}
if $BUILD; then (cd "$REPO" && cargo build --release --quiet --locked --bin glocal --example raw-load); fi
need_binary
[ -x "$RAW_LOAD_BIN" ] || die "'$RAW_LOAD_BIN' is not built" "cargo build --release --example raw-load"
# A thousand subscribers and five thousand idle connections are as many files, at both ends.
ulimit -n 20000 2>/dev/null || ulimit -n "$(ulimit -Hn)"

"$MESH_BIN" fabric apply "$REPO/mesh-configs/single.fabric.toml" --out "$WORK" >"$WORK/apply.log"
NODE=$WORK/nodes/region-a-broker
AGENTS=$WORK/agents/tenantA MESH_AGENTS=

present() { case " ${PRESENT[*]} " in *" $1 "*) true ;; *) false ;; esac; }
wanted() { case ",$ROWS," in *",$1"*) true ;; *) false ;; esac; }

# start NAME: a broker by itself.
start() {
    case $1 in
        glocal | glocal-nats) start_glocal "$1" ;;
        relay) start_relay "$1" ;;
        nats-*) start_nats "$1" ;;
        mosquitto) start_mosquitto "$1" ;;
        activemq) start_activemq "$1" ;;
        zenoh) start_zenoh "$1" ;;
    esac
}

# What speaks a broker's protocol.
load_of() {
    case $1 in
        glocal | glocal-mesh*) LOAD=("$RAW_LOAD_BIN" "$2" --protocol native) ;;
        relay) LOAD=("$RAW_LOAD_BIN" "$2" --protocol bare) ;;
        glocal-nats | nats-*) LOAD=("$RAW_LOAD_BIN" "$2" --protocol nats) ;;
        zenoh*) LOAD=("$TARGET_DIR/peers/zenoh/build/release/zenoh-load" "$2") ;;
        mosquitto* | activemq*) LOAD=("$RAW_LOAD_BIN" "$2" --protocol mqtt) ;;
    esac
}

# measure ROW NAME MODE OPTION…: one round; its figures, one a line, into the results, unless it is the first.
measure() {
    local row=$1 name=$2 mode=$3 agents=$AGENTS extra=() line
    shift 3
    load_of "$name" "$mode"
    [ -z "${FAR_AT[$name]:-}" ] || extra+=(--subscribe-at "${FAR_AT[$name]}" --broker "far=${FAR_PID[$name]}")
    [ -z "${MIDDLE_PID[$name]:-}" ] || extra+=(--broker "middle=${MIDDLE_PID[$name]}")
    case $name in glocal-mesh*) agents=$MESH_AGENTS ;; esac
    line=$(on 1 "${LOAD[@]}" --server "${AT[$name]}" --broker "broker=${PID[$name]}" --cert "$agents/alice@region-a.pem" \
        --key "$agents/alice@region-a.key" "${extra[@]}" "$@" 2>"$WORK/load.err") || {
        say "warning: $row, $name: $(cat "$WORK/load.err")" >&2
        return 0
    }
    [ "$ROUND" -gt 0 ] || return 0
    # Ours is one broker to the tables, whatever it is started for.
    printf '%s' "$line" | tr -d '{}"' | tr , '\n' | awk -v row="$row" -v name="${name%-mesh*}" -F: -v OFS='\t' '{ print row, name, $1, $2 }' >>"$WORK/results"
}

# turns ROW NAMES MODE OPTION…: all rounds of a row, the brokers in turns.
turns() {
    local row=$1 names=$2 name
    shift 2
    say "$row …" >&2
    for ROUND in $(seq 0 "$ROUNDS"); do
        for name in $names; do measure "$row" "$name" "$@"; done
    done
}

BROKERS="glocal glocal-nats ${PRESENT[*]}"
: >"$WORK/results"
# What else the machine does, before this script adds to it.
BUSY=$(cut -d ' ' -f 1 /proc/loadavg)
say "$("$MESH_BIN" --version), ${ROUNDS} rounds, a load of $BUSY" >&2

if wanted pair- || wanted request || wanted connect || wanted fanout; then
    start_glocal glocal glocal-nats
    for name in relay "${PRESENT[@]}"; do start "$name"; done
    for size in 16 256 1024; do
        if wanted "pair-$size,"; then turns "pair-$size" "$BROKERS relay" pair --size "$size" --count "$COUNT"; fi
    done
    if wanted request; then turns request "$BROKERS" request --count "$((COUNT / 40))"; fi
    if wanted connect; then turns connect "$BROKERS" connect --count "$((COUNT / 400))" --threads 64; fi
    if wanted fanout; then turns fanout "glocal glocal-nats $(printf '%s\n' "${PRESENT[@]}" | grep '^nats-' | tr '\n' ' ')" fanout --count "$((COUNT / 625))"; fi
    for name in relay glocal "${PRESENT[@]}"; do stop_broker "$name"; done
fi

if wanted idle; then
    say 'idle …' >&2
    # In a fresh process each time: what an allocator has kept from before would hide what a connection takes.
    for ROUND in $(seq "$ROUNDS"); do
        for name in $BROKERS; do
            start "$name"
            # A client of zenoh's crate takes as much memory as a hundred others.
            case $name in activemq | zenoh) idle=500 ;; *) idle=5000 ;; esac
            measure idle "$name" idle --count "$idle"
            stop_broker "$name"
        done
    done
fi

if wanted link || wanted transit; then
    start_glocal_mesh glocal-mesh glocal-mesh-transit
    LINKS=glocal-mesh
    for name in "${PRESENT[@]}"; do
        case $name in
            nats-*) for kind in leaf route; do start_nats_link "$name-$kind" "$name" "$kind" && LINKS+=" $name-$kind"; done ;;
            zenoh) for kind in quic tls; do start_zenoh_link "zenoh-$kind" "$kind" && LINKS+=" zenoh-$kind"; done ;;
            mosquitto) start_mosquitto_link mosquitto-bridge && LINKS+=" mosquitto-bridge" ;;
        esac
    done
    if wanted link; then turns link "$LINKS" pair --count "$COUNT"; fi
    if wanted transit; then turns transit glocal-mesh-transit pair --count "$COUNT"; fi
fi

LABELS="glocal=glocal, native;glocal-nats=glocal, NATS edge;relay=bare rustls relay"
for name in "${PRESENT[@]}"; do
    case $name in
        mosquitto) LABELS+=";mosquitto=mosquitto ${VERSION[$name]};mosquitto-bridge=mosquitto ${VERSION[$name]}, bridge" ;;
        zenoh) LABELS+=";zenoh=zenohd ${VERSION[$name]};zenoh-quic=zenohd ${VERSION[$name]}, QUIC;zenoh-tls=zenohd ${VERSION[$name]}, TLS" ;;
        activemq) LABELS+=";activemq=ActiveMQ ${VERSION[$name]}" ;;
        nats-*) LABELS+=";$name=nats-server ${VERSION[$name]};$name-leaf=nats-server ${VERSION[$name]}, leaf;$name-route=nats-server ${VERSION[$name]}, route" ;;
    esac
done
: >"$WORK/tables"
: >"$WORK/goals"
awk -v tables="$WORK/tables" -v goals="$WORK/goals" -v labels="$LABELS" -f "$HERE/peers/judge.awk" "$WORK/results"
cat "$WORK/tables"
if $WRITE; then
    {
        printf 'Medians of %s rounds (least–greatest), %s messages in each, brokers in turns, on a machine with a load of %s.\n\n' \
            "$ROUNDS" "$COUNT" "$BUSY"
        cat "$WORK/tables"
    } >"$WORK/found"
    into_document peers "$WORK/found"
fi
cat "$WORK/goals"
! grep -q ' short$' "$WORK/goals"
