#!/usr/bin/env bash
# Every kind of client to every other: the command line, nats-py, nats.js and async-nats publish in region-a; the same four
# subscribe there, at the global and in region-b, for the publishers' tenant and for another one. The own tenant's get each
# message once, the other's none. Installs the libraries into folders that git ignores. Ends with totals; the exit code is the
# number of failures.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
need_binary

MESH_DIR=$(mktemp -d "${TMPDIR:-/tmp}/glocal-matrix.XXXXXX")
finish() {
    stop_mesh >/dev/null
    if [ "$FAILED" -gt 0 ] || [ -n "${KEEP:-}" ]; then say "logs and certificates are kept in $MESH_DIR"; else rm -rf "$MESH_DIR"; fi
}
trap finish EXIT

"$REPO/tests/clients/install.sh" python javascript rust

# The two-region plan, with agents of both tenants at the global as well.
{
    plan_with_free_ports "$REPO/mesh-configs/two-region/fabric.toml" |
        sed 's/^regions = \["region-a", "region-b"\]/regions = ["global", "region-a", "region-b"]/'
    printf '\n[[agent]]\nname = "%s"\nregion = "global"\ntenant = "%s"\n' ada tenantA bea tenantB
} >"$MESH_DIR/fabric.toml"
make_fabric

mapfile -t NODES < <(nodes)
for node in "${NODES[@]}"; do start_node "$node"; done
for node in "${NODES[@]}"; do
    if ! await_node "$node" || ! wait_for 20 bridged "$node"; then
        fail "$node starts with its bridges" "$(tail -n 5 "$(log_file "$node")")"
        summary || exit "$FAILED"
    fi
done

"$REPO/tests/clients/matrix.py" --mesh "$MESH_DIR" --binary "$MESH_BIN" || FAILED=$?
[ "$FAILED" -eq 0 ] || exit "$FAILED"
