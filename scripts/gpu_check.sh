#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   bash scripts/gpu_check.sh [--out FOLDER] [--seconds N]
#
# What a GPU must show: contracts and exactness, closure audits, then benchmarks of capsules, the
# shipped policy and a random hybrid of 4 B parameters; JSON files in FOLDER (default gpu_check).
# At most 8 minutes. It needs Python 3.11 with torch, transformers, safetensors, numpy and pytest
# (PYTHON: which one), nothing of ROS, nothing installed of this package.
#
# FLASHRT_GPU_CHECK_SMALL=1: on the CPU, with small sizes, to see that it runs.

set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
small=()
if [ "${FLASHRT_GPU_CHECK_SMALL:-0}" = 1 ]; then
    small=(--device cpu --quick)
fi
exec "${PYTHON:-python3}" -m flashrt_ros.bench.gpu_check "${small[@]}" "$@"
