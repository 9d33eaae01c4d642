#!/usr/bin/env bash
# Helpers for meshes in network namespaces of their own: each broker in one, each edge a pair of virtual interfaces, and one
# namespace for whoever watches, with a link to every broker. Sourced after lib.sh, never run.

# Prefix of the namespaces; unique for this process, so that what is removed is our own.
NETNS_PREFIX=glocal$$

netns() { printf '%s-%s' "$NETNS_PREFIX" "$1"; }

# need_netns: network namespaces can be made here.
need_netns() {
    if ! command -v ip >/dev/null && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        say 'iproute2 is missing: apt-get install iproute2'
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends iproute2; } >/dev/null 2>&1 || true
    fi
    command -v ip >/dev/null || die "'ip' is missing" "apt-get install iproute2"
    ip netns add "$(netns probe)" 2>/dev/null || die 'network namespaces cannot be made here' 'run as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN'
    ip netns del "$(netns probe)"
}

# netns_add NAME: a namespace with its loopback up.
netns_add() {
    ip netns add "$(netns "$1")"
    ip -n "$(netns "$1")" link set lo up
}

# netns_join A B INTERFACE NETWORK: a link between two namespaces; A has NETWORK.1, B has NETWORK.2.
netns_join() {
    ip link add "$3" netns "$(netns "$1")" type veth peer name "$3" netns "$(netns "$2")"
    ip -n "$(netns "$1")" addr add "$4.1/30" dev "$3"
    ip -n "$(netns "$2")" addr add "$4.2/30" dev "$3"
    ip -n "$(netns "$1")" link set "$3" up
    ip -n "$(netns "$2")" link set "$3" up
}

# in_netns NAME COMMAND…
in_netns() {
    local name=$1
    shift
    ip netns exec "$(netns "$name")" "$@"
}

# Removes every namespace of this process.
netns_clean() {
    local name
    ip netns list 2>/dev/null | awk -v prefix="$NETNS_PREFIX-" 'index($1, prefix) == 1 { print $1 }' |
        while read -r name; do ip netns del "$name" 2>/dev/null || true; done
}
