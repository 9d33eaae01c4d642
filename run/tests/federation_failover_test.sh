#!/usr/bin/env bash
# What a broken mesh costs: a ring of five brokers, each in a network namespace of its own, one publisher and one subscriber
# two hops apart, every class at a steady rate. Again and again the broker between them is killed (kill -9), the link is cut,
# or one direction of it is lost without a word; the other way round the ring is open. Traffic must go on within two seconds,
# no message of a reliable class may be lost or come twice, and each of the others that does not come is counted once. Ends with totals; the exit code is the number of failures.
# Case RB-37: what dials again takes the place of the link it had.
#
#   run/tests/federation_failover_test.sh --cycles 100     what the figures in docs/PERFORMANCE.md are made with
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source=run/netns-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../netns-lib.sh"

usage() {
    cat <<'END'
usage: run/tests/federation_failover_test.sh [--cycles N] [--only kill|cut|one-way]

  --cycles N   how often each kind of fault happens (default 5)
  --only KIND  one kind alone

MESH_BIN and HOP_BIN name other binaries than those in target/release; KEEP=1 keeps the logs.
END
}

CYCLES=5
KINDS=(kill cut one-way)
while [ $# -gt 0 ]; do
    case $1 in
        --cycles) CYCLES=${2:?'--cycles needs a number'} && shift ;;
        --only) KINDS=("${2:?'--only needs a kind'}") && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

need_binary
need_netns
HOP_BIN=${HOP_BIN:-$TARGET_DIR/release/examples/hop}
[ -x "$HOP_BIN" ] || (cd "$REPO" && cargo build --release --quiet --locked --example hop)

# Longest silence that a fault may cost, in milliseconds.
BOUND_MS=2000
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-failover.XXXXXX")
WITNESS=
finish() {
    [ -z "$WITNESS" ] || kill "$WITNESS" 2>/dev/null || true
    stop_mesh >/dev/null
    netns_clean
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

# ── Five namespaces in a ring, and one that watches: 10.78.<n>.2 is broker n as it sees it, 10.77.<n>.0 the edge from n on.

LETTERS=(a b c d e)
netns_add watch
for n in 0 1 2 3 4; do
    netns_add "${LETTERS[n]}"
    netns_join watch "${LETTERS[n]}" "watch$n" "10.78.$n"
done
for n in 0 1 2 3 4; do netns_join "${LETTERS[n]}" "${LETTERS[(n + 1) % 5]}" "edge$n" "10.77.$n"; done

# The ring's plan with these addresses.
awk '
    function at(letter) { return index("abcde", letter) - 1 }
    /^\[\[/ { block = $0 }
    block ~ /node/ && /^name *=/ { split($0, q, "\""); letter = substr(q[2], length(q[2])) }
    block ~ /node/ && /^hosts *=/ { print "hosts = [\"10.78." at(letter) ".2\"]"; next }
    block ~ /node/ && /^listen *=/ { print "listen = \"0.0.0.0\""; next }
    block ~ /node/ && /^ops_listen *=/ { sub(/127\.0\.0\.1/, "10.78." at(letter) ".2") }
    block ~ /edge/ && /^name *=/ { split($0, q, "\""); letter = substr(q[2], 1, 1) }
    block ~ /edge/ && /^accept *=/ {
        print
        split($0, q, "\"")
        printf "address = \"10.77.%d.2:%d\"\n", at(letter), 33010 + 10 * at(substr(q[2], length(q[2])))
        next
    }
    { print }' "$REPO/mesh-configs/ring/fabric.toml" >"$MESH_DIR/fabric.toml"
make_fabric
# The long way costs more, so that every fault hits the way that is in use, however busy the machine is.
for letter in c d; do
    sed -i 's/^name = "c-d"$/&\nmetric = 20/' "$MESH_DIR/nodes/region-$letter-broker-$letter/node.toml"
done

node_of() { printf 'region-%s-broker-%s' "$1" "$1"; }

# Starts a broker in its namespace.
start_in_netns() {
    local wrapper=$MESH_DIR/run/$1.sh
    mkdir -p "$MESH_DIR/run"
    # shellcheck disable=SC2016 # the wrapper expands them
    printf '#!/usr/bin/env bash\nexec ip netns exec %q %q "$@"\n' "$(netns "$1")" "$MESH_BIN" >"$wrapper"
    chmod +x "$wrapper"
    NODE_BIN=$wrapper start_node "$(node_of "$1")"
}

# Metrics are read from where everybody can be seen.
HTTP_VIA=(in_netns watch)

all_bridged() {
    local letter
    for letter in "${LETTERS[@]}"; do bridged "$(node_of "$letter")" || return 1; done
}

for letter in "${LETTERS[@]}"; do start_in_netns "$letter"; done
for letter in "${LETTERS[@]}"; do
    await_node "$(node_of "$letter")" || die "$(node_of "$letter") does not start"
done
if ! wait_for 20 all_bridged; then
    fail 'five brokers form a ring' "$(tail -n 3 "$MESH_DIR"/run/*.log)"
    summary || exit "$FAILED"
fi
pass 'five brokers form a ring'

# ── The witness publishes at a and listens at c: the short way leads over b.

mkfifo "$MESH_DIR/to-witness" "$MESH_DIR/from-witness"
address() { printf '10.78.%d.2:%d' "$1" $((33010 + 10 * $1)); }
in_netns watch "$HOP_BIN" --agents "$MESH_DIR/agents" witness \
    --publisher "tenantA/ada@region-a=$(address 0)" --subscriber "tenantA/ada@region-c=$(address 2)" \
    <"$MESH_DIR/to-witness" >"$MESH_DIR/from-witness" 2>"$MESH_DIR/witness.err" &
WITNESS=$!
exec 8>"$MESH_DIR/to-witness" 9<"$MESH_DIR/from-witness"

# answer: the next line of the witness.
answer() {
    local line
    IFS= read -r -t 60 line <&9 || die "the witness says nothing: $(cat "$MESH_DIR/witness.err")"
    say "$line"
}
gap() {
    echo gap >&8
    answer | sed 's/.*"gap_ms":\([0-9]*\).*/\1/'
}
[ "$(answer)" = '{"ready":true}' ] || die 'the witness is not ready'

fault() {
    case $1 in
        kill)
            # The wait takes the shell's word about it.
            kill -KILL "$(cat "$(pid_file "$(node_of b)")")"
            wait "$(cat "$(pid_file "$(node_of b)")")" 2>/dev/null || true
            ;;
        cut) ip -n "$(netns a)" link set edge0 down ;;
        # What b sends to a is lost; a still reaches b.
        one-way) ip -n "$(netns b)" route add blackhole 10.77.0.1/32 ;;
    esac
}

