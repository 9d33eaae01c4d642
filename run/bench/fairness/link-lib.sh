#!/usr/bin/env bash
# Two places, left and right, a link between them, and a third place, load, that reaches both without it. Either they are
# network namespaces, and 'tc tbf' shapes the link; or all three are this machine, and whoever dials over the link dials
# tbf-proxy. Sourced after lib.sh and netns-lib.sh, never run.
#
# What is set here is for the script that sources this, and the other way round.
# shellcheck disable=SC2034,SC2153

# netns or proxy.
VIA=
# Where clients reach a place, and where the other side reaches it over the link: addresses without ports.
declare -A HOST=() LINK_HOST=()
SHAPED=false
PROXIES=()

# can_netns: whether there can be network namespaces and shaped links here.
can_netns() { [ "$(id -u)" -eq 0 ] && (need_netns) >/dev/null 2>&1 && command -v tc >/dev/null; }

# link_way: VIA is what was asked for, or the first of both that can be had.
link_way() {
    [ -n "$VIA" ] || { if can_netns; then VIA=netns; else VIA=proxy; fi; }
    case $VIA in netns | proxy) ;; *) die "there is no way '$VIA'" 'netns or proxy' ;; esac
}

# link_open: makes the places.
link_open() {
    local name
    case $VIA in
        netns)
            need_netns
            command -v tc >/dev/null || die "'tc' is missing" 'apt-get install iproute2, or --via proxy'
            for name in left right load; do netns_add "$name"; done
            netns_join left right shared 10.76.0
            netns_join load left to-left 10.76.1
            netns_join load right to-right 10.76.2
            HOST=([left]=10.76.1.2 [right]=10.76.2.2) LINK_HOST=([left]=10.76.0.1 [right]=10.76.0.2)
            HTTP_VIA=(in_netns load)
            ;;
        proxy)
            [ -x "$PROXY_BIN" ] || die "'$PROXY_BIN' is not built" 'cargo build --release --example tbf-proxy'
            HOST=([left]=127.0.0.1 [right]=127.0.0.1) LINK_HOST=([left]=127.0.0.1 [right]=127.0.0.1)
            ;;
    esac
}

link_close() {
    link_rest
    [ "$VIA" != netns ] || netns_clean
}

# exec_in PLACE COMMAND…: in place of this shell, so that its process is the command's.
exec_in() {
    local place=$1
    shift
    if [ "$VIA" = netns ]; then exec ip netns exec "$(netns "$place")" "$@"; else exec "$@"; fi
}

# in_place PLACE COMMAND…
in_place() { (exec_in "$@"); }

# shape on|off: the link, in both directions. The buffer holds a third of a second, as a socket's or a router's does.
shape() {
    local side
    SHAPED=false
    [ "$1" = off ] || SHAPED=true
    [ "$VIA" = netns ] || return 0
    for side in left right; do
        ip netns exec "$(netns "$side")" tc qdisc del dev shared root 2>/dev/null || true
        ! $SHAPED || ip netns exec "$(netns "$side")" tc qdisc add dev shared root tbf rate "${MBIT}mbit" burst 16kb limit "$((MBIT * 1000000 / 24))"
    done
}

# dial SIDE PORT: DIAL_AT is where the other side reaches this port over the link.
dial() {
    local ready
    DIAL_AT=${LINK_HOST[$1]}:$2
    { [ "$VIA" = proxy ] && $SHAPED; } || return 0
    ready=$MESH_DIR/proxy.${#PROXIES[@]}
    rm -f "$ready.at"
    "$PROXY_BIN" --to "$DIAL_AT" --rate "$MBIT" --ready-file "$ready.at" >>"$ready.json" 2>>"$ready.err" </dev/null &
    PROXIES+=("$!")
    wait_for 10 test -s "$ready.at" || die "tbf-proxy did not start: $(tail -n 3 "$ready.err")"
    DIAL_AT=$(cat "$ready.at")
}

# Ends what dial has started; what each carried and dropped is then in its file.
link_rest() {
    end_children "${PROXIES[@]}"
    PROXIES=()
}
