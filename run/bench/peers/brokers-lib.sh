#!/usr/bin/env bash
# Starting the brokers of run/bench/peers.sh, each with the same certificates, and on the first processor unless BROKER_IN
# says otherwise. Sourced, never run.
#
# A start function takes a name, and sets for it AT (where clients connect), PID, and with a link FAR_AT and FAR_PID as
# well: there the publisher's broker, which dials, is AT, and the subscriber's is FAR_AT.
#
# What is set here is for the script that sources this, and the other way round.
# shellcheck disable=SC2034,SC2153

declare -A AT=() PID=() FAR_AT=() FAR_PID=() MIDDLE_PID=() VERSION=() PROGRAM=()
STARTED=()
PRESENT=() LEFT_OUT=()
# What brokers run behind, in place of the shell, and the address on which they take clients.
BROKER_IN=(on 0) BROKER_HOST=127.0.0.1
# Of a link's two ends: where clients reach what runs there, and the other end over the link.
declare -A HOST=([left]=127.0.0.1 [right]=127.0.0.1) LINK_HOST=([left]=127.0.0.1 [right]=127.0.0.1)
# What nats-server is told of accounts where two are joined by a route; then certificates say which user a client is.
NATS_ACCOUNTS=

# broker_in SIDE: what is started from now on runs at this end. A script whose ends are places of their own says how.
broker_in() { BROKER_HOST=${HOST[$1]}; }

# dial SIDE PORT: DIAL_AT is where the other end reaches this port over the link.
dial() { DIAL_AT=${LINK_HOST[$1]}:$2; }

# install_peers NAME…: PRESENT are those that could be had, with VERSION and PROGRAM; LEFT_OUT says why others could not.
install_peers() {
    local name version rest
    "$REPO/run/bench/peers/install.sh" "$@" >"$WORK/installed"
    while IFS=$'\t' read -r name version rest; do
        if [ "$version" = - ]; then
            LEFT_OUT+=("$name: $rest")
        else
            PRESENT+=("$name") VERSION[$name]=$version PROGRAM[$name]=$rest
        fi
    done <"$WORK/installed"
}

# into_document MARKER FILE: what docs/PERFORMANCE.md has between its two markers of this name, from now on, and who is left out.
into_document() {
    local document=$REPO/docs/PERFORMANCE.md line
    { cat "$2" && for line in "${LEFT_OUT[@]}"; do printf 'Left out: %s.\n\n' "$line"; done; } >"$WORK/written"
    [ "$(grep -c "^<!-- /\{0,1\}$1 -->\$" "$document")" -eq 2 ] || die "$document has lost its markers"
    sed -e "/^<!-- $1 -->\$/r $WORK/written" -e "/^<!-- $1 -->\$/,/^<!-- \/$1 -->\$/{/^<!-- /!d}" "$document" >"$WORK/document"
    cat "$WORK/document" >"$document"
}

# on PROCESSOR COMMAND…: in place of this shell.
on() { local cpu=$1 && shift; if [ "$(nproc)" -ge 2 ] && command -v taskset >/dev/null; then exec taskset -c "$cpu" "$@"; else exec "$@"; fi; }

# broker LOG COMMAND…: in the background; its process is BROKER_PID.
broker() {
    local log=$1
    shift
    ("${BROKER_IN[@]}" "$@") >"$log" 2>&1 </dev/null &
    BROKER_PID=$!
    STARTED+=("$BROKER_PID")
}

# What was started and has not been ended: its number is given to nobody else before.
end_process() {
    local pid left=()
    end_children "$1"
    for pid in "${STARTED[@]}"; do [ "$pid" = "$1" ] || left+=("$pid"); done
    STARTED=("${left[@]}")
}

# stop_broker NAME
stop_broker() {
    local pid
    for pid in "${PID[$1]:-}" "${FAR_PID[$1]:-}" "${MIDDLE_PID[$1]:-}"; do [ -z "$pid" ] || end_process "$pid"; done
    unset "PID[$1]" "FAR_PID[$1]" "MIDDLE_PID[$1]"
}

stop_brokers() {
    local pid
    for pid in "${STARTED[@]}"; do end_process "$pid"; done
}

did_not_start() { die "$1 did not start: $(tail -n 5 "$2")"; }

