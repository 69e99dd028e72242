# SPDX-License-Identifier: Apache-2.0
"""Copies between a live arena and the bytes of a capsule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import torch

from .arena import Arena, RowGroup
from .buffers import BufferSpec, Kind, Role
from .capsule import FixedImage
from .memory import copy_bytes, synchronise
from .rows import RowsRef, Span, common_rows, spans, stop_of
from .streams import copying

Trail = tuple["RowsRef | None", ...]  # for each row group, stored rows that equal the live ones


@dataclass(frozen=True)
class Copied:
    """What a thaw moved and what was live already."""

    bytes_copied: int
    bytes_shared: int
    rows_copied: int
    rows_shared: int


def freeze(arena: Arena, image: FixedImage, new: Sequence[tuple[RowGroup, Span]]) -> None:
    """Copy all fixed bytes and the new spans out of the arena; done when it returns."""
    with copying(arena.device, after_replays=True):
        if arena.fixed.numel():
            copy_bytes(image.block.data, arena.fixed)
        for group, span in new:
            for stored, live in _parts(group, span):
                copy_bytes(stored, live)


def thaw(arena: Arena, image: FixedImage, rows: Trail, trail: Trail) -> Copied:
    """Copy a capsule into the arena: all fixed bytes, and the rows that are not live already."""
    copied, shared = arena.fixed.numel(), 0
    rows_copied = rows_shared = 0
    with copying(arena.device, after_replays=True):
        if copied:
            copy_bytes(arena.fixed, image.block.data)
        for group, stored, live in zip(arena.groups, rows, trail, strict=True):
            same = common_rows(stored, live)
            for span in spans(stored, same):
                for part, plane in _parts(group, span):
                    copy_bytes(plane, part)
            shared += same * group.layout.row_nbytes
            copied += (stop_of(stored) - same) * group.layout.row_nbytes
            rows_shared += same
            rows_copied += stop_of(stored) - same
    return Copied(copied, shared, rows_copied, rows_shared)


def _parts(group: RowGroup, span: Span) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A span's bytes as stored and where they are live, in as few pieces as there are."""
    merged = bool(group.merged)
    stored = span.slab.planes(span.start, span.stop, merged=merged)
    for part, plane in zip(stored, group.merged if merged else group.planes, strict=True):
        yield part, plane[:, span.start : span.stop]


def thaw_roles(
    arena: Arena, image: FixedImage, rows: Trail, trail: Trail, roles: Set[Role]
) -> Copied:
    """Copy only the buffers of these roles (experiments); all else stays as it is."""
    copied = shared = rows_copied = rows_shared = 0
    for spec in arena.table:
        if spec.kind is Kind.FIXED and spec.role in roles:
            span = arena.geometry.span(spec.name)
            arena.fixed[span].copy_(image.block.data[span])
            copied += spec.nbytes
    for group, stored, live in zip(arena.groups, rows, trail, strict=True):
        columns = [column for column in group.layout.columns if column.spec.role in roles]
        if not columns:
            continue
        same = common_rows(stored, live)
        for part in spans(stored, same):
            planes = part.slab.planes(part.start, part.stop)
            for column in columns:
                cut = slice(column.offset, column.offset + column.nbytes)
                target = group.planes[column.plane][:, part.start : part.stop, cut]
                target.copy_(planes[column.plane][:, :, cut])
        width = sum(column.spec.row_nbytes for column in columns)
        shared += same * width
        copied += (stop_of(stored) - same) * width
        rows_shared += same
        rows_copied += stop_of(stored) - same
    synchronise(arena.device)
    return Copied(copied, shared, rows_copied, rows_shared)


def buffer_digests(arena: Arena, rows: dict[str, int]) -> dict[str, str]:
    """SHA-256 (hex) of each buffer's bytes; of an append buffer's valid rows only."""
    return {spec.name: _digest(arena, spec, rows) for spec in arena.table}


def state_digest(arena: Arena, rows: dict[str, int]) -> str:
    """SHA-256 (hex) over names and bytes of every buffer: equal states have equal digests."""
    lines = [f"{name} {digest}\n" for name, digest in buffer_digests(arena, rows).items()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digest(arena: Arena, spec: BufferSpec, rows: dict[str, int]) -> str:
    if spec.kind is Kind.FIXED:
        data = arena.fixed[arena.geometry.span(spec.name)]
    else:
        data = arena.row_bytes(spec.name, rows[spec.row_counter])
    return hashlib.sha256(_buffer(data)).hexdigest()


def _buffer(data: torch.Tensor) -> memoryview:
    if not data.numel():
        return memoryview(b"")
    return memoryview(data.contiguous().cpu().numpy()).cast("B")  # type: ignore[arg-type]
