# SPDX-License-Identifier: Apache-2.0
"""The closed set: what may be declared, where it lies, and that it stays there."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.runtime import Arena, BufferSpec, Kind, Layout, Role
from flashrt_ros.runtime.errors import InternalFault, InvalidArgument

ROWS = BufferSpec("meta.rows", Role.META, torch.int64, ())
KEY = BufferSpec("key", Role.KV, torch.bfloat16, (2, 32, 3), Kind.APPEND, 1, "meta.rows")
VALUE = BufferSpec("value", Role.KV, torch.float64, (32, 5), Kind.APPEND, 0, "meta.rows")
FLAG = BufferSpec("flag", Role.IO, torch.bool, (3,))


@pytest.mark.parametrize("layout", list(Layout))
def test_buffers_have_their_shape_and_share_no_byte(layout: Layout) -> None:
    arena = Arena([ROWS, KEY, VALUE, FLAG], layout=layout)
    for number, name in enumerate(arena):
        arena[name].fill_(number)
    for number, name in enumerate(arena):
        assert arena[name].shape == arena.table[name].shape
        assert arena[name].dtype == arena.table[name].dtype
        assert (arena[name] == number).all(), name
    assert arena["key"] is arena["key"]


@pytest.mark.parametrize("layout", list(Layout))
def test_a_range_of_rows_is_few_contiguous_pieces(layout: Layout) -> None:
    arena = Arena([ROWS, KEY, VALUE], layout=layout)
    (group,) = arena.groups
    pieces = [plane[head, 3:9] for plane in group.planes for head in range(plane.shape[0])]
    assert all(piece.is_contiguous() for piece in pieces)
    assert len(pieces) == (3 if layout is Layout.SHAPE else 1)  # two heads of keys, and values
    assert arena["key"].is_contiguous() == (layout is Layout.SHAPE)
    arena["key"][:, 4] = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    row = arena.row_bytes("key", 5)[4].view(torch.bfloat16)
    assert row.tolist() == [1, 2, 3, 4, 5, 6]


def test_fixed_buffers_are_one_allocation() -> None:
    arena = Arena([ROWS, FLAG])
    arena.fixed.zero_()
    arena["meta.rows"].fill_(-1)
    assert int((arena.fixed == 255).sum()) == 8


def test_a_sealed_set_takes_no_more_buffers() -> None:
    arena = Arena([ROWS])
    arena.add(FLAG)
    table = arena.seal()
    assert [spec.name for spec in table] == ["flag", "meta.rows"]
    with pytest.raises(InvalidArgument, match="the set is closed"):
        arena.add(KEY)


def test_a_buffer_cannot_be_resized() -> None:
    arena = Arena([ROWS, FLAG])
    arena.seal()
    before = arena["flag"].data_ptr()
    with pytest.raises(RuntimeError, match="not resizable"):
        arena["flag"].resize_(1 << 20)
    assert arena["flag"].data_ptr() == before


def test_a_buffer_whose_storage_was_replaced_is_found() -> None:
    arena = Arena([ROWS, FLAG])
    arena.seal()
    arena["flag"].set_(torch.zeros(3, dtype=torch.bool))  # type: ignore[call-overload]
    assert arena.moved() == ["flag"]
    with pytest.raises(InternalFault, match="flag"):
        arena.check_unmoved()


def test_the_table_names_every_buffer_and_its_digest_everything_about_it() -> None:
    table = Arena([ROWS, KEY]).table
    assert str(table).splitlines() == [
        "key kv append bfloat16 2x32x3 rows=1@meta.rows",
        "meta.rows meta fixed int64 scalar",
    ]
    assert table.digest() == Arena([KEY, ROWS], layout="row").table.digest()
    for other in (
        BufferSpec("key", Role.IO, torch.bfloat16, (2, 32, 3), Kind.APPEND, 1, "meta.rows"),
        BufferSpec("key", Role.KV, torch.float16, (2, 32, 3), Kind.APPEND, 1, "meta.rows"),
        BufferSpec("key", Role.KV, torch.bfloat16, (32, 2, 3), Kind.APPEND, 0, "meta.rows"),
    ):
        assert Arena([ROWS, other]).table.digest() != table.digest()


@pytest.mark.parametrize(
    ("specs", "reason"),
    [
        ([ROWS, ROWS], "declared twice"),
        ([KEY], "row_counter 'meta.rows' is not declared"),
        ([BufferSpec("meta.rows", Role.META, torch.int32, ()), KEY], "expected a fixed int64"),
        (
            [ROWS, KEY, BufferSpec("x", Role.KV, torch.int8, (9,), Kind.APPEND, 0, "meta.rows")],
            "9 rows, but others",
        ),
    ],
)
def test_a_set_that_is_not_closed_is_refused(specs: list[BufferSpec], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        Arena(specs).seal()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("Key", Role.KV, torch.int8, (1,)), "dotted lower case"),
        (("a..b", Role.KV, torch.int8, (1,)), "dotted lower case"),
        (("a", Role.KV, torch.int8, (0,)), "empty dimension"),
        (("a", Role.KV, torch.int8, (4,), Kind.APPEND), "names a row_counter"),
        (("a", Role.KV, torch.int8, (4,), Kind.APPEND, 1, "n"), "row_dim 1"),
        (("a", Role.KV, torch.int8, (4,), Kind.FIXED, 0, "n"), "has no row_counter"),
    ],
)
def test_a_specification_that_makes_no_sense_is_refused(arguments: tuple, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        BufferSpec(*arguments)
