#!/usr/bin/env bash
# What fairness.sh does with the brokers of others: two of each with a link between them, publishers on the left and
# subscribers on the right, one after the other under the same kind of load. Sourced after link-lib.sh and
# brokers-lib.sh, never run.
#
# What is set here is for the script that sources this, and the other way round.
# shellcheck disable=SC2034,SC2153

# How long the load of one round may take beyond its phases, in seconds.
LOAD_SPARE_SECONDS=60

# broker_in SIDE: what brokers-lib.sh starts from now on runs there.
broker_in() { BROKER_IN=(exec_in "$1") BROKER_HOST=${HOST[$1]}; }

# What stands for the tenants, by the subjects of their certificates, where a nats-server has accounts.
nats_accounts() {
    local tenant
    printf 'accounts {\n'
    for tenant in victim flood1; do printf '  %s { users: [ { user: "CN=agent,OU=region-left,O=%s" } ] }\n' "$tenant" "$tenant"; done
    printf '}\n'
}

# measured_in CASE NAME: what a leaf does is seen where its link is full.
measured_in() { [ "$1" = measured ] || case $2 in *-leaf) false ;; esac; }

# pairs_of PEER: how two of these brokers are joined, a name each. With a route, each tenant has an account, and both share one
# connection; a pool is a route of as many as there are by default; a leaf is of one account, which both share.
pairs_of() {
    case $1 in
        nats-2.9) printf '%s\n' "$1-route" "$1-leaf" ;;
        nats-*) printf '%s\n' "$1-route" "$1-pool" "$1-leaf" ;;
        zenoh) printf 'zenoh-quic\n' ;;
    esac
}

label_of() {
    case $1 in
        glocal) printf 'glocal' ;;
        nats-*-route) printf 'nats-server %s, a route, two accounts' "${VERSION[${1%-route}]}" ;;
        nats-*-pool) printf 'nats-server %s, a route of three connections, two accounts' "${VERSION[${1%-pool}]}" ;;
        nats-*-leaf) printf 'nats-server %s, a leaf' "${VERSION[${1%-leaf}]}" ;;
        zenoh-quic) printf 'zenohd %s, QUIC' "${VERSION[zenoh]}" ;;
    esac
}

start_pair() {
    case $1 in
        glocal) start '' && AT[$1]=${NATIVE_AT[left]} FAR_AT[$1]=${NATIVE_AT[right]} ;;
        nats-*-route) start_nats_link "$1" "${1%-route}" single ;;
        nats-*-pool) start_nats_link "$1" "${1%-pool}" route ;;
        nats-*-leaf) start_nats_link "$1" "${1%-leaf}" leaf ;;
        zenoh-*) start_zenoh_link "$1" "${1##*-}" ;;
    esac
}

stop_pair() {
    if [ "$1" = glocal ]; then stop_mesh >/dev/null; else stop_broker "$1"; fi
    link_rest
}

# round CASE NAME: a pair that is started afresh, since what one flood has left would be in the next one's way.
round() {
    local load agents=$MESH_DIR/agents file=$MESH_DIR/beside-$1-$2
    case $2 in
        glocal) load=("$RAW_LOAD_BIN" flood-and-victim --protocol native) ;;
        nats-*) load=("$RAW_LOAD_BIN" flood-and-victim --protocol nats) ;;
        zenoh-*) load=("$ZENOH_LOAD_BIN" flood-and-victim) ;;
    esac
    start_pair "$2"
    in_place load timeout "$((2 * SECONDS_EACH + 2 * GRACE_SECONDS + LOAD_SPARE_SECONDS))" "${load[@]}" \
        --server "${AT[$2]}" --subscribe-at "${FAR_AT[$2]}" --duration "$SECONDS_EACH" --grace "$GRACE_SECONDS" \
        --cert "$agents/victim/agent@region-left.pem" --key "$agents/victim/agent@region-left.key" \
        --flood-cert "$agents/flood1/agent@region-left.pem" --flood-key "$agents/flood1/agent@region-left.key" \
        >>"$file.json" 2>"$file.err" || say "warning: $1, $2: $(tail -n 3 "$file.err")" >&2
    stop_pair "$2"
}

# starved NAME…: says where the load itself came too late to the processor to measure well.
starved() {
    local file
    for file in "$@"; do
        [ ! -s "$file" ] || ! grep -q '"tool_starved":true' "$file" ||
            say "warning: the load did not get the processor in time in $(grep -c '"tool_starved":true' "$file") rounds of $(basename "$file" .json)" >&2
    done
}

