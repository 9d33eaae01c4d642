#!/usr/bin/env bash
# A dedicated edge between two brokers: each tenant on a connection of its own, under its own certificate where one is given.
# Between the brokers lies a relay that tells flows apart, counts their bytes and cuts one at a time. Each subscriber gets each
# message once; the bytes of a tenant are on its flow alone; a cut of one flow and a reload that takes one tenant touch no
# other; ends of different modes say so. Ends with totals; the exit code is the number of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary
command -v python3 >/dev/null || die "'python3' is missing" 'apt-get install python3'

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-dedicated.XXXXXX")
RELAY=
finish() {
    stop_subscribers
    stop_mesh >/dev/null
    [ -z "$RELAY" ] || kill "$RELAY" 2>/dev/null || true
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

A="region-a-broker-a"
B="region-b-broker-b"
EDGE=a-b
COUNT=200

# ── The plan: three tenants in both regions, of which the edge allows two; the relay is the edge's address ────────────────

RELAY_PORT=$(free_ports 1)
{
    cat <<'END'
fabric = "dedicated"
operator = "operator"

[[region]]
name = "region-a"
[[region]]
name = "region-b"

END
    for n in a b; do
        printf '[[node]]\nname = "region-%s/broker-%s"\nrole = "region"\nhosts = ["localhost", "127.0.0.1"]\nlisten = "127.0.0.1"\n\n' "$n" "$n"
    done
    for tenant in tenantA tenantB tenantC; do
        printf '[[tenant]]\nid = "%s"\nregions = ["region-a", "region-b"]\n\n' "$tenant"
        for n in a b; do printf '[[agent]]\nname = "%s-%s"\nregion = "region-%s"\ntenant = "%s"\n\n' "$tenant" "$n" "$n" "$tenant"; done
    done
    printf '[[edge]]\nname = "%s"\ndial = "region-a/broker-a"\naccept = "region-b/broker-b"\n' "$EDGE"
    printf 'tenants = ["tenantA", "tenantB"]\naddress = "127.0.0.1:%s"\n' "$RELAY_PORT"
} >"$MESH_DIR/plan.toml"
plan_with_free_ports "$MESH_DIR/plan.toml" >"$MESH_DIR/fabric.toml"
make_fabric
mkdir -p "$MESH_DIR/run"

# The edge is the last table of both files. tenantA has a certificate at both ends, tenantB none.
dedicate() {
    local node=$1 region=$2 broker=$3 dir=$MESH_DIR/nodes/$1
    "$MESH_BIN" pki issue --region-ca "$MESH_DIR/regions/$region" --tenant tenantA --agent "$broker" --dedicated \
        --out "$dir/tenantA" >/dev/null || return 1
    printf 'mode = "dedicated"\n[[edges.certificates]]\ntenant = "tenantA"\ncertificate = "tenantA/%s@%s.pem"\nkey = "tenantA/%s@%s.key"\n' \
        "$broker" "$region" "$broker" "$region" >>"$dir/node.toml"
    "$MESH_BIN" check "$dir/node.toml" | tee "$MESH_DIR/run/$node.check" && grep -q ': ok' "$MESH_DIR/run/$node.check"
}
check 'a certificate is issued for tenantA at a, and the file is right' dedicate $A region-a broker-a
check 'a certificate is issued for tenantA at b, and the file is right' dedicate $B region-b broker-b

"$REPO/run/udp_relay.py" "$RELAY_PORT" "$(node_key $B bridge_port)" "$MESH_DIR/run" 2>"$MESH_DIR/run/relay.err" &
RELAY=$!
for node in $B $A; do start_node "$node"; done

# ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

edges_json() { "$MESH_BIN" edges --state-dir "$MESH_DIR/nodes/$1/state" --json; }

# of_tenant NODE TENANT KEY: a value of the tenant's connection; nothing when there is none.
of_tenant() {
    edges_json "$1" | python3 -c '
import json, sys
edge = next(e for e in json.load(sys.stdin)["edges"] if e["name"] == sys.argv[1])
print(next((str(c[sys.argv[3]]) for c in edge["connections"] if c["tenant"] == sys.argv[2]), ""))' "$EDGE" "$2" "$3"
}

is() {
    say "is '$2', should be '$1'"
    [ "$2" = "$1" ]
}

tenant_is() { is "$4" "$(of_tenant "$1" "$2" "$3")"; }
both_up() { local node; for node in $A $B; do tenant_is "$node" tenantA state up && tenant_is "$node" tenantB state up || return 1; done; }

# flow_of TENANT: the number of its flow at the relay, from the address that b sees.
flow_of() { of_tenant $B "$1" remote | sed 's/.*://'; }
# bytes_of FLOW
bytes_of() { awk -v flow="$1" '$2 == flow { print $3 }' "$MESH_DIR/run/flows"; }
flows() { wc -l <"$MESH_DIR/run/flows"; }
flows_are() { is "$1" "$(flows)"; }
bridge_flow() {
    edges_json $B | python3 -c '
import json, sys
print(next(e["remote"] for e in json.load(sys.stdin)["edges"]).rsplit(":", 1)[1])'
}

for node in $A $B; do
    if ! await_node "$node" || ! wait_for 20 bridged "$node"; then
        fail "$node starts with its bridge" "$(tail -n 5 "$(log_file "$node")")"
        summary || exit "$FAILED"
    fi
done
check 'both tenants have their connections, at both ends' wait_for 10 both_up
check 'there are three flows: the bridge, and one for each tenant' flows_are 3
distinct() { is 3 "$(printf '%s\n' "$(flow_of tenantA)" "$(flow_of tenantB)" "$(bridge_flow)" | sort -u | wc -l)"; }
check 'they are those of the bridge and of the tenants' distinct
for node in $A $B; do
    check "$node: the peer of tenantA is there under its certificate" tenant_is "$node" tenantA certificate tenant
    check "$node: the peer of tenantB is there under its own" tenant_is "$node" tenantB certificate node
    check "$node: tenantC has no connection" tenant_is "$node" tenantC state ''
    check "$node: metrics count two connections" metric_is "$node" 2 glocal_edge_tenant_up edge=$EDGE
done
in_table() { "$MESH_BIN" edges --state-dir "$MESH_DIR/nodes/$A/state" | tee /dev/stderr | grep -q "${EDGE}[[:space:]]*tenantB[[:space:]]*up"; }
check 'the table shows them' in_table

# ── Each message once, on its tenant's flow alone ─────────────────────────────────────────────────────────────────────────

across() { publish "$1" a $A data.probe probe >/dev/null 2>&1 && wait_for 1 grep -qx probe "$MESH_DIR/run/$1.out"; }

for tenant in tenantA tenantB tenantC; do subscriber "$tenant" "$tenant/$tenant-b@region-b" $B 'data.>' --raw; done
publish() { client "$1/$1-$2@region-$2" "$3" pub "$4" "$5" "${@:6}"; }
for tenant in tenantA tenantB; do check "$tenant crosses" wait_for 10 across "$tenant"; done

# exact TENANT PREFIX COUNT: each message once and in order.
exact() {
    local found
    found=$(grep "^$2-" "$MESH_DIR/run/$1.out" | cut -c 1-40 | tr '\n' ' ')
    [ "$found" = "$(seq -f "$2-%g" -s ' ' 1 "$3") " ] || { say "$1 got $(wc -w <<<"$found") of $2: ${found:0:120}…"; return 1; }
}
for class in live ctrl tele bulk; do
    for tenant in tenantA tenantB tenantC; do
        publish "$tenant" a $A "data.$class" "$class-{{n}}" --count "$COUNT" --class "$class" >/dev/null 2>"$MESH_DIR/run/pub.err" ||
            fail "$tenant publishes on $class" "$(cat "$MESH_DIR/run/pub.err")"
    done
    for tenant in tenantA tenantB; do check "$tenant: each message on $class once, in order" wait_for 10 exact "$tenant" "$class" "$COUNT"; done
done
check 'tenantC heard nothing' test ! -s "$MESH_DIR/run/tenantC.out"

PAYLOAD=$(head -c 20000 /dev/zero | tr '\0' x)
before() { A0=$(bytes_of "$(flow_of tenantA)") B0=$(bytes_of "$(flow_of tenantB)") M0=$(bytes_of "$(bridge_flow)"); }
grown() { printf '%d' "$(($(bytes_of "$2") - $1))"; }
before
publish tenantA a $A data.big "$PAYLOAD" --count 100 --class bulk >/dev/null
on_its_own() { [ "$(grown "$A0" "$(flow_of tenantA)")" -ge 2000000 ]; }
check "tenantA's 2 MB are on its flow" wait_for 10 on_its_own
elsewhere() {
    say "the bridge grew by $(grown "$M0" "$(bridge_flow)"), tenantB's flow by $(grown "$B0" "$(flow_of tenantB)")"
    [ "$(grown "$M0" "$(bridge_flow)")" -lt 200000 ] && [ "$(grown "$B0" "$(flow_of tenantB)")" -lt 200000 ]
}
check 'and on no other' elsewhere

# ── A cut of one flow touches nobody else ─────────────────────────────────────────────────────────────────────────────────

UPS_B=$(of_tenant $B tenantB ups)
publish tenantB a $A data.steady 'steady-{{n}}' --count 1500 --rate 500 --class ctrl >/dev/null 2>"$MESH_DIR/run/steady.err" &
STEADY=$!
FLOW=$(flow_of tenantA)
printf '%s\n' "$FLOW" >"$MESH_DIR/run/cut"
publish tenantA a $A data.cut 'cut-{{n}}' --count 50 --class ctrl >/dev/null
moved() { both_up && [ "$(flow_of tenantA)" != "$FLOW" ]; }
check 'tenantA has another connection soon' wait_for 15 moved
check 'tenantA: what was published meanwhile comes, once' wait_for 15 exact tenantA cut 50
wait "$STEADY" || fail 'tenantB publishes all the while' "$(cat "$MESH_DIR/run/steady.err")"
check 'tenantB: each message once, in order' wait_for 10 exact tenantB steady 1500
check "tenantB's connection is the one that was there" tenant_is $B tenantB ups "$UPS_B"
check 'the bridge never went' metric_is $B 1 glocal_edge_ups_total edge=$EDGE

# ── A tenant taken by a reload loses its connection, alone; given back, it has one ────────────────────────────────────────

reload() { "$MESH_BIN" reload --state-dir "$MESH_DIR/nodes/$1/state"; }
narrow() { sed -i "s/^tenants = .*/tenants = [$1]/" "$MESH_DIR/nodes/$A/node.toml" && reload $A; }
FLOW=$(flow_of tenantA)
check 'tenantB is taken from the edge at a' narrow '"tenantA"'
gone() { tenant_is $A tenantB state '' && tenant_is $B tenantB state ''; }
check 'its connection is gone at both ends' wait_for 5 gone
publish tenantA a $A data.left 'left-{{n}}' --count 50 >/dev/null
check 'tenantA: each message once' wait_for 5 exact tenantA left 50
publish tenantB a $A data.left 'left-1' >/dev/null 2>&1 || true
check 'tenantA has the connection it had' is "$FLOW" "$(flow_of tenantA)"
check 'tenantB is given back' narrow '"tenantA", "tenantB"'
check 'it has a connection again' wait_for 10 both_up
check 'tenantB crosses again' wait_for 10 across tenantB
nothing_left() { ! grep -q '^left-' "$MESH_DIR/run/tenantB.out"; }
check 'tenantB got nothing while it was not allowed' nothing_left
check 'tenantA has the connection it had, still' is "$FLOW" "$(flow_of tenantA)"

# ── Ends of different modes ───────────────────────────────────────────────────────────────────────────────────────────────

share() {
    sed -i -e 's/^mode = "dedicated"/mode = "shared"/' -e '/^\[\[edges.certificates\]\]/,$d' "$MESH_DIR/nodes/$B/node.toml" && reload $B
}
check 'b is told to share the edge' share
mismatch() {
    local text
    text=$("$MESH_BIN" edges --state-dir "$MESH_DIR/nodes/$1/state")
    say "$text"
    grep -q "${EDGE}[[:space:]].*edge-mode" <<<"$text" && grep -q "the mode of edge '$EDGE' is" <<<"$text"
}
for node in $A $B; do check "$node: the edge says that the modes differ" wait_for 10 mismatch "$node"; done
for node in $A $B; do check "$node: and it is down" metric_is "$node" 0 glocal_edge_up edge=$EDGE; done

summary || exit "$FAILED"
