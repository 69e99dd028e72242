# SPDX-License-Identifier: Apache-2.0
"""What a capsule is bound to, compared field by field before a restore."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path

import torch

from .. import __version__
from .buffers import BufferTable
from .errors import FingerprintMismatch

_CACHE_NAME = ".flashrt-weights.json"
_CHUNK = 1 << 20


class MatchPolicy(str, Enum):
    """Which fields must be equal for a restore.

    STRICT: all. Continuation is bit-identical.
    STATE_COMPATIBLE: those that give the bytes their meaning (model, weights, config, dtype,
    table). Stored bytes are restored exactly; a continuation under another plan, torch version or
    device may differ in the last bits.
    """

    STRICT = "strict"
    STATE_COMPATIBLE = "state-compatible"


_STATE_FIELDS = ("model", "weights", "config", "dtype", "table")


@dataclass(frozen=True)
class Fingerprint:
    """Identity of everything that gives a capsule's bytes their meaning."""

    model: str  # what kind of network, "act" or "qwen3" say
    weights: str = ""  # digest of the weights' content, see weights_digest
    config: str = ""  # digest of the config, see text_digest
    dtype: str = ""
    table: str = ""  # digest of the buffer table; a session fills it in from its arena
    plan: str = "eager"  # back end of the plans
    package: str = __version__
    torch: str = torch.__version__
    device: str = "cpu"  # family: cpu, or cuda and the compute capability

    def digest(self) -> str:
        """SHA-256 (hex) over all fields."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def bound_to(self, table: BufferTable) -> Fingerprint:
        """The same with the digest of this buffer table."""
        return replace(self, table=table.digest())

    def mismatches(
        self, other: Fingerprint, policy: MatchPolicy = MatchPolicy.STRICT
    ) -> list[tuple[str, str, str]]:
        """(field, own value, other value) for each field that must match and does not."""
        strict = policy is MatchPolicy.STRICT
        return [
            (f.name, getattr(self, f.name), getattr(other, f.name))
            for f in fields(self)
            if (strict or f.name in _STATE_FIELDS)
            and getattr(self, f.name) != getattr(other, f.name)
        ]

    def require(self, other: Fingerprint, policy: MatchPolicy = MatchPolicy.STRICT) -> None:
        """Raise FingerprintMismatch naming each field that differs and both values."""
        if self == other:
            return
        differing = self.mismatches(other, policy)
        if differing:
            raise FingerprintMismatch(
                "the capsule belongs to another state: "
                + "; ".join(
                    f"{f} is {mine!r} here, {theirs!r} there" for f, mine, theirs in differing
                )
                + f" (policy {policy.value}); load the checkpoint and settings it was made with"
            )

    def to_json(self) -> str:
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Fingerprint:
        """Inverse of to_json; fields that a newer version added are ignored."""
        known = {f.name for f in fields(Fingerprint)}
        return Fingerprint(**{k: str(v) for k, v in json.loads(text).items() if k in known})


def device_family(device: str | torch.device) -> str:
    """`cpu`, or `cuda-sm90` and the like: what decides which kernels run."""
    device = torch.device(device)
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda-sm{major}{minor}"


def text_digest(text: str) -> str:
    """SHA-256 (hex) of a text, a config say."""
    return hashlib.sha256(text.encode()).hexdigest()


def weights_digest(path: str | Path, *, pattern: str = "*.safetensors", full: bool = False) -> str:
    """SHA-256 (hex) over name and content of the weight files of a checkpoint directory.

    The digest is kept beside the weights in `.flashrt-weights.json` and reused while every file's
    size and modification time are unchanged; `full=True` reads the content again. A directory that
    cannot be written just isn't cached. Raises FileNotFoundError without any such file.
    """
    directory = Path(path)
    files = sorted(directory.glob(pattern))
    if not files:
        raise FileNotFoundError(
            f"no {pattern} in {directory}; expected a checkpoint's weights there"
        )
    state = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    cache = directory / _CACHE_NAME
    if not full:
        try:
            known = json.loads(cache.read_text())
            if known["files"] == state:
                return str(known["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
    total = hashlib.sha256()
    for file in files:
        content = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                content.update(chunk)
        total.update(f"{file.name}\0{content.hexdigest()}\n".encode())
    _write_cache(cache, json.dumps({"files": state, "digest": total.hexdigest()}))
    return total.hexdigest()


def _write_cache(path: Path, text: str) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        os.replace(temporary, path)
    except OSError:
        pass  # a read-only checkpoint: computed again next time