# Looked at from where clients are: HTTP_VIA of lib.sh.
# shellcheck disable=SC2016 # the inner shell expands them
listens() { "${HTTP_VIA[@]}" bash -c 'exec 3<>"/dev/tcp/$1/$2"' _ "$BROKER_HOST" "$1" 2>/dev/null; }

# await_port NAME PORT LOG
await_port() { wait_for 30 listens "$2" || did_not_start "$1" "$3"; }

# ── This broker ───────────────────────────────────────────────────────────────

# start_glocal native nats: one broker under two names, or under one of them. It has a core of its own, hence the polling.
start_glocal() {
    local name ready=$WORK/glocal.ready.json
    rm -f "$ready"
    broker "$WORK/glocal.log" "$MESH_BIN" run -c "$NODE/node.toml" -D broker_port=0 -D quic_port=0 -D bridge_port=0 -D ops_listen=off \
        -D nats_port=0 -D runtime_threads=1 -D busy_poll_us=100 -D ready_file="$ready"
    wait_for 20 test -s "$ready" || did_not_start glocal "$WORK/glocal.log"
    for name in "$@"; do
        PID[$name]=$BROKER_PID
        case $name in
            glocal-nats) AT[$name]=$(sed -n 's/.*"nats": "\([^"]*\)".*/\1/p' "$ready") ;;
            *) AT[$name]=$(sed -n 's/.*"native_tcp": "\([^"]*\)".*/\1/p' "$ready") ;;
        esac
    done
}

# start_glocal_mesh LINK TRANSIT: three brokers in a row; one link of it under the first name, both under the second.
start_glocal_mesh() {
    local node directory=$WORK/mesh
    mkdir -p "$directory"
    plan_with_free_ports "$REPO/mesh-configs/two-region/fabric.toml" >"$directory/fabric.toml"
    MESH_DIR=$directory
    make_fabric
    declare -A at=() pid=()
    for node in global-broker-g region-a-broker-a region-b-broker-b; do
        broker "$directory/$node.log" "$MESH_BIN" run -c "$directory/nodes/$node/node.toml" -D runtime_threads=1 \
            -D ready_file="$directory/$node.ready.json"
        pid[$node]=$BROKER_PID
        wait_for 20 test -s "$directory/$node.ready.json" || did_not_start "$node" "$directory/$node.log"
        at[$node]=127.0.0.1:$(node_key "$node" broker_port)
    done
    for node in "${!pid[@]}"; do wait_for 20 bridged "$node" || die "an edge of $node is not up: $(tail -n 3 "$directory/$node.log")"; done
    AT[$1]=${at[region-a-broker-a]} PID[$1]=${pid[region-a-broker-a]}
    FAR_AT[$1]=${at[global-broker-g]} FAR_PID[$1]=${pid[global-broker-g]}
    AT[$2]=${at[region-a-broker-a]} PID[$2]=${pid[region-a-broker-a]} MIDDLE_PID[$2]=${pid[global-broker-g]}
    FAR_AT[$2]=${at[region-b-broker-b]} FAR_PID[$2]=${pid[region-b-broker-b]}
    MESH_AGENTS=$directory/agents/tenantA
}

start_relay() {
    rm -f "$WORK/relay.at"
    broker "$WORK/relay.log" "$RAW_LOAD_BIN" relay --cert "$NODE/node.pem" --key "$NODE/node.key" --root "$NODE/root.pem" --ready-file "$WORK/relay.at"
    wait_for 10 test -s "$WORK/relay.at" || did_not_start 'the relay' "$WORK/relay.log"
    AT[$1]=$(cat "$WORK/relay.at") PID[$1]=$BROKER_PID
}

# ── nats-server ───────────────────────────────────────────────────────────────

nats_tls() { printf 'tls { cert_file: "%s/node.pem", key_file: "%s/node.key", ca_file: "%s/root.pem", verify: true }\n' "$NODE" "$NODE" "$NODE"; }