# ms FILE PATH: median (least–greatest) of microseconds, in milliseconds.
ms() {
    local middle
    middle=$(field "$1" "$2")
    if [ "$middle" = - ]; then printf 'nothing arrives'; else
        awk -v m="$middle" -v l="$(field "$1" "$2" least)" -v g="$(field "$1" "$2" greatest)" '
            function ms(us) { return sprintf(us < 10000 ? "%.2f" : "%.0f", us / 1000) }
            BEGIN { printf "%s (%s–%s)", ms(m), ms(l), ms(g) }'
    fi
}

# row CASE NAME: of the table.
row() {
    local file=$MESH_DIR/beside-$1-$2.json sent lost
    [ -s "$file" ] || { printf '| %s | %s | no round came to an end | | | |\n' "$(case_of "$1")" "$(label_of "$2")" && return; }
    sent=$(field "$file" beside.published sum) lost=$(field "$file" beside.lost sum)
    printf '| %s | %s | %s | %s | %s | %s |\n' "$(case_of "$1")" "$(label_of "$2")" "$(ms "$file" alone.p99_us)" "$(ms "$file" beside.p99_us)" \
        "$lost of $sent" "$(($(field "$file" flood.delivered_bytes_per_s) * 8 / 1000000))"
}

case_of() { if [ "$1" = unshaped ]; then printf 'not shaped'; else printf '%s Mbit/s' "$MBIT"; fi; }

# versus CASE NAME BOUND: our p99 beside the flood over theirs.
versus() {
    local ours=$MESH_DIR/beside-$1-glocal.json theirs=$MESH_DIR/beside-$1-$2.json mine other
    [ -s "$ours" ] && [ -s "$theirs" ] || return 0
    mine=$(field "$ours" beside.p99_us) other=$(field "$theirs" beside.p99_us)
    if [ "$other" = - ]; then
        say "left out: $1.p99_vs_$2, since nothing of theirs arrives beside the flood" >&2
    elif [ "$mine" = - ]; then
        goal "$1.p99_vs_$2" nothing-arrives most "$3"
    else
        goal "$1.p99_vs_$2" "$(awk -v a="$mine" -v b="$other" 'BEGIN { printf "%.4f", a / b }')" most "$3"
    fi
}

# peers_goals CASE: what must hold in it.
peers_goals() {
    local name alone
    for name in "${NAMES[@]}"; do
        case $1:$name in
            measured:zenoh-*) versus "$1" "$name" 0.1 ;;
            measured:nats-*-route) versus "$1" "$name" 0.01 ;;
            unshaped:nats-*-route) versus "$1" "$name" 0.1 ;;
            *:glocal)
                name=$MESH_DIR/beside-$1-glocal.json
                if [ ! -s "$name" ]; then
                    goal "$1.rounds" 0 least 1
                    continue
                fi
                goal "$1.lost" "$(field "$name" beside.lost sum)" most 0
                alone=$(field "$name" alone.p99_us)
                [ "$1" != unshaped ] || goal "$1.p99_us" "$(field "$name" beside.p99_us)" most "$((3 * alone))"
                ;;
        esac
    done
}

# peers_run PEER…: all rounds in turns, the table, and the goals in their file.
peers_run() {
    local peer case name n
    NATS_ACCOUNTS=$(nats_accounts)
    NAMES=(glocal)
    for peer in "$@"; do mapfile -t -O "${#NAMES[@]}" NAMES < <(pairs_of "$peer"); done
    for ((n = 1; n <= ROUNDS; n++)); do
        for case in "${CASES[@]}"; do
            say "round $n of $ROUNDS, $case …" >&2
            if [ "$case" = unshaped ]; then shape off; else shape on; fi
            for name in "${NAMES[@]}"; do ! measured_in "$case" "$name" || round "$case" "$name"; done
        done
    done
    {
        printf '| link | broker | p99 alone, ms | p99 beside the flood, ms | lost | the flood gets, Mbit/s |\n| --- | --- | --- | --- | --- | --- |\n'
        for case in "${CASES[@]}"; do
            for name in "${NAMES[@]}"; do ! measured_in "$case" "$name" || row "$case" "$name"; done
            peers_goals "$case" >>"$MESH_DIR/goals"
        done
    } >"$MESH_DIR/table"
    cat "$MESH_DIR/table"
    starved "$MESH_DIR"/beside-*.json
}
