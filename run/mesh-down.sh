#!/usr/bin/env bash
# Ends the mesh that run/mesh-up.sh started, by its pid files. Certificates, state and logs stay.
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() { echo 'usage: run/mesh-down.sh [two-region|single] [--dir DIR]'; }

NAME=two-region
MESH_DIR=
while [ $# -gt 0 ]; do
    case $1 in
        two-region | single) NAME=$1 ;;
        --dir) MESH_DIR=${2:?--dir needs a directory} && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
MESH_DIR=${MESH_DIR:-$REPO/run/.state/$NAME}
[ -d "$MESH_DIR" ] || die "there is no mesh in '$MESH_DIR'"
MESH_DIR=$(cd "$MESH_DIR" && pwd)
if ! compgen -G "$MESH_DIR/run/*.pid" >/dev/null; then
    say "no node of '$MESH_DIR' is running"
    exit 0
fi
stop_mesh