# nats_broker NAME SUFFIX PEER PORT [verify_and_map]: runs with what is in its configuration besides the client's port.
nats_broker() {
    local conf=$WORK/$1.$2.conf log=$WORK/$1.$2.log verify=${5:-verify}
    {
        printf 'server_name: "%s-%s"\nlisten: "%s:%s"\n' "$1" "$2" "$BROKER_HOST" "$4"
        nats_tls | sed "s/verify: true/$verify: true/"
        cat
    } >"$conf"
    broker "$log" "${PROGRAM[$3]}" -c "$conf"
    wait_for 10 grep -q 'Server is ready' "$log" || did_not_start "$1" "$log"
}

start_nats() {
    local port
    port=$(free_ports 1)
    nats_broker "$1" one "$1" "$port" </dev/null
    AT[$1]=127.0.0.1:$port PID[$1]=$BROKER_PID
}

# start_nats_link NAME PEER leaf|route|single: a single one is a route of one connection; others have several since 2.10.
start_nats_link() {
    local ports near far inner one='' verify=verify
    mapfile -t ports < <(free_ports 4)
    near=${ports[0]} far=${ports[1]} inner=${ports[2]}
    # Earlier ones know no pools.
    [ "$3" != single ] || [ "$2" = nats-2.9 ] || one='pool_size: -1, '
    [ -z "$NATS_ACCOUNTS" ] || verify=verify_and_map
    broker_in right
    if [ "$3" = leaf ]; then
        nats_broker "$1" far "$2" "$far" <<<"leafnodes { listen: \"${LINK_HOST[right]}:$inner\", $(nats_tls) }"
    else
        nats_broker "$1" far "$2" "$far" "$verify" \
            <<<"cluster { name: \"bench\", ${one}listen: \"${LINK_HOST[right]}:$inner\", $(nats_tls) }"$'\n'"$NATS_ACCOUNTS"
    fi
    FAR_PID[$1]=$BROKER_PID FAR_AT[$1]=${HOST[right]}:$far
    dial right "$inner"
    broker_in left
    if [ "$3" = leaf ]; then
        nats_broker "$1" near "$2" "$near" <<<"leafnodes { remotes: [ { url: \"tls://$DIAL_AT\", $(nats_tls | sed 's/, verify: true//') } ] }"
    else
        nats_broker "$1" near "$2" "$near" "$verify" \
            <<<"cluster { name: \"bench\", ${one}listen: \"${LINK_HOST[left]}:${ports[3]}\", routes: [ \"nats://$DIAL_AT\" ], $(nats_tls) }"$'\n'"$NATS_ACCOUNTS"
    fi
    PID[$1]=$BROKER_PID AT[$1]=${HOST[left]}:$near
}

# ── mosquitto ─────────────────────────────────────────────────────────────────

# mosquitto_broker NAME SUFFIX PORT: runs with what is in its configuration besides the client's port.
mosquitto_broker() {
    local conf=$WORK/$1.$2.conf log=$WORK/$1.$2.log
    {
        printf 'listener %s 127.0.0.1\ncafile %s/root.pem\ncertfile %s/node.pem\nkeyfile %s/node.key\n' "$3" "$NODE" "$NODE" "$NODE"
        # It would give up root's rights, and then could not read the keys. Nothing is dropped for a queue's length.
        printf 'require_certificate true\ntls_version tlsv1.3\nallow_anonymous true\nset_tcp_nodelay true\nuser root\nmax_queued_messages 0\npersistence false\n'
        cat
    } >"$conf"
    broker "$log" "${PROGRAM[mosquitto]}" -c "$conf"
    await_port "$1" "$3" "$log"
}

start_mosquitto() {
    local port
    port=$(free_ports 1)
    mosquitto_broker "$1" one "$port" </dev/null
    AT[$1]=127.0.0.1:$port PID[$1]=$BROKER_PID
}

start_mosquitto_link() {
    local ports
    mapfile -t ports < <(free_ports 2)
    mosquitto_broker "$1" far "${ports[1]}" </dev/null
    FAR_PID[$1]=$BROKER_PID FAR_AT[$1]=127.0.0.1:${ports[1]}
    mosquitto_broker "$1" near "${ports[0]}" <<END
connection bench
address 127.0.0.1:${ports[1]}
topic bench/# out 0
bridge_cafile $NODE/root.pem
bridge_certfile $NODE/node.pem
bridge_keyfile $NODE/node.key
bridge_tls_version tlsv1.3
END
    PID[$1]=$BROKER_PID AT[$1]=127.0.0.1:${ports[0]}
}

