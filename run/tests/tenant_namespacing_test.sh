#!/usr/bin/env bash
# Two tenants and a superuser on a mesh of one global and two regions: Cresco's twelve checks of tenant namespacing, then
# what is delivered and what is not. Ends with totals; the exit code is the number of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-mesh.XXXXXX")
finish() {
    stop_subscribers
    stop_mesh >/dev/null
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

GLOBAL=global-broker-g
A=region-a-broker-a
B=region-b-broker-b
ALICE=tenantA/alice@region-a
ANNA=tenantA/anna@region-b
BOB=tenantB/bob@region-a
BERTA=tenantB/berta@region-b
ADMIN=cresco-system/admin@global

plan_with_free_ports "$REPO/mesh-configs/two-region/fabric.toml" >"$MESH_DIR/fabric.toml"
make_fabric
for node in $GLOBAL $A $B; do start_node "$node"; done
for node in $GLOBAL $A $B; do
    if ! await_node "$node"; then
        fail "$node starts" "$(tail -n 5 "$(log_file "$node")")"
        summary || exit "$FAILED"
    fi
done

# ── Helpers of this script ────────────────────────────────────────────────────

no_deny() { ! grep -F DENY "$(log_file "$1")"; }

# may_subscribe WHO NODE FILTER: the broker confirms.
may_subscribe() {
    local printed
    printed=$(client "$1" "$2" sub "$3" --timeout 0.2 2>&1) || { say "$printed"; return 1; }
    grep -qxF subscribed <<<"$printed"
}

# refused ACCESS WHO NODE DESTINATION COMMAND…: the command fails with exit code 1 and says DENY.
refused() {
    local access=$1 who=$2 node=$3 destination=$4 printed status=0
    shift 4
    printed=$(client "$who" "$node" "$@" 2>&1) || status=$?
    say "$printed"
    [ "$status" -eq 1 ] || { say "exit code $status, should be 1"; return 1; }
    grep -qF "DENY $access '$destination'" <<<"$printed"
}

denied_read() { refused READ "$1" "$2" "$3" sub "$3" --count 1 --timeout 5; }
denied_write() { refused WRITE "$1" "$2" "$3" pub "$3" hello --ack; }

# logged NODE ACCESS DESTINATION WHO: the log has Cresco's line, to the letter.
logged() {
    local tenant=${4%%/*} name=${4##*/} line
    line="DENY $2 '$3' for CrescoIdentity{tenant=$tenant, region=${name##*@}, agent=${name%%@*}, uid="
    grep -F "$line" "$(log_file "$1")" |
        grep -qE "uid=[0-9a-f]{16}\} : cross-tenant namespaced dest \(own tenant '$tenant'\)" || {
        say "no such line: $line<16 hex digits>} : cross-tenant namespaced dest (own tenant '$tenant')"
        grep -F DENY "$(log_file "$1")"
        return 1
    }
}

publish() { client "$1" "$2" pub "$3" "$4" "${@:5}"; }

# ── Cresco's twelve ───────────────────────────────────────────────────────────

check '1  region-a is bridged to the global' wait_for 20 bridged $A
check '2  region-b is bridged to the global' wait_for 20 bridged $B
check '3  no DENY in the log of the global after bring-up' no_deny $GLOBAL
check '4  no DENY in the log of region-a after bring-up' no_deny $A
check '5  no DENY in the log of region-b after bring-up' no_deny $B
check '6  tenantA subscribes to its own' may_subscribe $ALICE $A 'T.tenantA.>'
check "7  tenantA is denied tenantB's" denied_read $ALICE $A 'T.tenantB.>'
check "8  tenantB is denied tenantA's" denied_read $BERTA $B 'T.tenantA.>'
check '9  tenantA is denied all tenants' denied_read $ALICE $A 'T.*.>'
check "10 the superuser subscribes to tenantA's" may_subscribe $ADMIN $A 'T.tenantA.>'
check "11 the superuser subscribes to tenantB's" may_subscribe $ADMIN $B 'T.tenantB.>'
check '12 the superuser subscribes to all tenants' may_subscribe $ADMIN $GLOBAL 'T.*.>'

# ── Beyond them: refusals ─────────────────────────────────────────────────────

check 'the refusal of 7 is logged in the form of Cresco' logged $A READ 'T.tenantB.>' $ALICE
check 'the refusal of 8 is logged in the form of Cresco' logged $B READ 'T.tenantA.>' $BERTA
check 'the refusal of 9 is logged in the form of Cresco' logged $A READ 'T.*.>' $ALICE
check "tenantA is denied to publish to tenantB's" denied_write $ALICE $A T.tenantB.ctrl.orders.new
check "tenantB is denied to publish to tenantA's" denied_write $BERTA $B T.tenantA.ctrl.orders.new
check 'the refusal of a publish is logged in the form of Cresco' logged $A WRITE T.tenantB.ctrl.orders.new $ALICE
check "tenantA is denied one class of tenantB's" denied_read $ALICE $A 'T.tenantB.live.orders.*'
check 'tenantA is denied all tenants of one class' denied_read $ALICE $A 'T.*.live.>'
check 'a queue group opens no door' refused READ $ALICE $A 'T.tenantB.>' sub 'T.tenantB.>' --queue workers --count 1 --timeout 5
check 'a composite destination is refused' refused WRITE $ALICE $A 'T.tenantA.ctrl.x,T.tenantB.ctrl.y' \
    pub 'T.tenantA.ctrl.x,T.tenantB.ctrl.y' hello --ack
check 'refusals are counted by tenant and reason' metric_at_least $A 3 glocal_denied_total tenant=tenantA reason=cross-tenant

# ── Beyond them: what is delivered ────────────────────────────────────────────

subscriber anna $ANNA $B 'orders.>' || true
subscriber berta $BERTA $B 'orders.>' || true
subscriber bob $BOB $A 'orders.>' || true
subscriber admin $ADMIN $GLOBAL 'T.*.>' || true

# across SUBSCRIBER WHO NODE: interest crosses the mesh soon after a subscription; this says when WHO is heard.
across() {
    publish "$2" "$3" orders.probe "from $2" >/dev/null 2>&1
    wait_for 1 grep -qF "orders.probe from $2" "$MESH_DIR/run/$1.out"
}
check "tenantA's interest in region-b reaches region-a" wait_for 10 across anna $ALICE $A
check "tenantB's interest in region-b reaches region-a" wait_for 10 across berta $BOB $A

for n in 1 2 3; do publish $ALICE $A orders.new "from-alice-$n" --ack >/dev/null || true; done
publish $ALICE $A orders.end over --ack >/dev/null || true
check 'messages of tenantA cross region-a, global and region-b' wait_for 10 grep -q 'orders.end over' "$MESH_DIR/run/anna.out"
once_in_order() {
    received anna
    [ "$(received anna | grep from-alice)" = "$(printf 'orders.new from-alice-%d\n' 1 2 3)" ]
}
check 'each arrives once, and in order' once_in_order

publish $BOB $A orders.new from-bob --ack >/dev/null || true
check "messages of tenantB cross as well" wait_for 10 grep -q from-bob "$MESH_DIR/run/berta.out"
only_own() { received "$1" && ! received "$1" | grep -q "$2"; }
check "tenantB's subscriber in region-b got nothing of tenantA on the same name" only_own berta from-alice
check "tenantB's subscriber in region-a got nothing of tenantA on the same name" only_own bob from-alice
check "tenantA's subscriber in region-b got nothing of tenantB on the same name" only_own anna from-bob
received_both() {
    received admin
    received admin | grep -qE '^T\.tenantA\.[a-z]+\.orders\.new from-alice-3$' &&
        received admin | grep -qE '^T\.tenantB\.[a-z]+\.orders\.new from-bob$'
}
check 'the superuser sees both' wait_for 10 received_both

# ── Beyond them: request and reply ────────────────────────────────────────────

SUB_COMMAND=reply subscriber service $ANNA $B time.now noon || true
# answered WHO NODE: a request gets the answer of tenantA's service.
answered() { client "$1" "$2" request time.now '' --timeout 2 2>&1 | grep -q noon; }
unanswered() {
    local printed status=0
    printed=$(client "$1" "$2" request time.now '' --timeout 2 2>&1) || status=$?
    say "exit code $status: $printed"
    [ "$status" -eq 1 ] && ! grep -q noon <<<"$printed"
}
check 'a request of tenantA in region-a is answered in region-b' wait_for 10 answered $ALICE $A
check "tenantB's request on the same name finds nobody" unanswered $BOB $A

summary || exit "$FAILED"
