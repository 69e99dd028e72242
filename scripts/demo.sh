#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   bash scripts/demo.sh [--episodes N] [--out DIR]
#
# An arm that remembers: simulated arm, policy and planner as three processes over DDS.
# `--help` lists the rest.

set -euo pipefail

scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
bash "$scripts/setup.sh"
# shellcheck source=scripts/env.sh
source "$scripts/env.sh"
exec python -m flashrt_ros.demo "$@"
