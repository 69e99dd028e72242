#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -e
source /opt/ros/jazzy/setup.bash
source /workspace/install/local_setup.bash
exec "$@"
