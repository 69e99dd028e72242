# SPDX-License-Identifier: Apache-2.0
"""The small arm that the demonstration and the tests drive. All but node needs no ROS."""
