# SPDX-License-Identifier: Apache-2.0
"""Files: whole or refused, whatever happens to them."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint, Kind, Role, Session, Store, Tier
from flashrt_ros.runtime.cli import main as capsule_command
from flashrt_ros.runtime.directory import CapsuleDirectory
from flashrt_ros.runtime.disk import read_header
from flashrt_ros.runtime.errors import Corrupt, FingerprintMismatch, NoSpace, Unsupported

SPECS = [
    BufferSpec("meta.rows", Role.META, torch.int64, ()),
    BufferSpec("state", Role.RECURRENT, torch.float32, (8,)),
    BufferSpec("half", Role.CONV, torch.bfloat16, (2, 3)),
    BufferSpec("key", Role.KV, torch.bfloat16, (2, 64, 4), Kind.APPEND, 1, "meta.rows"),
    BufferSpec("value", Role.KV, torch.float32, (64, 2), Kind.APPEND, 0, "meta.rows"),
]


def opened(directory: Path, specs: list[BufferSpec] = SPECS, **options: object) -> Session:
    store = Store(directory=directory)
    return Session(Arena(specs), fingerprint=Fingerprint("disk"), store=store, **options)  # type: ignore[arg-type]


def step(session: Session, rows: int = 2) -> None:
    arena, live = session.arena, session.live
    start = int(arena["meta.rows"])
    arena["key"][:, start : start + rows] = live.number + 1
    arena["value"][start : start + rows] = live.number + 1
    arena["state"].add_(1)
    arena["meta.rows"].add_(rows)
    session.commit(stamp_ns=live.step + 1)


def stored(directory: Path, *names: str) -> Session:
    """A session that persisted a capsule of each name, a step apart."""
    session = opened(directory)
    for name in names:
        step(session)
        session.snapshot(name)
        session.move(name, Tier.DISK)
    return session


def files(directory: Path, kind: str = "capsules") -> list[Path]:
    return sorted((directory / kind).iterdir())


def test_another_store_finds_and_restores_what_was_written(tmp_path: Path) -> None:
    session = stored(tmp_path, "a", "b")
    expected = session.digest()
    other = opened(tmp_path)
    names = [info.name for info in other.capsules() if info.tier is Tier.DISK]
    assert names == ["a", "b"]
    report = other.restore("b", digest=True)
    assert report.state_digest == expected
    assert report.rows_copied == 4
    assert other.restore("a").rows_copied == 0  # its rows came with those of b


def test_files_are_private_and_any_safetensors_reader_opens_them(tmp_path: Path) -> None:
    stored(tmp_path / "new", "a")
    for path in (tmp_path / "new").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    (capsule,) = files(tmp_path / "new")
    with safe_open(capsule, "pt") as opened_file:
        assert set(opened_file.keys()) == {"meta.rows", "state", "half"}
        assert opened_file.get_tensor("state").tolist() == [1.0] * 8
    (piece,) = files(tmp_path / "new", "rows")
    with safe_open(piece, "pt") as opened_file:
        assert opened_file.get_tensor("key").shape == (2, 2, 4)


def test_rows_of_an_ancestor_are_stored_once(tmp_path: Path) -> None:
    session = stored(tmp_path, "a", "b", "c")
    assert len(files(tmp_path, "rows")) == 3
    session.fork("c", count=3, names=["x", "y", "z"])
    for name in ("x", "y", "z"):
        session.move(name, Tier.DISK)
    assert len(files(tmp_path, "rows")) == 3
    # another process with the same rows
    other = opened(tmp_path)
    for _ in range(3):
        step(other)
    other.snapshot("same")
    other.move("same", Tier.DISK)
    assert len(files(tmp_path, "rows")) == 3


def test_dropping_removes_only_rows_that_nobody_else_has(tmp_path: Path) -> None:
    session = stored(tmp_path, "a", "b", "c")
    session.drop("b")
    assert len(files(tmp_path, "rows")) == 3
    session.drop("c")
    assert len(files(tmp_path, "rows")) == 1
    expected = opened(tmp_path).restore("a", digest=True).state_digest
    assert session.restore("a", digest=True).state_digest == expected


def test_a_directory_is_listed_without_reading_tensors(tmp_path: Path) -> None:
    stored(tmp_path, "a")
    for path in (*files(tmp_path), *files(tmp_path, "rows")):
        header = read_header(path)
        with path.open("r+b") as stream:  # spoil every tensor
            stream.seek(min(entry.begin for entry in header.entries.values()))
            stream.write(b"\xee" * 16)
    good, bad = CapsuleDirectory(tmp_path).entries()
    assert [capsule.meta.name for capsule in good] == ["a"]
    assert not bad


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def cut_in_header(path: Path) -> None:
    os.truncate(path, 40)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def foreign(path: Path) -> None:
    path.write_bytes(b"\x02\0\0\0\0\0\0\0{}")


def noise(path: Path) -> None:
    path.write_bytes(os.urandom(2000))


def lengthened(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


def newer(path: Path) -> None:
    path.write_bytes(
        path.read_bytes().replace(b'"flashrt.format":"1.0"', b'"flashrt.format":"2.0"')
    )


def changed_header(path: Path) -> None:
    path.write_bytes(re.sub(rb'(\\"step\\": )\d', rb"\g<1>7", path.read_bytes(), count=1))


@pytest.mark.parametrize(
    "damage",
    [cut, cut_in_header, empty, foreign, noise, lengthened, newer, changed_header],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_file_is_refused_by_name_and_the_others_are_listed(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    stored(tmp_path, "a", "b")
    victim = files(tmp_path)[0]
    before = victim.read_bytes()
    damage(victim)
    assert victim.read_bytes() != before
    good, bad = CapsuleDirectory(tmp_path).entries()
    assert [capsule.meta.name for capsule in good] == ["b"]
    assert [file.path for file in bad] == [victim]
    assert str(victim) in bad[0].reason
    session = opened(tmp_path)
    assert len(session.store.refused) == 1
    session.restore("b")


def test_every_flipped_bit_of_a_capsule_is_found(tmp_path: Path) -> None:
    stored(tmp_path, "a")
    directory = CapsuleDirectory(tmp_path)
    for path in (*files(tmp_path), *files(tmp_path, "rows")):
        whole = path.read_bytes()
        for position in range(0, len(whole), 7):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << position % 8
            path.write_bytes(flipped)
            good, bad = directory.entries()
            if not bad:
                with pytest.raises(Corrupt):
                    directory.verify(good[0])
        path.write_bytes(whole)
    directory.verify(directory.entries()[0][0])


def test_swapped_rows_are_refused(tmp_path: Path) -> None:
    stored(tmp_path, "a", "b")
    first, second = files(tmp_path, "rows")
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    second.write_bytes(one)
    directory = CapsuleDirectory(tmp_path)
    for capsule in directory.entries()[0]:
        with pytest.raises(Corrupt):
            directory.verify(capsule)


def test_a_restore_that_is_refused_leaves_the_live_state_as_it_was(tmp_path: Path) -> None:
    stored(tmp_path, "a", "b")
    session = opened(tmp_path)
    step(session)
    before, live = session.digest(), session.live
    for piece in files(tmp_path, "rows"):
        data = bytearray(piece.read_bytes())
        data[-1] ^= 1
        piece.write_bytes(data)
    used = session.store.memory.pools[Tier.DEVICE].used_bytes
    for name in ("a", "b"):
        with pytest.raises(Corrupt, match="do not match their checksum"):
            session.restore(name)
        assert (session.digest(), session.live) == (before, live)
    assert session.store.memory.pools[Tier.DEVICE].used_bytes == used
    step(session)


def test_a_damaged_piece_is_written_again_by_who_has_its_rows(tmp_path: Path) -> None:
    session = opened(tmp_path)
    step(session)
    session.store.persist(session.snapshot("a"))
    (piece,) = files(tmp_path, "rows")
    data = bytearray(piece.read_bytes())
    data[-1] ^= 1
    piece.write_bytes(data)
    other = opened(tmp_path)
    step(other)
    other.store.persist(other.snapshot("b"))
    directory = CapsuleDirectory(tmp_path)
    for capsule in directory.entries()[0]:
        directory.verify(capsule)


def test_a_capsule_of_another_table_is_listed_and_refused(tmp_path: Path) -> None:
    stored(tmp_path, "a")
    session = opened(tmp_path, SPECS[:3])
    before = session.digest()
    with pytest.raises(FingerprintMismatch, match="table"):
        session.restore("a")
    assert session.digest() == before


def test_keys_of_a_newer_minor_format_are_ignored(tmp_path: Path) -> None:
    session = stored(tmp_path, "a")
    (path,) = files(tmp_path)
    rewrite(path, lambda metadata: metadata.update({"flashrt.format": "1.9", "x": "y"}))
    other = opened(tmp_path)
    assert other.restore("a", digest=True).state_digest == session.digest()


def rewrite(path: Path, change: Callable[[dict[str, str]], None]) -> None:
    """Change a header as a newer version would write it, with its seal."""
    from flashrt_ros.runtime.disk import _seal

    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + length])
    metadata = document.pop("__metadata__")
    change(metadata)
    meta = json.loads(metadata["flashrt.meta"])
    meta["mood"] = "good"
    metadata["flashrt.meta"] = json.dumps(meta)
    metadata["flashrt.seal"] = _seal(document, metadata)
    header = json.dumps({"__metadata__": metadata, **document}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """What a full disk does to a writer, by way of a limit on the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 100, 900])