# ── ActiveMQ ──────────────────────────────────────────────────────────────────

# activemq_broker NAME SUFFIX CONNECTORS PORT: waits for the port.
activemq_broker() {
    local log=$WORK/$1.$2.log home=$WORK/$1.$2 jars
    mkdir -p "$home"
    if [ ! -e "$WORK/node.p12" ]; then
        openssl pkcs12 -export -in "$NODE/node.pem" -inkey "$NODE/node.key" -out "$WORK/node.p12" -passout pass:benchmark
        keytool -importcert -noprompt -storetype PKCS12 -alias root -file "$NODE/root.pem" -keystore "$WORK/root.p12" \
            -storepass benchmark >/dev/null 2>&1
    fi
    # Of the several ways to log, the one that does not.
    jars=$(find -L "${PROGRAM[activemq]}/java" /usr/share/java -name '*.jar' 2>/dev/null | grep -v -e slf4j -e log4j | paste -sd:)
    jars+=:$(find -L "${PROGRAM[activemq]}/java" /usr/share/java -name slf4j-api.jar -o -name slf4j-nop.jar 2>/dev/null | paste -sd:)
    broker "$log" java -Xmx1g -cp "$jars" -Dactivemq.home="$home" -Dactivemq.base="$home" -Dactivemq.data="$home" \
        -Djavax.net.ssl.keyStore="$WORK/node.p12" -Djavax.net.ssl.keyStorePassword=benchmark -Djavax.net.ssl.keyStoreType=PKCS12 \
        -Djavax.net.ssl.trustStore="$WORK/root.p12" -Djavax.net.ssl.trustStorePassword=benchmark -Djavax.net.ssl.trustStoreType=PKCS12 \
        org.apache.activemq.console.Main start "broker:($3)?persistent=false&useJmx=false&brokerName=$2"
    await_port "$1" "$4" "$log"
}

start_activemq() {
    local port
    port=$(free_ports 1)
    activemq_broker "$1" one "mqtt+ssl://127.0.0.1:$port?needClientAuth=true" "$port"
    AT[$1]=127.0.0.1:$port PID[$1]=$BROKER_PID
}

# ── zenohd ────────────────────────────────────────────────────────────────────

# zenoh_broker NAME SUFFIX PORT LISTEN CONNECT: endpoints as JSON strings, CONNECT may be empty.
zenoh_broker() {
    local conf=$WORK/$1.$2.json5 log=$WORK/$1.$2.log
    cat >"$conf" <<END
{
    mode: "router",
    listen: { endpoints: ["tls/$BROKER_HOST:$3"$4] },
    connect: { endpoints: [$5] },
    scouting: { multicast: { enabled: false } },
    transport: {
        unicast: { max_sessions: 20000, accept_pending: 1000 },
        link: { tls: {
            root_ca_certificate: "$NODE/root.pem", enable_mtls: true,
            listen_certificate: "$NODE/node.pem", listen_private_key: "$NODE/node.key",
            connect_certificate: "$NODE/node.pem", connect_private_key: "$NODE/node.key",
        } },
    },
}
END
    broker "$log" "${PROGRAM[zenoh]}" --config "$conf"
    await_port "$1" "$3" "$log"
}

start_zenoh() {
    local port
    port=$(free_ports 1)
    zenoh_broker "$1" one "$port" '' ''
    AT[$1]=127.0.0.1:$port PID[$1]=$BROKER_PID
}

# start_zenoh_link NAME quic|tls
start_zenoh_link() {
    local ports
    mapfile -t ports < <(free_ports 3)
    broker_in right
    zenoh_broker "$1" far "${ports[1]}" ", \"$2/${LINK_HOST[right]}:${ports[2]}\"" ''
    FAR_PID[$1]=$BROKER_PID FAR_AT[$1]=${HOST[right]}:${ports[1]}
    dial right "${ports[2]}"
    broker_in left
    zenoh_broker "$1" near "${ports[0]}" '' "\"$2/$DIAL_AT\""
    PID[$1]=$BROKER_PID AT[$1]=${HOST[left]}:${ports[0]}
}
