# SPDX-License-Identifier: Apache-2.0
"""Execution-state capsules over a closed set of buffers. Knows no model and no ROS."""

from .arena import Arena
from .buffers import BufferSpec, BufferTable, Kind, Role
from .capsule import Capsule, CapsuleInfo, Tier
from .difference import BufferDiff
from .errors import Code, RuntimeFault
from .events import Event, EventKind, RestoreReport
from .fingerprint import Fingerprint, MatchPolicy, device_family, text_digest, weights_digest
from .host import SessionHost
from .layout import Layout
from .lineage import BoundaryRecord
from .live import StateItem
from .plans import Backend, Plan, ShapeKey, bucket_for
from .session import Session
from .store import Store
from .thinning import AutoSnapshots
from .tiers import Budgets, StoreTotals

__all__ = [
    "Arena",
    "AutoSnapshots",
    "Backend",
    "BoundaryRecord",
    "Budgets",
    "BufferDiff",
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
    "SessionHost",
    "ShapeKey",
    "StateItem",
    "Store",
    "StoreTotals",
    "Tier",
    "bucket_for",
    "device_family",
    "text_digest",
    "weights_digest",
]