def test_a_full_disk_is_answered_and_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    session = stored(tmp_path, "a")
    step(session)
    session.snapshot("b")
    before = session.digest()
    with largest_file(room), pytest.raises(NoSpace, match="no room for"):
        session.move("b", Tier.DISK)
    assert session.store.info(session.store.find("b")).tier is Tier.DEVICE
    assert not list(tmp_path.rglob(".tmp-*"))
    good, bad = CapsuleDirectory(tmp_path).entries()
    assert ([capsule.meta.name for capsule in good], bad) == (["a"], [])
    assert session.restore("b", digest=True).state_digest == before
    session.move("b", Tier.DISK)
    CapsuleDirectory(tmp_path).verify(CapsuleDirectory(tmp_path).entries()[0][1])


def test_garbage_collection_keeps_rows_while_a_capsule_cannot_be_read(tmp_path: Path) -> None:
    stored(tmp_path, "a", "b")
    (tmp_path / "rows" / ".tmp-left").write_bytes(b"x")
    victim = files(tmp_path)[0]
    whole = victim.read_bytes()
    cut(victim)
    report = CapsuleDirectory(tmp_path).gc()
    assert (report.pieces, report.temporaries) == (0, 1)
    victim.write_bytes(whole)
    victim.unlink()
    directory = CapsuleDirectory(tmp_path)
    directory.gc()
    directory.verify(directory.entries()[0][0])


