# SPDX-License-Identifier: Apache-2.0
"""Bags as they come: of two storages, compressed, split, cut, without index, of two robots."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from bag_rig import Line, ToyRun, definitions, errand, write_bag
from mcap.writer import CompressionType, IndexType
from mcap.writer import Writer as McapWriter
from rclpy.serialization import serialize_message
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from toy_policy import ToyPolicy

from flashrt_ros.replay import CannotReplay, ReplayReport, open_run, replay
from flashrt_ros.replay.bag import Bag

RUN_INFO = "flashrt_ros/msg/RunInfo"


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    run = ToyRun(state_digest_every=4)
    errand(run)
    run.close()
    return run.lines


def replayed(path: Path, **choice: Any) -> ReplayReport:
    report = replay(open_run(path, **choice), ToyPolicy())
    assert report.identical, report.difference
    return report


def write_mcap(path: Path, lines: list[Line], **options: Any) -> Path:
    """One .mcap file by the mcap library: chunks, index and compression as asked."""
    store = definitions()
    with path.open("wb") as stream:
        writer = McapWriter(stream, **options)
        writer.start(profile="ros2", library="test")
        channels: dict[str, int] = {}
        for line in lines:
            if line.topic not in channels:
                package = type(line.message).__module__.partition(".")[0]
                kind = f"{package}/msg/{type(line.message).__name__}"
                text, _ = store.generate_msgdef(kind, ros_version=2)
                schema = writer.register_schema(kind, "ros2msg", text.encode())
                channels[line.topic] = writer.register_channel(line.topic, "cdr", schema)
            data = serialize_message(line.message)
            writer.add_message(channels[line.topic], line.log_ns, data, line.log_ns)
        writer.finish()
    return path


NO_INDEX = {
    "index_types": IndexType.NONE,
    "use_statistics": False,
    "use_summary_offsets": False,
    "repeat_channels": False,
    "repeat_schemas": False,
}


@pytest.mark.parametrize("plugin", list(StoragePlugin))
def test_both_storages_are_read(lines: list[Line], tmp_path: Path, plugin: StoragePlugin) -> None:
    report = replayed(write_bag(tmp_path / "bag", lines, plugin=plugin))
    assert report.ticks == 15
    assert not report.notes


@pytest.mark.parametrize(
    ("plugin", "mode"),
    [
        (StoragePlugin.MCAP, CompressionMode.STORAGE),
        (StoragePlugin.MCAP, CompressionMode.FILE),
        (StoragePlugin.SQLITE3, CompressionMode.FILE),
        (StoragePlugin.SQLITE3, CompressionMode.MESSAGE),
    ],
)
def test_bags_compressed_with_zstd_are_read(
    lines: list[Line], tmp_path: Path, plugin: StoragePlugin, mode: CompressionMode
) -> None:
    def configure(writer: Writer) -> None:
        writer.set_compression(mode, CompressionFormat.ZSTD)

    assert replayed(write_bag(tmp_path / "bag", lines, plugin=plugin, configure=configure)).ticks


@pytest.mark.parametrize("compression", list(CompressionType))
def test_chunks_of_every_compression_are_read(
    lines: list[Line], tmp_path: Path, compression: CompressionType
) -> None:
    path = write_mcap(tmp_path / "run.mcap", lines, compression=compression, chunk_size=4096)
    assert replayed(path).ticks == 15


@pytest.mark.parametrize("plugin", list(StoragePlugin))
def test_a_bag_that_was_split_is_read_as_one(
    lines: list[Line], tmp_path: Path, plugin: StoragePlugin
) -> None:
    whole = split(lines, tmp_path, plugin)
    assert replayed(whole).ticks == 15


def split(lines: list[Line], folder: Path, plugin: StoragePlugin) -> Path:
    """Eleven files: bag_10 comes after bag_9."""
    whole = folder / "bag"
    whole.mkdir()
    names, cut = [], -(-len(lines) // 11)
    for part in range(11):
        chunk = lines[part * cut : (part + 1) * cut]
        made = write_bag(folder / f"part_{part}", chunk, plugin=plugin)
        file = next(each for each in made.iterdir() if each.suffix in (".mcap", ".db3"))
        names.append(f"bag_{part}{file.suffix}")
        shutil.move(file, whole / names[-1])
    metadata = yaml.safe_load((folder / "part_0" / "metadata.yaml").read_text())
    metadata["rosbag2_bagfile_information"]["relative_file_paths"] = names
    (whole / "metadata.yaml").write_text(yaml.safe_dump(metadata))
    return whole


def test_without_metadata_the_files_are_read_in_the_order_of_their_numbers(
    lines: list[Line], tmp_path: Path
) -> None:
    whole = split(lines, tmp_path, StoragePlugin.MCAP)
    (whole / "metadata.yaml").unlink()
    bag = Bag(whole)
    recorded = [raw.log_ns for raw in bag.messages(bag.topics())]
    assert recorded == sorted(line.log_ns for line in lines)
    report = replayed(whole)
    assert report.ticks == 15
    assert any("no metadata.yaml" in note for note in report.notes)


def test_a_file_of_a_split_bag_that_is_missing_is_named(lines: list[Line], tmp_path: Path) -> None:
    whole = split(lines, tmp_path, StoragePlugin.MCAP)
    (whole / "bag_6.mcap").unlink()
    assert any("missing: bag_6.mcap" in note for note in open_run(whole).notes)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_file_without_an_index_is_read_record_by_record(
    lines: list[Line], tmp_path: Path, chunked: bool
) -> None:
    path = write_mcap(
        tmp_path / "run.mcap", lines, use_chunking=chunked, chunk_size=4096, **NO_INDEX
    )
    report = replayed(path)
    assert report.ticks == 15
    assert any("no index" in note for note in report.notes)


@pytest.mark.parametrize(
    ("share", "compression"),
    [
        (0.3, CompressionType.NONE),
        (0.55, CompressionType.ZSTD),
        (0.8, CompressionType.LZ4),
        (0.97, CompressionType.ZSTD),
    ],
)
def test_of_a_file_that_was_cut_what_is_there_is_replayed(
    lines: list[Line], tmp_path: Path, share: float, compression: CompressionType
) -> None:
    path = write_mcap(tmp_path / "run.mcap", lines, compression=compression, chunk_size=2048)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    report = replayed(path)
    assert 0 < report.ticks <= 15
    assert any("cut or damaged" in note for note in report.notes)


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_of_a_database_that_was_cut_what_is_there_is_replayed(
    lines: list[Line], tmp_path: Path, share: float
) -> None:
    bag = write_bag(tmp_path / "bag", lines, plugin=StoragePlugin.SQLITE3)
    path = next(bag.glob("*.db3"))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    report = replayed(path)
    assert 0 < report.ticks < 15
    assert any("cut or damaged" in note for note in report.notes)


def test_of_a_database_that_was_not_closed_its_log_is_read_too(
    lines: list[Line], tmp_path: Path
) -> None:
    bag = write_bag(tmp_path / "bag", lines, plugin=StoragePlugin.SQLITE3)
    path = next(bag.glob("*.db3"))
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT * FROM messages WHERE id > 40").fetchall()
        database.execute("DELETE FROM messages WHERE id > 40")
        database.commit()
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA wal_autocheckpoint=0")
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO messages VALUES ({marks})", rows)
        database.commit()
        shutil.copytree(bag, tmp_path / "what is #left?")  # the power fails here
    left = tmp_path / "what is #left?"
    assert list(left.glob("*.db3-wal"))
    report = replayed(left)
    assert report.ticks == 15
    assert any("write-ahead log" in note for note in report.notes)


def test_a_bag_without_definitions_is_read_by_those_installed(
    lines: list[Line], tmp_path: Path
) -> None:
    bag = write_bag(tmp_path / "bag", lines, plugin=StoragePlugin.SQLITE3)
    with sqlite3.connect(next(bag.glob("*.db3"))) as database:
        database.execute("DELETE FROM message_definitions")
    assert replayed(bag).ticks == 15


def redefined(lines: list[Line], folder: Path, change: Callable[[str], str], **values: Any) -> Path:
    """A bag whose RunInfo has another definition, with further fields' values."""
    store = get_typestore(Stores.LATEST)
    text, _ = definitions().generate_msgdef(RUN_INFO, ros_version=2)
    store.register(get_types_from_msg(change(text), RUN_INFO))
    fields = [name for name, _ in store.fielddefs[RUN_INFO][1]]
    original = definitions().deserialize_cdr(serialize_message(lines[0].message), RUN_INFO)
    given = {name: values.get(name, getattr(original, name, None)) for name in fields}
    data = store.serialize_cdr(store.types[RUN_INFO](**given), RUN_INFO)
    path = write_bag(folder / "bag", lines[1:])
    writer = Writer(folder / "info", version=9, storage_plugin=StoragePlugin.MCAP)
    writer.open()
    connection = writer.add_connection(lines[0].topic, RUN_INFO, typestore=store)
    writer.write(connection, lines[0].log_ns, bytes(data))
    writer.close()
    shutil.move(folder / "info" / "info.mcap", path / "a_info.mcap")
    return path


