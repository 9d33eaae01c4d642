#!/usr/bin/env bash
# Installs the NATS client libraries that the suites run, each in its pinned version, into folders that git ignores.
# Run again, it does only what is missing. It says at once all that this machine lacks, and how to get it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
    cat <<'END'
usage: tests/clients/install.sh [--check] [python] [javascript] [rust] [nats-server]

Without names: everything.
  python       nats-py into python/.venv, from PyPI
  javascript   @nats-io/transport-node into javascript/node_modules, from npm
  rust         async-nats, built into rust/target, from the crate registry
  nats-server  Debian's package, unpacked into .nats-server unless the machine has a nats-server; nothing is started
--check only says what is missing.
END
}

CHECK=false
WANTED=()
for argument in "$@"; do
    case $argument in
        --check) CHECK=true ;;
        python | javascript | rust | nats-server) WANTED+=("$argument") ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
done
[ ${#WANTED[@]} -gt 0 ] || WANTED=(python javascript rust nats-server)

LACKS=()
lacks() { LACKS+=("$1: $2"); }

has() { command -v "$1" >/dev/null 2>&1; }

# Where Debian puts it is not on every user's PATH.
nats_server() { PATH=$PWD/.nats-server/usr/sbin:$PATH:/usr/sbin:/usr/local/sbin command -v nats-server; }

look_python() {
    if ! has python3; then
        lacks python3 'apt-get install python3 python3-venv'
    elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        lacks 'python3 3.11 or newer' 'compare.py reads TOML with the standard library'
    elif ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        lacks python3-venv 'apt-get install python3-venv'
    fi
}

look_javascript() {
    if ! has node; then
        lacks node 'Node.js 18 or newer: apt-get install nodejs npm'
    elif ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 18 ? 1 : 0)'; then
        lacks 'node 18 or newer' "this one is $(node --version)"
    fi
    has npm || lacks npm 'apt-get install npm'
}

look_rust() {
    has cargo || lacks cargo 'install Rust: https://rustup.rs'
    has cc || has gcc || lacks 'a C compiler' 'apt-get install gcc'
}

look_nats_server() {
    nats_server >/dev/null || has apt-get || lacks nats-server 'its package, 2.9 or newer, by hand'
    has openssl || lacks openssl 'apt-get install openssl'
}

# stale STAMP FILE…: whether something was changed since what STAMP stands for was installed.
stale() {
    local stamp=$1
    shift
    [ ! -e "$stamp" ] || ! cat "$@" | cmp -s - "$stamp"
}

install_python() {
    local stamp=python/.venv/installed
    if stale "$stamp" python/requirements.txt || ! python/.venv/bin/python -c 'import nats' 2>/dev/null; then
        rm -rf python/.venv
        python3 -m venv python/.venv
        python/.venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement python/requirements.txt
        cp python/requirements.txt "$stamp"
    fi
    printf 'python       %s\n' "$(python/.venv/bin/python -m pip list --disable-pip-version-check --format freeze | grep nats-py)"
}

install_javascript() {
    local stamp=javascript/node_modules/.installed
    if stale "$stamp" javascript/package-lock.json; then
        (cd javascript && npm ci --silent --ignore-scripts)
        cp javascript/package-lock.json "$stamp"
    fi
    printf 'javascript   @nats-io/transport-node %s\n' \
        "$(node -p 'require("./javascript/node_modules/@nats-io/transport-node/package.json").version')"
}

install_rust() {
    [ -x rust/target/debug/nats-client-rust ] || printf 'rust         the first build takes a few minutes\n'
    # A target directory of its own, whatever the environment says: the main build's has other features.
    cargo build --quiet --locked --manifest-path rust/Cargo.toml --target-dir rust/target
    printf 'rust         async-nats %s\n' "$(sed -n '/^name = "async-nats"/{n;s/version = "\(.*\)"/\1/p}' rust/Cargo.lock)"
}

install_nats_server() {
    if ! nats_server >/dev/null; then
        local fresh=.nats-server.new
        rm -rf "$fresh" && mkdir "$fresh"
        # Unpacked, not installed: the package would start a server on the usual port.
        (cd "$fresh" && apt-get download -qq nats-server >/dev/null 2>&1) ||
            { [ "$(id -u)" -ne 0 ] || apt-get update -qq >/dev/null 2>&1; (cd "$fresh" && apt-get download -qq nats-server >/dev/null); } ||
            { printf 'error: nats-server cannot be downloaded\nhint: apt-get update; apt-get install nats-server\n' >&2; exit 1; }
        dpkg-deb -x "$fresh"/nats-server_*.deb "$fresh"
        rm -rf .nats-server "$fresh"/*.deb
        mv "$fresh" .nats-server
    fi
    printf 'nats-server  %s, %s\n' "$("$(nats_server)" --version)" "$(nats_server)"
}

for part in "${WANTED[@]}"; do "look_${part//-/_}"; done
if [ ${#LACKS[@]} -gt 0 ]; then
    printf 'error: this machine lacks\n' >&2
    printf '  %s\n' "${LACKS[@]}" >&2
    exit 1
fi
$CHECK && printf 'nothing is missing\n' && exit 0
for part in "${WANTED[@]}"; do "install_${part//-/_}"; done
