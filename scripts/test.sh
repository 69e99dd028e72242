#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   bash scripts/test.sh [pytest arguments]
#
# Set-up, style, types, layers, tests. With arguments: set-up, then pytest with them alone.
# FLASHRT_TEST_WORKERS: test processes (default 2), each in a ROS domain of its own; a file's tests
# stay in one.

set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup.sh"
# shellcheck source=scripts/env.sh
source "$root/scripts/env.sh"
cd "$root"

# Small networks run fastest on one thread each, and the node tests run several processes.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

step() { # name command...
    echo "test: $1"
    shift
    "$@" || failed+=("$*")
}

# All checks run, so that one call shows all that is wrong.
failed=()
if [ "$#" -eq 0 ]; then
    step style ruff check .
    step format ruff format --check .
    step types mypy
    step layers lint-imports
fi
if [ "$#" -eq 0 ]; then
    # On a busy machine a test over DDS can lose a race: it is run once more, and told as RERUN.
    set -- -n "${FLASHRT_TEST_WORKERS:-2}" --dist loadfile --reruns 1 -r aR
fi
step tests python -m pytest "$@"

if [ "${#failed[@]}" -gt 0 ]; then
    printf 'test: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