heal() {
    case $1 in
        kill) start_in_netns b && await_node "$(node_of b)" ;;
        cut) ip -n "$(netns a)" link set edge0 up ;;
        one-way) ip -n "$(netns b)" route del blackhole 10.77.0.1/32 ;;
    esac
}

# percentile P: of numbers on standard input, one a line.
percentile() { sort -n | awk -v p="$1" '{ v[NR] = $1 } END { i = int((NR * p + 99) / 100); print v[i < 1 ? 1 : i] }'; }

for kind in "${KINDS[@]}"; do
    gaps=$MESH_DIR/gaps.$kind
    for ((cycle = 1; cycle <= CYCLES; cycle++)); do
        # The way over b must be in use again, or its loss would cost nothing.
        wait_for 20 all_bridged || die "the ring does not close again before $kind $cycle"
        sleep 0.5
        gap >/dev/null
        fault "$kind"
        sleep 2.5
        gap >>"$gaps"
        heal "$kind"
        [ "$CYCLES" -lt 20 ] || [ $((cycle % 10)) -ne 0 ] || say "$kind: $cycle of $CYCLES"
    done
    told="median $(percentile 50 <"$gaps"), p99 $(percentile 99 <"$gaps"), longest $(percentile 100 <"$gaps") ms of silence in $CYCLES cycles"
    if [ "$(percentile 99 <"$gaps")" -lt "$BOUND_MS" ]; then pass "$kind: $told"; else fail "$kind: $told"; fi
done
wait_for 20 all_bridged || true

echo end >&8
totals=$(answer)
wait "$WITNESS" || true
WITNESS=
say "$totals" | sed -e 's/"acknowledged/\n&/' -e 's/{"arrived/\n  &/g'
# field CLASS NAME: a number of the totals.
field() { sed -n "s/.*\"$1\":{[^}]*\"$2\":\([0-9]*\).*/\1/p" <<<"$totals"; }
none() {
    say "$1: $2 is $(field "$1" "$2") of $(field "$1" published)"
    [ "$(field "$1" "$2")" = 0 ]
}
for class in ctrl bulk; do
    for what in lost doubled misordered; do check "$class: none $what" none "$class" "$what"; done
done
for class in live tele; do
    for what in doubled misordered; do check "$class: none $what" none "$class" "$what"; done
done

# What did not come is counted, once: as lost at a, wherever it was; as not sent at a; or as late, or left, at c.
accounted() {
    local class=$1 missing lost unsent left=0 reason
    missing=$(field "$class" lost)
    lost=$(metric "$(node_of a)" glocal_lost_total tenant=tenantA class="$class")
    unsent=$(metric "$(node_of a)" glocal_dropped_total tenant=tenantA class="$class" reason=no-route)
    for reason in late aged lane-full gone; do
        left=$((left + $(metric "$(node_of c)" glocal_dropped_total tenant=tenantA class="$class" reason="$reason")))
    done
    say "$class: $missing of $(field "$class" published) missing; $lost lost on the way, $unsent without a way, $left left at c"
    [ "$missing" = $((lost + unsent + left)) ]
}
# counts_of CLASS: whatever any broker has counted of it, to find what was counted nowhere or elsewhere.
counts_of() {
    local letter
    for letter in a b c d e; do
        http_get "$(node_key "$(node_of "$letter")" ops_listen)" /metrics | grep -E '^glocal_(lost|dropped|edge_dropped|published|unmatched|delivered)' |
            grep "class=\"$1\"" | grep -v ' 0$' | sed "s/^/      $letter: /" || true
    done
}
for class in live tele; do
    # What is missing is asked for again, and counted when it is missing twice.
    wait_for 30 accounted "$class" || counts_of "$class"
    check "$class: every message has come or is counted, once" accounted "$class"
done

summary || exit "$FAILED"
