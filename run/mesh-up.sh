#!/usr/bin/env bash
# Starts a mesh on this machine: its certificates and signed bundle when they are missing, then one process per broker.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'END'
usage: run/mesh-up.sh [two-region|single] [--dir DIR] [--plan FILE] [--dynamic]

  two-region   a global and two regions (the default); single: one broker
  --dir DIR    where certificates, state, logs and pid files go (run/.state/<name>)
  --plan FILE  another plan than mesh-configs/two-region/fabric.toml
  --dynamic    free ports instead of the plan's

MESH_BIN names another binary than target/release/glocal. run/mesh-down.sh ends the mesh.
END
}

NAME=two-region
PLAN=
DYNAMIC=false
MESH_DIR=
while [ $# -gt 0 ]; do
    case $1 in
        two-region | single) NAME=$1 ;;
        --dir) MESH_DIR=${2:?--dir needs a directory} && shift ;;
        --plan) PLAN=${2:?--plan needs a file} && shift ;;
        --dynamic) DYNAMIC=true ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
case $NAME in
    two-region) PLAN=${PLAN:-$REPO/mesh-configs/two-region/fabric.toml} ;;
    single) PLAN=${PLAN:-$REPO/mesh-configs/single.fabric.toml} ;;
esac
MESH_DIR=${MESH_DIR:-$REPO/run/.state/$NAME}
need_binary
mkdir -p "$MESH_DIR/run"
MESH_DIR=$(cd "$MESH_DIR" && pwd)

for file in "$MESH_DIR"/run/*.pid; do
    if [ -e "$file" ] && alive "$file" && is_node "$file"; then
        die "the mesh in '$MESH_DIR' is running already" "run/mesh-down.sh --dir '$MESH_DIR'"
    fi
done

# The plan is kept with what was made of it, so that the next start finds the same ports.
if [ ! -e "$MESH_DIR/fabric.toml" ]; then
    if $DYNAMIC; then plan_with_free_ports "$PLAN"; else cat "$PLAN"; fi >"$MESH_DIR/fabric.toml.new"
    mv "$MESH_DIR/fabric.toml.new" "$MESH_DIR/fabric.toml"
fi
make_fabric

mapfile -t NODES < <(nodes)
for node in "${NODES[@]}"; do start_node "$node"; done
for node in "${NODES[@]}"; do
    if ! await_node "$node"; then
        stop_mesh >&2
        die "$node did not start; its last lines are above" "the whole log: $(log_file "$node")"
    fi
done
for node in "${NODES[@]}"; do
    wait_for 20 bridged "$node" || say "warning: an edge of $node is not up yet; see $(log_file "$node")"
done

printf '\n%-24s %-8s %-22s %-22s %-22s %s\n' NODE PID CLIENTS NATS METRICS LOG
for node in "${NODES[@]}"; do
    address=$(node_key "$node" listen_address)
    nats=$(node_key "$node" nats_port)
    printf '%-24s %-8s %-22s %-22s %-22s %s\n' "$node" "$(cat "$(pid_file "$node")")" \
        "$address:$(node_key "$node" broker_port)" "${nats:+$address:$nats}" "$(node_key "$node" ops_listen)" "$(log_file "$node")"
done

# A context for each agent, at the broker of its region, so that no certificate need be typed.
node_of() {
    local node
    for node in "${NODES[@]}"; do
        [ "$(node_key "$node" regionname)" = "$1" ] && printf '%s' "$node" && return
    done
    printf '%s' "${NODES[0]}"
}
export GLOCAL_CONFIG_DIR=$MESH_DIR/contexts
TRY=
for certificate in "$MESH_DIR"/agents/*/*@*.pem; do
    who=$(basename "$certificate" .pem)
    tenant=$(basename "$(dirname "$certificate")")
    "$MESH_BIN" context add "${who%%@*}" --force --server "127.0.0.1:$(node_key "$(node_of "${who##*@}")" broker_port)" \
        --root "$(dirname "$certificate")/root.pem" --cert "$certificate" --key "${certificate%.pem}.key"
    # The first agent that is no superuser is the one to try.
    grep '^superusers' "$MESH_DIR/fabric.toml" | grep -qF "\"$tenant\"" || TRY=${TRY:-${who%%@*}}
done
cat <<END

Try:
  export GLOCAL_CONFIG_DIR='$GLOCAL_CONFIG_DIR'
  alias glocal='$MESH_BIN'
  glocal context list
  glocal whoami --context $TRY
  glocal sub --context $TRY 'orders.>'
  glocal pub --context $TRY orders.new hello
  '$REPO/run/mesh-down.sh' --dir '$MESH_DIR'
END