def test_a_store_without_a_directory_says_so() -> None:
    session = Session(Arena(SPECS), fingerprint=Fingerprint("disk"))
    session.snapshot("a")
    with pytest.raises(Unsupported, match="no directory"):
        session.move("a", Tier.DISK)


def test_no_name_leaves_the_directory(tmp_path: Path) -> None:
    directory = CapsuleDirectory(tmp_path / "capsules-here")
    for name in ("../../etc", "/etc/passwd", "..", "a/../b"):
        assert capsule_command(["show", str(directory.path), name]) == 2
    with pytest.raises(Corrupt, match="hexadecimal"):
        directory._piece_path("../x")


def test_two_hundred_killed_writers_leave_only_whole_capsules(tmp_path: Path) -> None:
    script = Path(__file__).parent / "runtime_crash_writer.py"
    command = [sys.executable, str(script), str(tmp_path / "capsules"), "200", "11"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, env=environment)
    assert done.returncode == 0, done.stderr
    seen = dict(pair.split("=") for pair in done.stdout.split())
    assert seen["kills"] == "200"
    assert int(seen["most_listed"]) > 2  # the writers did get to write
    assert int(seen["temporaries"]) > 5  # and were hit while they did


def test_the_commands_list_show_compare_verify_and_remove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path, "a", "b")
    where = str(tmp_path)
    assert capsule_command(["ls", where, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [capsule["name"] for capsule in listed["capsules"]] == ["a", "b"]
    assert capsule_command(["ls", where]) == 0
    assert re.search(r"^[0-9a-f]{32}  b ", capsys.readouterr().out, re.MULTILINE)
    assert capsule_command(["show", where, listed["capsules"][0]["id"][:20]]) == 0
    assert "key kv append bfloat16 2x64x4 rows=1@meta.rows" in capsys.readouterr().out
    assert capsule_command(["diff", where, "a", "b", "--json"]) == 1
    differing = {diff["name"]: diff for diff in json.loads(capsys.readouterr().out)}
    assert set(differing) == {"meta.rows", "state", "key", "value"}
    assert differing["state"]["largest"] == 1.0
    assert differing["key"]["rows"] == [2, 4]
    assert capsule_command(["diff", where, "a", "a"]) == 0
    assert capsule_command(["verify", where]) == 0
    assert "2 verified, 0 refused" in capsys.readouterr().out
    assert capsule_command(["rm", where, "b"]) == 0
    assert capsule_command(["gc", where, "--json"]) == 0
    capsys.readouterr()
    assert capsule_command(["show", where, "b"]) == 2
    assert "UNKNOWN_CAPSULE" in capsys.readouterr().err
    cut(files(tmp_path)[0])
    assert capsule_command(["verify", where]) == 1
    assert "cut" in capsys.readouterr().out
    assert capsule_command(["ls", str(tmp_path / "capsules")]) == 2
