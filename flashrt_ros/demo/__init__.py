# SPDX-License-Identifier: Apache-2.0
"""An arm that remembers: simulated arm, policy and planner as three processes over DDS."""
