#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   bash scripts/test.sh [pytest arguments]
#
# Set-up, style, types, layers, tests. With arguments: set-up, then pytest with them alone.

set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup.sh"
# shellcheck source=scripts/env.sh
source "$root/scripts/env.sh"
cd "$root"

# Small networks run fastest on one thread each, and the node tests run several processes.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if [ "$#" -eq 0 ]; then
    echo "test: ruff" && ruff check . && ruff format --check .
    echo "test: mypy" && mypy
    echo "test: layers" && lint-imports
    echo "test: pytest"
fi
exec python -m pytest "$@"
