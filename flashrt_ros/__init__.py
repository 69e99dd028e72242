# SPDX-License-Identifier: Apache-2.0
"""Execution-state capsules for robot policies and language models, as a ROS 2 package."""

from pkgutil import extend_path

# In a colcon overlay the generated `flashrt_ros.msg` and `flashrt_ros.srv` may lie in another
# directory than the Python of a pip install or a source tree: let both be one package.
__path__ = extend_path(__path__, __name__)

__version__ = "0.1.0"
