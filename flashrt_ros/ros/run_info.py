# SPDX-License-Identifier: Apache-2.0
"""`~/run_info`: what a bag must have besides inputs and boundaries to be replayed bit for bit."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rclpy.node import Node

import flashrt_ros
from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.msg import RunInfo
from flashrt_ros.policies import PolicyEngine
from flashrt_ros.ros import qos


class RunInfoPublisher:
    """Publishes msg/RunInfo of a configured node, latched.

    Args:
        node: the policy node.
        engine: hosts the policy; its session is the run.
        model: what the parameter named.
        sources: policy input to (topic as resolved, type "package/msg/Name").
        contract: the observation contract's YAML, or empty.
    """

    def __init__(
        self,
        node: Node,
        engine: PolicyEngine,
        model: str,
        sources: Mapping[str, tuple[str, str]],
        contract: str = "",
    ) -> None:
        self._node = node
        self._publisher = node.create_publisher(RunInfo, "~/run_info", qos.LATCHED)
        self.message = to_run_info(
            engine, model, sources, contract=contract, parameters=parameters_of(node)
        )
        self.message.header.stamp = node.get_clock().now().to_msg()
        self._publisher.publish(self.message)

    def destroy(self) -> None:
        """Remove the publisher from the node."""
        self._node.destroy_publisher(self._publisher)


def to_run_info(
    engine: PolicyEngine,
    model: str,
    sources: Mapping[str, tuple[str, str]],
    *,
    contract: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> RunInfo:
    """The run of an engine's session, see `RunInfoPublisher`. Before its first tick."""
    spec: PolicySpec = engine.model.spec
    session = engine.session
    cameras = list(spec.cameras)
    return RunInfo(
        session=session.id,
        seed=session.seed,
        model=model,
        model_path=str(checkpoint_folder(model)),
        fingerprint=session.fingerprint.digest(),
        fingerprint_json=json.dumps(asdict(session.fingerprint), sort_keys=True),
        instruction=engine.status.instruction,
        cameras=cameras,
        camera_heights=[spec.cameras[name][0] for name in cameras],
        camera_widths=[spec.cameras[name][1] for name in cameras],
        joint_names=list(spec.joint_names),
        chunk_length=spec.chunk_length,
        chunk_dt=spec.chunk_dt,
        tick_period=spec.tick_period,
        input_names=list(sources),
        input_topics=[topic for topic, _ in sources.values()],
        input_types=[kind for _, kind in sources.values()],
        contract=contract,
        parameters_json=json.dumps(dict(parameters or {}), sort_keys=True),
        software_json=json.dumps(software(), sort_keys=True),
    )


def checkpoint_folder(model: str) -> Path:
    """Where `load_policy` finds a checkpoint: the folder itself, or a shipped one by its name."""
    folder = Path(model)
    shipped = Path(flashrt_ros.__file__).parent / "checkpoints" / model
    if not folder.exists() and len(folder.parts) == 1 and shipped.is_dir():
        return shipped.resolve()
    return folder.resolve()


def software() -> dict[str, str]:
    """Versions, and what else decides about the last bit: CPU kernels and threads."""
    try:
        transformers = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        transformers = ""
    return {
        "flashrt_ros": flashrt_ros.__version__,
        "torch": torch.__version__,
        "transformers": transformers,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": str(torch.get_num_threads()),
    }


def parameters_of(node: Node) -> dict[str, Any]:
    """Every parameter of a node, as JSON values."""
    values = {name: item.value for name, item in node.get_parameters_by_prefix("").items()}
    return {
        name: list(v) if isinstance(v, (list, tuple)) else _plain(v) for name, v in values.items()
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else list(value)
