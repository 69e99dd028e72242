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

# A domain of its own, on this machine only: the demonstration commands an arm, and no arm but the
# simulated one may listen. FLASHRT_DEMO_DOMAIN_ID chooses the domain, to watch it from elsewhere.
export ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST
export ROS_DOMAIN_ID="${FLASHRT_DEMO_DOMAIN_ID:-$((RANDOM % 91 + 10))}"
echo "demo: ROS_DOMAIN_ID=$ROS_DOMAIN_ID, this machine only"
exec python -m flashrt_ros.demo "$@"
