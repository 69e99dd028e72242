# SPDX-License-Identifier: Apache-2.0
"""How two capsules differ, buffer by buffer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .buffers import BufferSpec, Kind
from .capsule import Capsule
from .errors import FingerprintMismatch, Unsupported
from .layout import Geometry
from .rows import column_rows
from .shelving import on_cpu
from .store import Store


@dataclass(frozen=True)
class BufferDiff:
    """One buffer that differs. `rows` are valid rows in either (append); -1 for a fixed buffer."""

    name: str
    role: str
    nbytes: int  # that differ; rows that only one has count in full
    largest: float  # difference of values in both; nan where one of the two is not a number
    rows: tuple[int, int] = (-1, -1)


def differences(store: Store, a: Capsule, b: Capsule) -> list[BufferDiff]:
    """Buffers that differ, by name. Raises FingerprintMismatch for capsules of two tables."""
    if a.meta.fingerprint.table != b.meta.fingerprint.table:
        raise FingerprintMismatch(
            f"capsules {a.id} and {b.id} have different buffer tables; nothing to compare"
        )
    if store.geometry is None:
        raise Unsupported("no session uses this store yet: its buffer table is not known")
    sides = []
    for capsule in (a, b):
        with store.reading(capsule) as (image, rows):
            sides.append(tensors(store.geometry, *on_cpu(store.geometry, image, rows)))
    return compared(store.geometry, *sides)


def tensors(geometry: Geometry, fixed: Tensor, planes: list[list[Tensor]]) -> dict[str, Tensor]:
    """Bytes by buffer: uint8 [bytes] of a fixed one, uint8 [rows, row bytes] of an append one."""
    found = {name: fixed[geometry.span(name)] for name, _ in geometry.offsets}
    for layout, group in zip(geometry.groups, planes, strict=True):
        for column in layout.columns:
            found[column.spec.name] = column_rows(group[column.plane], column)
    return found


def compared(geometry: Geometry, a: dict[str, Tensor], b: dict[str, Tensor]) -> list[BufferDiff]:
    found = [_compared(spec, a[spec.name], b[spec.name]) for spec in geometry.table]
    return [diff for diff in found if diff is not None]


def _compared(spec: BufferSpec, a: Tensor, b: Tensor) -> BufferDiff | None:
    rows = (a.shape[0], b.shape[0]) if spec.kind is Kind.APPEND else (-1, -1)
    both = min(a.shape[0], b.shape[0])
    unlike = a[:both] != b[:both]
    nbytes = int(unlike.sum()) + (a.numel() + b.numel() - 2 * a[:both].numel())
    if nbytes == 0 and rows[0] == rows[1]:
        return None
    largest = 0.0
    if unlike.any():
        left, right = (_values(side[:both], spec.dtype) for side in (a, b))
        largest = float((left - right).abs().max())
    return BufferDiff(spec.name, str(spec.role), nbytes, largest, rows)


def _values(data: Tensor, dtype: torch.dtype) -> Tensor:
    return data.contiguous().view(-1).view(dtype).double()
