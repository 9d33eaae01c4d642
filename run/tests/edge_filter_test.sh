#!/usr/bin/env bash
# A hostile broker, built on the wire crate alone, at one end of an edge that carries tenantA and not tenantB. It opens lanes
# of tenantB, speaks for brokers that are not behind it, and sends what no broker sends: nothing of it is routed. And it
# listens: of everything that tenantB's agents publish, not a byte reaches it, counted on the wire. Ends with totals; the exit
# code is the number of failures.
#
#   run/tests/edge_filter_test.sh --messages 1000000     the figure in docs/PERFORMANCE.md
set -euo pipefail
# shellcheck source=run/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

MESSAGES=20000
while [ $# -gt 0 ]; do
    case $1 in
        --messages) MESSAGES=${2:?'--messages needs a number'} && shift ;;
        -h | --help) say 'usage: run/tests/edge_filter_test.sh [--messages N]' && exit 0 ;;
        *) say 'usage: run/tests/edge_filter_test.sh [--messages N]' >&2 && exit 2 ;;
    esac
    shift
done

LOG=$(mktemp "${TMPDIR:-/tmp}/glocal-filter.XXXXXX")
trap 'rm -f "$LOG"' EXIT

# holds DESCRIPTION TEST: a test of the integration suite that must be there and pass.
holds() {
    if (cd "$REPO" && GLOCAL_GUARDS_BUILD=1 GLOCAL_EDGE_MESSAGES=$MESSAGES cargo test --quiet --locked --test it -- --exact "$2") >"$LOG" 2>&1 &&
        grep -q '1 passed' "$LOG"; then
        pass "$1"
    else
        fail "$1" "$(tail -n 20 "$LOG")"
    fi
}

holds "out: of $MESSAGES messages of tenantB not a byte crosses, beside as many of tenantA" \
    mesh_edges::on_the_wire_there_is_not_a_byte_of_a_tenant_that_is_not_allowed
holds 'in: lanes of tenantB are skipped and counted, and who repeats it loses the bridge' \
    mesh_hostile_broker::attack_12_a_lane_of_a_tenant_outside_the_edges_set_is_skipped_and_repeats_close_the_bridge
holds 'in: a message speaks only for brokers that can be behind the edge' \
    mesh_hostile_broker::attack_12_a_message_speaks_only_for_brokers_behind_its_edge
holds 'in: hostile target lists cost their own frame and in the end the bridge' \
    mesh_hostile_broker::attack_28_hostile_target_lists_cost_their_own_frame
holds 'in: a second broker under the name of one that lives is refused' \
    mesh_hostile_broker::a_second_broker_with_the_name_of_one_that_lives_is_refused

summary || exit "$FAILED"
