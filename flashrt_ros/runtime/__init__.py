# SPDX-License-Identifier: Apache-2.0
"""Execution-state capsules over a closed set of buffers. Knows no model and no ROS."""

from .arena import Arena, Layout
from .buffers import BufferSpec, BufferTable, Kind, Role
from .capsule import Capsule, CapsuleInfo, Tier
from .errors import Code, RuntimeFault
from .events import Event, EventKind, RestoreReport
from .fingerprint import Fingerprint, MatchPolicy, device_family, text_digest, weights_digest
from .lineage import BoundaryRecord
from .plans import Backend, Plan, ShapeKey, bucket_for
from .session import Session, StateItem
from .store import Store
from .thinning import AutoSnapshots

__all__ = [
    "Arena",
    "AutoSnapshots",
    "Backend",
    "BoundaryRecord",
    "BufferSpec",
    "BufferTable",
    "Capsule",
    "CapsuleInfo",
    "Code",
    "Event",
    "EventKind",
    "Fingerprint",
    "Kind",
    "Layout",
    "MatchPolicy",
    "Plan",
    "RestoreReport",
    "Role",
    "RuntimeFault",
    "Session",
    "ShapeKey",
    "StateItem",
    "Store",
    "Tier",
    "bucket_for",
    "device_family",
    "text_digest",
    "weights_digest",
]
