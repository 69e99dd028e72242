# SPDX-License-Identifier: Apache-2.0
"""Devices and plans that the contract tests run on: the CPU anywhere, a GPU where there is one.

These files need torch, transformers, safetensors, numpy and pytest, and nothing of ROS:
`scripts/gpu_check.sh` runs them on machines that have no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashrt_ros.runtime import Backend

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ON_EACH_DEVICE = [
    pytest.param("cpu", Backend.EAGER, id="cpu-eager"),
    pytest.param("cuda", Backend.EAGER, id="cuda-eager", marks=NEEDS_GPU),
    pytest.param("cuda", Backend.CUDA_GRAPH, id="cuda-graph", marks=NEEDS_GPU),
]

# Operations whose result Python needs, or whose output's size depends on values: on a GPU each
# waits for everything that was queued before.
SYNCHRONISING = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "is_nonzero",
    "unique_consecutive", "repeat_interleave.Tensor", "item", "equal",
}  # fmt: skip


class FailsOnSynchronisation(TorchDispatchMode):
    """Raises on an operation that would make the host wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in SYNCHRONISING or f"{name}.{func._overloadname}" in SYNCHRONISING:
            raise AssertionError(f"{func} makes the host wait for the device")
        if name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            raise AssertionError(f"{func} by a mask makes the host wait for the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_synchronisation(device: str) -> Iterator[None]:
    """Fail on whatever makes the host wait for the device.

    On a GPU torch itself watches; on a CPU, where nothing waits, the operations are looked at.
    """
    if device == "cpu":
        with FailsOnSynchronisation():
            yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
