# SPDX-License-Identifier: Apache-2.0
"""What a capsule is bound to."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from flashrt_ros.runtime import Fingerprint, MatchPolicy, device_family, weights_digest
from flashrt_ros.runtime.errors import FingerprintMismatch

BASE = Fingerprint("m", weights="w", config="c", dtype="float32", table="t")
STATE = {"model", "weights", "config", "dtype", "table"}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Fingerprint)])
def test_every_field_is_compared_and_the_refusal_names_it(field: str) -> None:
    other = dataclasses.replace(BASE, **{field: "other"})
    assert other.digest() != BASE.digest()
    value = getattr(BASE, field)
    with pytest.raises(FingerprintMismatch, match=f"{field} is '.*' here, 'other' there") as caught:
        BASE.require(other)
    assert repr(value) in str(caught.value)
    if field in STATE:
        with pytest.raises(FingerprintMismatch):
            BASE.require(other, MatchPolicy.STATE_COMPATIBLE)
    else:
        BASE.require(other, MatchPolicy.STATE_COMPATIBLE)


def test_json_and_back_is_the_same_and_new_fields_are_ignored() -> None:
    assert Fingerprint.from_json(BASE.to_json()) == BASE
    longer = BASE.to_json().replace("{", '{"mood": "good", ', 1)
    assert Fingerprint.from_json(longer) == BASE


def test_the_digest_of_weights_is_that_of_their_content(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"one")
    (tmp_path / "b.safetensors").write_bytes(b"two")
    first = weights_digest(tmp_path)
    (tmp_path / "b.safetensors").write_bytes(b"twq")
    assert weights_digest(tmp_path) != first
    (tmp_path / "b.safetensors").write_bytes(b"two")
    assert weights_digest(tmp_path) == first


def test_the_digest_is_cached_by_size_and_time_and_computed_in_full_when_asked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"one")
    first = weights_digest(tmp_path)
    stat = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert weights_digest(tmp_path) == first  # same size, same time: taken from the cache
    full = weights_digest(tmp_path, full=True)
    assert full != first
    assert weights_digest(tmp_path) == full


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="safetensors"):
        weights_digest(tmp_path)


def test_the_device_family_of_a_cpu_is_cpu() -> None:
    assert device_family("cpu") == "cpu"
