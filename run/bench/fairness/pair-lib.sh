#!/usr/bin/env bash
# Two brokers of this build, left and right, with the edge 'link' between them, and tenants with an agent at each. Sourced
# after link-lib.sh, never run.
#
# What is set here is for the script that sources this, and the other way round.
# shellcheck disable=SC2034,SC2153

# Where clients reach a broker.
declare -A NATIVE_AT=()
PORTS=()

# node SIDE ROLE HOST PORT…: of the plan.
node() {
    local hosts
    hosts=$(printf '"%s"\n' localhost "${HOST[@]}" "${LINK_HOST[@]}" | sort -u | paste -sd,)
    printf '[[node]]\nname = "region-%s/broker"\nrole = "%s"\nhosts = [%s]\nlisten = "0.0.0.0"\n' "$1" "$2" "$hosts"
    printf 'broker_port = %s\nquic_port = %s\nbridge_port = %s\nops_listen = "%s:%s"\n\n' "$4" "$5" "$6" "$3" "$7"
}

# make_pair TENANT[:WEIGHT]…: the plan and what comes of it, and contexts TENANT-left and TENANT-right. The link is open.
make_pair() {
    local tenant side
    if [ "$VIA" = netns ]; then PORTS=(32010 32011 32012 32080 32010 32011 32012 32080); else mapfile -t PORTS < <(free_ports 8); fi
    NATIVE_AT=([left]=${HOST[left]}:${PORTS[0]} [right]=${HOST[right]}:${PORTS[4]})
    {
        printf 'fabric = "fairness"\noperator = "operator"\nsuperusers = []\n\n'
        for side in left right; do printf '[[region]]\nname = "region-%s"\n\n' "$side"; done
        node left global "${HOST[left]}" "${PORTS[@]:0:4}"
        node right region "${HOST[right]}" "${PORTS[@]:4:4}"
        printf '[[edge]]\nname = "link"\ndial = "region-right/broker"\naccept = "region-left/broker"\naddress = "%s:%s"\ntenants = ["*"]\n\n' \
            "${LINK_HOST[left]}" "${PORTS[2]}"
        for tenant in "$@"; do
            printf '[[tenant]]\nid = "%s"\nregions = ["region-left", "region-right"]\n' "${tenant%:*}"
            [[ $tenant != *:* ]] || printf 'weight = %s\n' "${tenant##*:}"
            for side in left right; do printf '\n[[agent]]\nname = "agent"\nregion = "region-%s"\ntenant = "%s"\n' "$side" "${tenant%:*}"; done
            printf '\n'
        done
    } >"$MESH_DIR/fabric.toml"
    make_fabric
    for tenant in "$@"; do
        tenant=${tenant%:*}
        for side in left right; do
            "$MESH_BIN" context add "$tenant-$side" --server "${NATIVE_AT[$side]}" --root "$MESH_DIR/agents/$tenant/root.pem" \
                --cert "$MESH_DIR/agents/$tenant/agent@region-$side.pem" --key "$MESH_DIR/agents/$tenant/agent@region-$side.key" >/dev/null
        done
    done
}

# start RATE|'': both brokers, the edge configured with the rate if one is given.
start() {
    local side config
    dial left "${PORTS[2]}"
    sed -i "s|^addresses = .*|addresses = [\"$DIAL_AT\"]|" "$MESH_DIR/nodes/region-right-broker/node.toml"
    for side in left right; do
        config=$MESH_DIR/nodes/region-$side-broker/node.toml
        sed -i '/^rate = /d' "$config"
        [ -z "$1" ] || sed -i "s|^name = \"link\"\$|&\nrate = \"$1\"|" "$config"
        mkdir -p "$MESH_DIR/run"
        if [ "$VIA" = netns ]; then printf '#!/usr/bin/env bash\nexec ip netns exec %q %q "$@"\n' "$(netns "$side")" "$MESH_BIN"; else
            printf '#!/usr/bin/env bash\nexec %q "$@"\n' "$MESH_BIN"
        fi >"$MESH_DIR/run/$side.sh"
        chmod +x "$MESH_DIR/run/$side.sh"
        NODE_BIN=$MESH_DIR/run/$side.sh start_node "region-$side-broker"
    done
    for side in left right; do
        if ! await_node "region-$side-broker" || ! wait_for 20 bridged "region-$side-broker"; then die "region-$side/broker does not start"; fi
    done
}
