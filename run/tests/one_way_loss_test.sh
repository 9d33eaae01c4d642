#!/usr/bin/env bash
# An edge of which one direction is lost without a word: two brokers in network namespaces, and a firewall at one of them that
# drops what the other one sends. Both ends must say that the edge is down within two seconds - metric, health and the operators'
# socket alike, and no message crosses - whichever direction it is; and it must be up again by itself (case RB-43). Ends with
# totals; the exit code is the number of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# shellcheck source=run/netns-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../netns-lib.sh"
need_binary
need_netns

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-one-way.XXXXXX")
finish() {
    stop_subscribers
    stop_mesh >/dev/null
    netns_clean
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

# 10.78.<n>.2 is a broker as the watcher sees it, 10.77.0.1 and .2 are the ends of the edge.
LETTERS=(a b)
netns_add watch
for n in 0 1; do
    netns_add "${LETTERS[n]}"
    netns_join watch "${LETTERS[n]}" "watch$n" "10.78.$n"
done
netns_join a b edge0 10.77.0

{
    printf 'fabric = "pair"\noperator = "operator"\nsuperusers = []\n\n'
    for n in 0 1; do
        printf '[[region]]\nname = "region-%s"\n\n' "${LETTERS[n]}"
        printf '[[node]]\nname = "region-%s/broker-%s"\nrole = "region"\nhosts = ["10.78.%d.2", "127.0.0.1"]\nlisten = "0.0.0.0"\n' \
            "${LETTERS[n]}" "${LETTERS[n]}" "$n"
        printf 'broker_port = 33010\nquic_port = 33011\nbridge_port = 33012\nops_listen = "10.78.%d.2:33013"\n\n' "$n"
        printf '[[agent]]\nname = "ada"\nregion = "region-%s"\ntenant = "tenantA"\n\n' "${LETTERS[n]}"
    done
    printf '[[tenant]]\nid = "tenantA"\nregions = ["region-a", "region-b"]\n\n'
    printf '[[edge]]\nname = "a-b"\ndial = "region-a/broker-a"\naccept = "region-b/broker-b"\ntenants = ["*"]\n'
    printf 'address = "10.77.0.2:33012"\n'
} >"$MESH_DIR/fabric.toml"
make_fabric


node_of() { printf 'region-%s-broker-%s' "$1" "$1"; }
# Metrics are read from where everybody can be seen, and clients run beside their brokers.
HTTP_VIA=(in_netns watch)
beside() { printf '%s/run/%s.sh' "$MESH_DIR" "$1"; }
mkdir -p "$MESH_DIR/run"
for letter in "${LETTERS[@]}"; do
    # shellcheck disable=SC2016 # the wrapper expands them
    printf '#!/usr/bin/env bash\nexec ip netns exec %q %q "$@"\n' "$(netns "$letter")" "$MESH_BIN" >"$(beside "$letter")"
    chmod +x "$(beside "$letter")"
    # Local addresses are looked up after the firewall's rules, not before.
    ip -n "$(netns "$letter")" rule add pref 20 lookup local
    ip -n "$(netns "$letter")" rule del pref 0
    NODE_BIN=$(beside "$letter") start_node "$(node_of "$letter")"
done
for letter in "${LETTERS[@]}"; do await_node "$(node_of "$letter")" || die "$(node_of "$letter") does not start"; done

# says NODE VALUE: the metric, the health page and the operators' socket agree that the edge is up (1) or down (0).
says() {
    local state page
    metric_is "$1" "$2" glocal_edge_up edge=a-b || return 1
    page=$(http_get "$(node_key "$1" ops_listen)" /readyz)
    state=$("$MESH_BIN" edges --state-dir "$MESH_DIR/nodes/$1/state" --json | tr -d ' \n' | sed -n 's/.*"state":"\([a-z-]*\)".*/\1/p')
    say "$1: $page, edges says '$state'"
    [ "$page" = "ready, edges down: $((1 - $2))" ] || return 1
    if [ "$2" -eq 1 ]; then [ "$state" = up ]; else [ -n "$state" ] && [ "$state" != up ]; fi
}
both_say() { says "$(node_of a)" "$1" && says "$(node_of b)" "$1"; }

# publish TEXT: beside broker a, for whoever listens beside broker b.
publish() { MESH_BIN=$(beside a) client tenantA/ada@region-a "$(node_of a)" pub probe "$1"; }
heard() { grep -qxF "$1" "$MESH_DIR/run/ear.out"; }
crosses() {
    publish "$1" && heard "$1"
}

check 'both ends say that the edge is up' wait_for 20 both_say 1
MESH_BIN=$(beside b) subscriber ear tenantA/ada@region-b "$(node_of b)" probe --raw
check 'a message crosses' wait_for 10 crosses 'at first'

for lost in 'a b 10.77.0.1' 'b a 10.77.0.2'; do
    read -r from to address <<<"$lost"
    silent=$(metric "$(node_of "$to")" glocal_edge_failures_total edge=a-b state=silent)
    ip -n "$(netns "$to")" rule add pref 10 from "$address" blackhole
    began=$(now_ms)
    if wait_for 2 both_say 0; then
        pass "from $from to $to lost: both ends say so by metric, health and socket after $(($(now_ms) - began)) ms"
    else
        fail "from $from to $to lost: both ends say so within 2 s" "$(both_say 0)"
    fi
    check "from $from to $to lost: the end that hears nothing has a reason" \
        metric_at_least "$(node_of "$to")" $((silent + 1)) glocal_edge_failures_total edge=a-b state=silent
    publish "lost $from" || true
    check "from $from to $to lost: it goes on being down" both_say 0
    if heard "lost $from"; then fail "from $from to $to lost: nothing crosses an edge that is down"; else pass "from $from to $to lost: nothing crosses"; fi
    ip -n "$(netns "$to")" rule del pref 10
    began=$(now_ms)
    check "from $from to $to open: both ends say that the edge is up" wait_for 10 both_say 1
    check "from $from to $to open: a message crosses" wait_for 10 crosses "after $from"
    say "up again after $(($(now_ms) - began)) ms"
done

summary || exit "$FAILED"
