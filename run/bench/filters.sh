#!/usr/bin/env bash
# What a million filters of a thousand tenants cost one broker, whether tenants pay for each other's, and what ten million
# cost a mesh of a hundred simulated brokers. Ends with lines "goal <name> <measured> <bound> ok|short"; fails when one is
# short.
set -euo pipefail
# A binary that is named is taken as it is.
BUILD=true
[ -z "${SIM_BIN:-}" ] || BUILD=false
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

usage() {
    cat <<'END'
usage: run/bench/filters.sh [--filters N] [--tenants N] [--mesh-filters N] [--brokers N]

  --filters N        filters of one broker (default 1000000)
  --tenants N        tenants (default 1000)
  --mesh-filters N   filters of all brokers of a mesh (default 10000000, which takes about 5 GiB)
  --brokers N        brokers of the mesh (default 100)

SIM_BIN names another glocal-sim than the one that this script builds in target/release.
END
}

FILTERS=1000000
TENANTS=1000
MESH_FILTERS=10000000
BROKERS=100
while [ $# -gt 0 ]; do
    case $1 in
        --filters) FILTERS=${2:?'--filters needs a number'} && shift ;;
        --tenants) TENANTS=${2:?'--tenants needs a number'} && shift ;;
        --mesh-filters) MESH_FILTERS=${2:?'--mesh-filters needs a number'} && shift ;;
        --brokers) BROKERS=${2:?'--brokers needs a number'} && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

SIM_BIN=${SIM_BIN:-$TARGET_DIR/release/glocal-sim}
if $BUILD; then (cd "$REPO" && cargo build --release --quiet -p glocal-sim); fi
[ -x "$SIM_BIN" ] || die "'$SIM_BIN' is not built" "cargo build --release -p glocal-sim"

OUT=$(mktemp "${TMPDIR:-/tmp}/glocal-filters.XXXXXX")
SHORT=0
# measure ARGUMENTS: a process of its own each, so that memory of one measurement is not that of another.
measure() {
    "$SIM_BIN" --tenants "$TENANTS" "$@" >"$OUT" || SHORT=1
    grep '^goal ' "$OUT" >>"$OUT.goals" || true
    grep -v '^goal ' "$OUT" || true
}
trap 'rm -f "$OUT" "$OUT.goals"' EXIT

measure --filters "$FILTERS"
measure --filters "$FILTERS" --beside
measure --filters "$MESH_FILTERS" --brokers "$BROKERS"
cat "$OUT.goals"
[ "$SHORT" -eq 0 ]
