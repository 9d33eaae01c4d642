#!/usr/bin/env bash
# NATS over WebSocket: who is upgraded and who is not, byte by byte; nats.js with wsconnect in Node.js; and the example page,
# docs/examples/browser.html, in headless Chromium, under an origin that the broker lists and one that it does not. Each
# talks with native clients of its tenant. Installs what it needs. Ends with totals; the exit code is the number of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

BROWSER=$REPO/tests/clients/browser
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-websocket.XXXXXX")
finish() {
    stop_subscribers
    stop_mesh >/dev/null
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

"$BROWSER/install.sh"
CHROMIUM=$(command -v chromium || command -v chromium-browser || command -v google-chrome)

NODE=region-a-broker
ALICE=tenantA/alice@region-a
BOB=tenantB/bob@region-a
CERT=$MESH_DIR/agents/$ALICE
ROOT=$MESH_DIR/agents/tenantA/root.pem
read -r -d '' WS_PORT PAGE_PORT < <(free_ports 2; printf '\0')
ORIGIN=http://127.0.0.1:$PAGE_PORT

plan_with_free_ports "$REPO/mesh-configs/single.fabric.toml" |
    sed "s/^broker_port = .*/&\nnats_ws_port = $WS_PORT/" >"$MESH_DIR/fabric.toml"
make_fabric
"$REPO/tests/clients/pki.py" foreign "$MESH_DIR/foreign"
start_node $NODE "GLOCAL_NATS_WS_ALLOWED_ORIGINS=https://dashboard.example,$ORIGIN"
if ! await_node $NODE; then
    fail "$NODE starts" "$(tail -n 5 "$(log_file $NODE)")"
    summary || exit "$FAILED"
fi

# checks COMMAND…: counts the checks that a program prints, a line each.
checks() {
    local status=0 passed failed
    "$@" >"$MESH_DIR/checks" || status=$?
    cat "$MESH_DIR/checks"
    passed=$(grep -c '^ok ' "$MESH_DIR/checks" || true)
    failed=$(grep -c '^FAIL ' "$MESH_DIR/checks" || true)
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
    if [ "$passed" -eq 0 ] || { [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; }; then fail "${1##*/} ${2##*/} runs to its end" "exit code $status"; fi
}

# as_alice COMMAND…: a program whose native clients are alice.
as_alice() {
    GLOCAL_SERVER=127.0.0.1:$(node_key $NODE broker_port) GLOCAL_ROOT=$ROOT GLOCAL_CERT=$CERT.pem GLOCAL_KEY=$CERT.key \
        GLOCAL_CONFIG_DIR=$MESH_DIR/contexts NO_COLOR=1 timeout "$CLIENT_SECONDS_MAX" "$@"
}

say '-- byte by byte'
checks "$BROWSER/handshake.py" --port "$WS_PORT" --ca "$ROOT" --cert "$CERT.pem" --key "$CERT.key" --origin "$ORIGIN" \
    --foreign-cert "$MESH_DIR/foreign/foreign.pem" --foreign-key "$MESH_DIR/foreign/foreign.key"

say '-- nats.js in Node.js'
subscriber out $ALICE $NODE 'ws.out' || true
subscriber foreign $BOB $NODE '>' || true
SUB_COMMAND=reply subscriber service $ALICE $NODE ws.service 'at your service' || true
checks as_alice node "$BROWSER/wsconnect.js" --url "wss://127.0.0.1:$WS_PORT" --ca "$ROOT" --cert "$CERT.pem" --key "$CERT.key" \
    --tenant tenantA --binary "$MESH_BIN" --origin "$ORIGIN" --unlisted https://evil.example
once_in_order() {
    received out
    wait_for 5 received_lines out 20 && [ "$(received out)" = "$(printf 'ws.out ws-%d\n' {0..19})" ]
}
check 'a native subscriber gets what was published over WebSocket, each once and in order' once_in_order

say '-- the page in Chromium'
subscriber page $ALICE $NODE page.out || true
checks as_alice env "NODE_EXTRA_CA_CERTS=$ROOT" node "$BROWSER/browser.js" --url "wss://127.0.0.1:$WS_PORT" \
    --cert "$CERT.pem" --key "$CERT.key" --tenant tenantA --binary "$MESH_BIN" --page "$REPO/docs/examples/browser.html" \
    --port "$PAGE_PORT" --executable "$CHROMIUM" --directory "$MESH_DIR" --screenshot "$MESH_DIR/page.png"
from_page() {
    received page
    wait_for 5 received_lines page 1 && [ "$(received page)" = 'page.out from the page' ]
}
check 'a native subscriber gets what the page published, once' from_page

client $BOB $NODE pub marker end >/dev/null
# Beside the marker it gets the advisories of its own tenant's sessions.
only_own() {
    received foreign
    wait_for 5 grep -qx 'marker end' "$MESH_DIR/run/foreign.out" &&
        [ "$(received foreign | grep -v '^advisory\.[a-z]*\.region-a\.bob ')" = 'marker end' ]
}
check 'a subscriber of another tenant got nothing of it all' only_own
origin_logged() { grep -F "origin 'http://localhost:$PAGE_PORT' is not in nats_ws_allowed_origins" "$(log_file $NODE)"; }
check "the page's refused origin is in the log" origin_logged

summary || exit "$FAILED"
