# SPDX-License-Identifier: Apache-2.0
"""For pip. The metadata are in setup.cfg; ROS builds from package.xml and CMakeLists.txt."""

from setuptools import setup

setup()
