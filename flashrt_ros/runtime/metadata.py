# SPDX-License-Identifier: Apache-2.0
"""A capsule's metadata as the text values of a safetensors header, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from .buffers import BufferSpec, BufferTable, Kind, Role
from .capsule import CapsuleMeta, StateValue
from .fingerprint import Fingerprint
from .lineage import BoundaryRecord


@dataclass(frozen=True)
class Piece:
    """Rows start .. stop of the buffers with one counter; the id is a digest of the content."""

    id: str
    counter: str
    start: int
    stop: int


def described(meta: CapsuleMeta, table: BufferTable, pieces: Sequence[Piece]) -> dict[str, str]:
    specs = [
        {
            "name": spec.name,
            "role": str(spec.role),
            "kind": str(spec.kind),
            "dtype": spec.dtype_name,
            "shape": spec.shape,
            "row_dim": spec.row_dim,
            "row_counter": spec.row_counter,
        }
        for spec in table
    ]
    return {
        "flashrt.meta": json.dumps(asdict(meta)),
        "flashrt.table": json.dumps(specs),
        "flashrt.pieces": json.dumps([asdict(piece) for piece in pieces]),
    }


def parsed(
    metadata: Mapping[str, str],
) -> tuple[CapsuleMeta, BufferTable, tuple[Piece, ...]]:
    """Inverse of described; keys that a newer minor version added are ignored."""
    raw = json.loads(metadata["flashrt.meta"])
    record = _known(BoundaryRecord, raw["record"])
    record["rows"] = tuple((str(name), int(rows)) for name, rows in record["rows"])
    values = _known(CapsuleMeta, raw)
    values["record"] = BoundaryRecord(**record)
    values["fingerprint"] = Fingerprint.from_json(json.dumps(raw["fingerprint"]))
    values["state"] = tuple(StateValue(v["name"], v["text"]) for v in raw["state"])
    values["tags"] = tuple(raw["tags"])
    table = BufferTable.of(
        BufferSpec(
            spec["name"],
            Role(spec["role"]),
            getattr(torch, spec["dtype"]),
            tuple(spec["shape"]),
            Kind(spec["kind"]),
            spec["row_dim"],
            spec["row_counter"],
        )
        for spec in json.loads(metadata["flashrt.table"])
    )
    pieces = tuple(
        Piece(p["id"], p["counter"], p["start"], p["stop"])
        for p in json.loads(metadata["flashrt.pieces"])
    )
    return CapsuleMeta(**values), table, pieces


def _known(kind: Any, raw: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in raw.items() if key in names}
