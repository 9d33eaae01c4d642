#!/usr/bin/env bash
# The NATS client libraries, and bytes without a library, against a real nats-server and against a broker: the outcomes must
# be the same but for the differences that tests/clients/differences.toml lists. Installs what it needs into folders that git
# ignores. Ends with totals; fails when anything did.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

CLIENTS=$REPO/tests/clients
MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-clients.XXXXXX")
finish() {
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

"$CLIENTS/install.sh"

NODE=region-a-broker
ALICE=$MESH_DIR/agents/tenantA/alice@region-a
plan_with_free_ports "$REPO/mesh-configs/single.fabric.toml" >"$MESH_DIR/fabric.toml"
make_fabric
NATS_PORT=$(free_ports 1)
CONFIG=$MESH_DIR/nodes/$NODE/node.toml

# Certificates that must not get in: under another root; out of date; with two organisations, from the region's own CA.
REGION=$MESH_DIR/regions/region-a
REFUSED=$MESH_DIR/refused
"$CLIENTS/pki.py" foreign "$REFUSED"
leaf() { "$CLIENTS/pki.py" leaf "$REFUSED" "$1" "$2" --ca "$REGION/ca.pem" --ca-key "$REGION/ca.key" --chain "$REGION/ca.pem" "${@:3}"; }
leaf expired /O=tenantA/OU=region-a/CN=alice --expired
leaf two-o /O=tenantA/O=tenantB/OU=region-a/CN=alice
leaf unknown-tenant /O=tenantZ/OU=region-a/CN=alice

# The broker side is left out as long as the broker says itself that it has no NATS listener.
OTHER=()
if "$MESH_BIN" check "$CONFIG" -D "nats_port=$NATS_PORT" 2>&1 | grep -q 'nats_port: is not yet supported'; then
    say 'note: this broker does not serve NATS clients yet; the suites run against nats-server only'
else
    OTHER=(
        --other-url "tls://127.0.0.1:$NATS_PORT" --other-ca "${ALICE%/*}/root.pem"
        --other-cert "$ALICE.pem" --other-key "$ALICE.key" --other-denied T.tenantB.live.x
        --other-command "$MESH_BIN run -c $CONFIG -D nats_port=$NATS_PORT -D lame_duck_ms=300"
        --other-lame-duck-signal TERM --other-log "$MESH_DIR/broker.log" --other-settled
    )
    for name in foreign expired two-o unknown-tenant; do
        OTHER+=(--other-refused "$name=$REFUSED/$name.pem:$REFUSED/$name.key")
    done
fi

# compare ARGUMENT…: its output is the report, so it is shown whatever comes of it.
compare() { "$CLIENTS/compare.py" "$@"; }

if compare "${OTHER[@]}" --results "$MESH_DIR/results.json"; then pass 'every library and the bare protocol'; else fail 'every library and the bare protocol'; fi
if [ ${#OTHER[@]} -gt 0 ]; then
    # The comparison sees differences: without the list of those on purpose, the same results fail.
    if "$CLIENTS/compare.py" --from-results "$MESH_DIR/results.json" --differences /dev/null >/dev/null; then
        fail 'without the list, the differences are found'
    else
        pass 'without the list, the differences are found'
    fi
    # TLS before INFO on every connection; nats-server of that age cannot do it.
    if compare "${OTHER[@]}" --no-reference --tls-first --client nats-py --client nats.js --client async-nats \
        --scenario wildcards,headers,request_reply,no_responders,large_payload,certificates,reconnect; then
        pass 'every library, TLS first'
    else
        fail 'every library, TLS first'
    fi
fi
summary
