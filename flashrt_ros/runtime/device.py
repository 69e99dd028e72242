# SPDX-License-Identifier: Apache-2.0
"""What kind of memory a device has: the one place that knows of unified memory.

On a Jetson or a DGX Spark GPU and CPU share one memory. A capsule that moved "to the host" would be
a second copy of the same bytes in the same chips, so there the host tier is the device's memory
under another name, and a move between the two copies nothing. Free memory as CUDA reports it counts
the page cache as used there; Linux's MemAvailable does not.

Written from CUDA's documentation (`cudaDeviceProp::integrated`); never run on such a device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from .errors import InvalidArgument

_OVERRIDE = "FLASHRT_UNIFIED_MEMORY"
_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory that the buffers and capsules of a device can use, bytes."""

    unified: bool  # a GPU that shares the CPU's memory
    total_bytes: int
    available_bytes: int


def is_unified(device: str | torch.device) -> bool:
    """Whether this is a GPU without a memory of its own.

    `$FLASHRT_UNIFIED_MEMORY` (0 or 1) decides where the driver's answer is not to be had or wrong.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return False
    given = os.environ.get(_OVERRIDE)
    if given is not None:
        if given not in ("0", "1"):
            raise InvalidArgument(f"${_OVERRIDE} is {given!r}, expected 0 or 1")
        return given == "1"
    properties = torch.cuda.get_device_properties(place)
    return bool(getattr(properties, "is_integrated", False))


def device_memory(device: str | torch.device) -> DeviceMemory:
    """What there is and what is left of it."""
    place = torch.device(device)
    unified = is_unified(place)
    if place.type == "cuda" and not unified:
        free, total = torch.cuda.mem_get_info(place)
        return DeviceMemory(False, int(total), int(free))
    fields = _meminfo()
    return DeviceMemory(unified, fields["MemTotal"], fields["MemAvailable"])


def _meminfo() -> dict[str, int]:
    lines = (line.split() for line in _MEMINFO.read_text().splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in lines if len(parts) > 2}
