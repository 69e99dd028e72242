# SPDX-License-Identifier: Apache-2.0
# flashrt_ros on JetPack 7 (Jetson AGX Thor) or DGX Spark: PyTorch for CUDA 13 and ROS 2 Jazzy.
# Written from the vendors' documentation; never built on such a device (docs/deploy-thor.md).
#
#   docker build -f docker/Dockerfile.thor -t flashrt_ros:thor .

# NVIDIA's PyTorch container, release 25.12: Ubuntu 24.04, Python 3.12, CUDA 13.1, torch 2.10.
ARG BASE=nvcr.io/nvidia/pytorch:25.12-py3
FROM ${BASE}

ENV DEBIAN_FRONTEND=noninteractive ROS_DISTRO=jazzy

# ROS 2 Jazzy from its own apt repository, as docs.ros.org has it for Ubuntu 24.04.
RUN apt-get update && apt-get install -y --no-install-recommends curl gnupg locales \
 && curl -fsSL https://raw.githubusercontent.com/ros/rosdistro/master/ros.key \
      -o /usr/share/keyrings/ros-archive-keyring.gpg \
 && echo "deb [arch=$(dpkg --print-architecture) signed-by=/usr/share/keyrings/ros-archive-keyring.gpg] http://packages.ros.org/ros2/ubuntu noble main" \
      > /etc/apt/sources.list.d/ros2.list \
 && apt-get update && apt-get install -y --no-install-recommends \
      ros-jazzy-ros-base ros-jazzy-rmw-fastrtps-cpp ros-jazzy-trajectory-msgs \
      ros-jazzy-control-msgs ros-jazzy-diagnostic-msgs ros-jazzy-lifecycle-msgs \
      python3-colcon-common-extensions build-essential \
 && rm -rf /var/lib/apt/lists/*

# torch is the container's; its pip constraints keep it so.
RUN pip install --no-cache-dir "transformers>=5.17" safetensors tokenizers pytest

WORKDIR /workspace/src/flashrt_ros
COPY . .
WORKDIR /workspace
RUN . /opt/ros/jazzy/setup.sh && colcon build --packages-select flashrt_ros \
      --cmake-args -DBUILD_TESTING=OFF

# Plans compiled for the CPU are kept here; mount it to keep them.
ENV XDG_CACHE_HOME=/workspace/cache
COPY docker/entrypoint.sh /entrypoint.sh
ENTRYPOINT ["bash", "/entrypoint.sh"]
CMD ["ros2", "launch", "flashrt_ros", "policy.launch.py", \
     "params_file:=/workspace/install/flashrt_ros/share/flashrt_ros/config/thor_policy_node.yaml"]
