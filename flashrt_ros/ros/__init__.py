# SPDX-License-Identifier: Apache-2.0
"""ROS 2 nodes, and the conversion between messages and the types of the layers below."""