def test_a_definition_with_a_further_field_is_read_by_names(
    lines: list[Line], tmp_path: Path
) -> None:
    bag = redefined(lines, tmp_path, lambda text: "string colour\n" + text, colour="blue")
    assert replayed(bag).ticks == 15


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("string contract\n", ""), "no field 'contract' .string."),
        (
            lambda text: text.replace("uint64 seed", "int32 seed"),
            "'seed' is int32, expected uint64",
        ),
    ],
)
def test_another_definition_of_the_same_name_is_refused_with_the_difference(
    lines: list[Line], tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    with pytest.raises(CannotReplay, match=f"RunInfo is another message .*{said}"):
        open_run(redefined(lines, tmp_path, change))


@pytest.mark.parametrize(
    "topic", ["/policy_node/run_info", "/policy_node/boundary", "/policy_node/action_chunk"]
)
def test_a_topic_that_is_missing_is_named(lines: list[Line], tmp_path: Path, topic: str) -> None:
    bag = write_bag(tmp_path / "bag", [line for line in lines if not line.topic.endswith(topic)])
    with pytest.raises(CannotReplay, match=topic.rpartition("/")[2]):
        open_run(bag)


def test_an_input_topic_that_is_missing_is_named(lines: list[Line], tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "bag", [line for line in lines if "image_raw" not in line.topic])
    with pytest.raises(CannotReplay, match=r"lacks /arm/camera/image_raw \(input 'camera'\)"):
        replay(open_run(bag), ToyPolicy())


def test_of_two_robots_in_one_bag_one_is_chosen_by_its_node(tmp_path: Path) -> None:
    lines = []
    for seed, node in ((1, "/left/policy_node"), (2, "/right/policy_node")):
        run = ToyRun(seed=seed, node=node)
        errand(run)
        run.close()
        lines += run.lines
    bag = write_bag(tmp_path / "bag", sorted(lines, key=lambda line: line.log_ns))
    with pytest.raises(CannotReplay, match=r"2 policy nodes .*left.*right.*--node"):
        open_run(bag)
    for node in ("/left/policy_node", "right/policy_node"):
        assert replayed(bag, node=node).ticks == 15
    with pytest.raises(CannotReplay, match="none_such"):
        open_run(bag, node="none_such")


def test_of_two_sessions_of_a_node_one_is_chosen(tmp_path: Path) -> None:
    runs = [ToyRun(seed=1), ToyRun(seed=2)]
    for run in runs:
        run.tick(3)  # the same numbers and the same stamps
        run.close()
    for line in runs[1].lines:
        line.log_ns += 10_000_000_000
    bag = write_bag(tmp_path / "bag", [line for run in runs for line in run.lines])
    with pytest.raises(CannotReplay, match="2 sessions"):
        open_run(bag)
    for run in runs:
        assert replayed(bag, session=run.session.id[:8]).ticks == 3


def test_messages_out_of_order_are_found_by_their_stamps(lines: list[Line], tmp_path: Path) -> None:
    late = [
        Line(line.topic, line.message, line.log_ns + 2_500_000_000)
        if "image_raw" in line.topic
        else line
        for line in lines
    ]
    late[1:4] = reversed(late[1:4])
    assert replayed(write_bag(tmp_path / "bag", late)).ticks == 15


def test_a_clock_that_starts_again_repeats_stamps_and_is_replayed(tmp_path: Path) -> None:
    run = ToyRun()
    run.tick(4)
    run.engine.clock_jumped().result()
    run.now_ns = run.start_ns
    run.tick(4)
    run.close()
    lines = [Line(line.topic, line.message, index) for index, line in enumerate(run.lines)]
    bag = write_bag(tmp_path / "bag", lines)
    assert [event.kind for event in open_run(bag).events].count("CLOCK_JUMP") == 1
    assert replayed(bag).ticks == 8


@pytest.mark.parametrize("content", [b"", b"no bag at all", b"\x89MCAP0\r\n"])
def test_what_is_no_bag_is_refused(tmp_path: Path, content: bytes) -> None:
    for suffix in (".mcap", ".db3", ".bag"):
        path = tmp_path / f"run{suffix}"
        path.write_bytes(content)
        with pytest.raises(CannotReplay):
            open_run(path)
    with pytest.raises(CannotReplay, match="no bag"):
        Bag(make(tmp_path / "empty"))


def make(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("plugin", list(StoragePlugin))
def test_of_a_damaged_bag_only_a_reason_or_a_difference_comes(
    lines: list[Line], tmp_path: Path, plugin: StoragePlugin
) -> None:
    """Bytes anywhere in the file: its structure, definitions, messages."""
    bag = write_bag(tmp_path / "bag", lines[:12], plugin=plugin)
    original = next(each for each in bag.iterdir() if each.suffix in (".mcap", ".db3"))
    path = tmp_path / f"damaged{original.suffix}"
    for seed in range(40):
        random = np.random.default_rng(seed)
        content = np.frombuffer(original.read_bytes(), dtype=np.uint8).copy()
        places = random.integers(0, len(content), random.choice([1, 1, 4]))
        content[places] = random.integers(0, 256, len(places))
        path.write_bytes(content.tobytes())
        with suppress(CannotReplay):
            replay(open_run(path), ToyPolicy())
