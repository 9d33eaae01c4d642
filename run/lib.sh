#!/usr/bin/env bash
# Helpers of the scripts in run/. Sourced, never run.
#
# A mesh lives in one directory, MESH_DIR: the plan, what 'glocal fabric apply' made of it, and run/ with a pid file, a log
# and a ready file per node. A node is named as its directory, <region>-<agent>. Processes are ended by their pid files,
# never by name. Nothing waits by sleeping: wait_for polls a condition until a deadline.

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET_DIR=${CARGO_TARGET_DIR:-$REPO/target}
# The binary that nodes and clients run.
MESH_BIN=${MESH_BIN:-$TARGET_DIR/release/glocal}
# The directory of the mesh; each script sets it.
MESH_DIR=${MESH_DIR:-}
# How long a node may take to end before it is killed, in seconds.
STOP_GRACE_S=10
# How long one command of a client may take, in seconds: a backstop, above every script's own deadlines.
CLIENT_SECONDS_MAX=120
PASSED=0
FAILED=0

say() { printf '%s\n' "$*"; }

die() {
    printf 'error: %s\n' "$1" >&2
    [ $# -lt 2 ] || printf 'hint: %s\n' "$2" >&2
    exit 1
}

need_binary() {
    [ -x "$MESH_BIN" ] || die "'$MESH_BIN' is not built" "cargo build --release"
}

# need_tool NAME: a command of the Debian package of that name, which is installed where that can be done.
need_tool() {
    command -v "$1" >/dev/null && return 0
    { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; } || die "$1 is missing" "apt-get install $1"
    say "$1 is missing: apt-get install $1"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1"; } >/dev/null 2>&1 ||
        die "$1 is missing" 'apt-get failed; install it by hand'
}

# ── Counting checks ───────────────────────────────────────────────────────────

pass() {
    PASSED=$((PASSED + 1))
    printf 'ok    %s\n' "$1"
}

# fail DESCRIPTION [DETAIL]
fail() {
    FAILED=$((FAILED + 1))
    printf 'FAIL  %s\n' "$1"
    [ $# -lt 2 ] || [ -z "$2" ] || printf '%s\n' "$2" | sed 's/^/      /'
}

# check DESCRIPTION COMMAND…: passes when the command succeeds; what it prints explains a failure.
check() {
    local what=$1 printed
    shift
    if printed=$("$@" 2>&1); then pass "$what"; else fail "$what" "$printed"; fi
}

# Prints the totals; succeeds only when something passed and nothing failed.
summary() {
    printf '%d passed, %d failed\n' "$PASSED" "$FAILED"
    [ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
}

# ── Goals of measurements ─────────────────────────────────────────────────────

# Whether a goal was missed; for the scripts.
# shellcheck disable=SC2034
SHORT=0

# goal NAME MEASURED most|least BOUND: prints whether what was measured is at most, or at least, the bound.
goal() {
    local word=ok
    # shellcheck disable=SC2034
    if ! awk -v m="$2" -v how="$3" -v b="$4" 'BEGIN { exit !(how == "most" ? m <= b : m >= b) }'; then word=short SHORT=1; fi
    printf 'goal %s %s %s %s\n' "$1" "$2" "$4" "$word"
}

# The median of numbers on standard input, one a line.
median() { sort -n | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# ── Waiting ───────────────────────────────────────────────────────────────────

now_ms() { printf '%d' "$((${EPOCHREALTIME/[.,]/} / 1000))"; }

# wait_for SECONDS COMMAND…: polls until the command succeeds; fails at the deadline.
wait_for() {
    local deadline=$(($(now_ms) + $1 * 1000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(now_ms)" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

# ── Processes, by pid file ────────────────────────────────────────────────────

# alive PIDFILE
alive() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && ! is_zombie "$pid"
}

# end_children PID…: what this shell has started; waits for it.
end_children() {
    local pid
    for pid in "$@"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

is_zombie() { [ "$(sed -e 's/^.*) //' -e 's/ .*//' "/proc/$1/stat" 2>/dev/null)" = Z ]; }

not_alive() { ! alive "$1"; }

# is_node PIDFILE: whether the process is a node of this mesh, and not one that got an old number.
is_node() {
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 1
    tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF -- "ready_file=${1%.pid}.ready.json"
}

# ── A mesh ────────────────────────────────────────────────────────────────────

# Sockets in use: ports of TCP and UDP, one a line.
ports_in_use() {
    cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null |
        awk '$2 ~ /:/ { n = split($2, a, ":"); print a[n] }' | sort -u |
        while read -r hex; do printf '%d\n' "0x$hex"; done
}

# free_ports N: ports that nothing uses now, below the range that the system hands out by itself.
free_ports() {
    ports_in_use | awk -v want="$1" -v seed="$(($(now_ms) % 1000000 + $$))" '
        { used[$1] = 1 }
        END {
            srand(seed)
            while (want > 0) {
                port = 20000 + int(rand() * 11000)
                if (!(port in used)) { used[port] = 1; print port; want-- }
            }
        }'
}

# plan_with_free_ports PLAN: the plan with other ports for every broker, on standard output.
plan_with_free_ports() {
    local ports
    ports=$(free_ports "$((6 * $(grep -c '^\[\[node\]\]' "$1")))" | tr '\n' ' ')
    awk -v ports="$ports" '
        BEGIN { split(ports, port, " "); next_port = 1 }
        /^\[/ { in_node = ($0 ~ /^\[\[node\]\]/) }
        in_node && /^\[\[node\]\]/ {
            print
            printf "broker_port = %d\nquic_port = %d\nbridge_port = %d\nops_listen = \"127.0.0.1:%d\"\n",
                port[next_port], port[next_port + 1], port[next_port + 2], port[next_port + 3]
            bridge = port[next_port + 2]
            nats = port[next_port + 4]
            nats_ws = port[next_port + 5]
            next_port += 6
            next
        }
        in_node && /^bridge_port *=/ { split($0, a, "[ =#]+"); moved[a[2]] = bridge; next }
        in_node && /^(broker_port|quic_port|ops_listen) *=/ { next }
        # Listeners of NATS are only where the plan has them.
        in_node && /^nats_port *=/ { printf "nats_port = %d\n", nats; next }
        in_node && /^nats_ws_port *=/ { printf "nats_ws_port = %d\n", nats_ws; next }
        !in_node && /^address *= *"/ {
            for (old in moved) { if (sub(":" old "\"", ":" moved[old] "\"")) break }
        }
        { print }' "$1"
}

# make_fabric: applies MESH_DIR/fabric.toml.
make_fabric() {
    "$MESH_BIN" fabric apply "$MESH_DIR/fabric.toml" --out "$MESH_DIR" >"$MESH_DIR/apply.log" 2>&1 || {
        cat "$MESH_DIR/apply.log" >&2
        die "the plan '$MESH_DIR/fabric.toml' was not applied"
    }
}

# The nodes of the mesh, one a line.
nodes() {
    local config
    for config in "$MESH_DIR"/nodes/*/node.toml; do
        [ -e "$config" ] && basename "$(dirname "$config")"
    done
}

# node_key NODE KEY: the value of a top-level key of its configuration.
node_key() {
    sed -n -e '/^\[/q' -e "s/^$2 *= *\"\\{0,1\\}\\([^\"#]*[^\"# ]\\).*/\\1/p" "$MESH_DIR/nodes/$1/node.toml"
}

# The edges of NODE, one a line.
node_edges() {
    sed -n '/^\[\[edges\]\]/,$s/^name *= *"\([^"]*\)".*/\1/p' "$MESH_DIR/nodes/$1/node.toml"
}

pid_file() { printf '%s/run/%s.pid' "$MESH_DIR" "$1"; }
log_file() { printf '%s/run/%s.log' "$MESH_DIR" "$1"; }
ready_file() { printf '%s/run/%s.ready.json' "$MESH_DIR" "$1"; }

# start_node NODE [VARIABLE=VALUE…]: starts it in a session of its own, so that it outlives the script; its log is appended.
start_node() {
    local node=$1 binary=${NODE_BIN:-$MESH_BIN}
    shift
    mkdir -p "$MESH_DIR/run"
    rm -f "$(ready_file "$node")"
    env -u GLOCAL_SERVER -u GLOCAL_ROOT -u GLOCAL_CERT -u GLOCAL_KEY -u GLOCAL_CONTEXT "$@" \
        setsid "$binary" run -c "$MESH_DIR/nodes/$node/node.toml" -D "ready_file=$(ready_file "$node")" \
        >>"$(log_file "$node")" 2>&1 </dev/null &
    echo "$!" >"$(pid_file "$node")"
}

is_ready_or_dead() { [ -s "$(ready_file "$1")" ] || not_alive "$(pid_file "$1")"; }

# await_node NODE: until its ports are bound.
await_node() {
    wait_for 20 is_ready_or_dead "$1" || { tail -n 20 "$(log_file "$1")" >&2; return 1; }
    alive "$(pid_file "$1")" || { tail -n 20 "$(log_file "$1")" >&2; return 1; }
}

# stop_node NODE: SIGTERM, and SIGKILL after the grace. Says what it did.
stop_node() {
    local file pid
    file=$(pid_file "$1")
    if ! alive "$file" || ! is_node "$file"; then
        rm -f "$file"
        say "$1 was not running"
        return 0
    fi
    pid=$(cat "$file")
    kill -TERM "$pid" 2>/dev/null || true
    if wait_for "$STOP_GRACE_S" not_alive "$file"; then
        say "$1 (pid $pid) has ended"
    else
        kill -KILL "$pid" 2>/dev/null || true
        wait_for 5 not_alive "$file" || true
        say "$1 (pid $pid) did not end within $STOP_GRACE_S s and was killed"
    fi
    rm -f "$file" "$(ready_file "$1")"
}

stop_mesh() {
    local file
    for file in "$MESH_DIR"/run/*.pid; do
        [ -e "$file" ] && stop_node "$(basename "$file" .pid)"
    done
    return 0
}

# ── Looking at nodes ──────────────────────────────────────────────────────────

# What http_get runs behind, such as a network namespace from which every node can be reached.
HTTP_VIA=()

# http_get HOST:PORT PATH: the body.
http_get() {
    # shellcheck disable=SC2016 # the inner shell expands them
    "${HTTP_VIA[@]}" timeout 5 bash -c '
        exec 3<>"/dev/tcp/$1/$2"
        printf "GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n" "$3" "$1" >&3
        sed "1,/^\r*\$/d" <&3' _ "${1%:*}" "${1##*:}" "$2" 2>/dev/null
}

# metric NODE NAME [LABEL=VALUE…]: the sum over all series that have these labels; 0 when there are none.
metric() {
    local node=$1 name=$2
    shift 2
    http_get "$(node_key "$node" ops_listen)" /metrics | awk -v name="$name" -v labels="$*" '
        BEGIN {
            count = split(labels, wanted, " ")
            for (i = 1; i <= count; i++) { split(wanted[i], kv, "="); wanted[i] = kv[1] "=\"" kv[2] "\"" }
        }
        /^#/ { next }
        {
            split($0, head, /[{ ]/)
            if (head[1] != name) next
            # A label begins after a brace or a comma.
            body = $0; gsub(/[{,]/, "\n", body)
            for (i = 1; i <= count; i++) { if (index(body, "\n" wanted[i]) == 0) next }
            sum += $NF
        }
        END { printf "%d\n", sum }'
}

# metric_is NODE VALUE NAME [LABEL=VALUE…]; says both values.
metric_is() {
    local node=$1 wanted=$2 found
    shift 2
    found=$(metric "$node" "$@")
    say "$node: $* is $found, should be $wanted"
    [ "$found" = "$wanted" ]
}

# metric_at_least NODE VALUE NAME [LABEL=VALUE…]
metric_at_least() {
    local node=$1 wanted=$2 found
    shift 2
    found=$(metric "$node" "$@")
    say "$node: $* is $found, should be at least $wanted"
    [ "$found" -ge "$wanted" ]
}

# edge_is_up NODE EDGE
edge_is_up() { metric_is "$1" 1 glocal_edge_up "edge=$2"; }

# bridged NODE: every edge of it is up.
bridged() {
    local edge
    for edge in $(node_edges "$1"); do edge_is_up "$1" "$edge" || return 1; done
}

# ── Clients ───────────────────────────────────────────────────────────────────

# client TENANT/AGENT@REGION NODE COMMAND…: the command line as that agent, connected to that node.
client() { (client_exec "$@"); }

# The same in place of this shell, so that its process number is the client's.
client_exec() {
    local who=$1 node=$2 host port
    shift 2
    host=$(node_key "$node" listen_address)
    [ "$host" != 0.0.0.0 ] || host=127.0.0.1
    port=$(node_key "$node" broker_port)
    export GLOCAL_SERVER=$host:$port
    export GLOCAL_ROOT=$MESH_DIR/agents/${who%%/*}/root.pem
    export GLOCAL_CERT=$MESH_DIR/agents/$who.pem GLOCAL_KEY=$MESH_DIR/agents/$who.key
    export GLOCAL_CONFIG_DIR=$MESH_DIR/contexts NO_COLOR=1
    # 'timeout' passes signals on to what it runs.
    exec timeout "$CLIENT_SECONDS_MAX" "$MESH_BIN" "$@"
}

SUBSCRIBERS=()

# subscriber NAME WHO NODE FILTER…: prints in the background into MESH_DIR/run/NAME.out; returns when the broker has
# confirmed. With SUB_COMMAND=reply, it answers.
subscriber() {
    local name=$1 who=$2 node=$3 base=$MESH_DIR/run/$1
    shift 3
    rm -f "$base.ready" "$base.out"
    client_exec "$who" "$node" "${SUB_COMMAND:-sub}" "$@" --ready-file "$base.ready" >"$base.out" 2>"$base.err" </dev/null &
    echo "$!" >"$base.sub"
    SUBSCRIBERS+=("$base.sub")
    wait_for 10 test -s "$base.ready" || { fail "$name subscribes to $*" "$(cat "$base.err")"; return 1; }
}

received() { cat "$MESH_DIR/run/$1.out"; }

# received_lines NAME COUNT
received_lines() { [ "$(wc -l <"$MESH_DIR/run/$1.out")" -ge "$2" ]; }

stop_subscribers() {
    local file
    for file in "${SUBSCRIBERS[@]}"; do
        kill -TERM "$(cat "$file")" 2>/dev/null || true
        wait_for 5 not_alive "$file" || true
        rm -f "$file"
    done
    SUBSCRIBERS=()
}
