# SPDX-License-Identifier: Apache-2.0
"""Raw bytes: where they are allocated, how they are recycled, how they are copied.

Page faults decide what a capsule costs: a first write to fresh memory is several times slower
than a copy into memory that was used before. So blocks come from a pool and go back to it.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this many bytes (or with one intra-op thread) a plain memmove beats Tensor.copy_, which
# waits for a second thread at every copy: on a busy machine that costs milliseconds. Above it the
# threads pay (docs/benchmarks.md).
_SMALL = 2 << 20
_PIECES = 8  # strided pieces that are worth a call each
_FAULTS = 256 << 10  # from here on fresh pages cost more than a verb does otherwise


def allocate(nbytes: int, device: torch.device, *, pinned: bool = False) -> Tensor:
    """Zeroed bytes, uint8 [nbytes].

    On CPU the memory is mapped, not taken from the heap: pages appear when they are first
    written (an arena with room for 64k rows costs what is used of it), huge pages are asked for,
    and the storage cannot be resized, so no tensor operation can move a buffer.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type != "cpu":
        return torch.zeros(nbytes, dtype=torch.uint8, device=device)
    if pinned:
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)
    mapped = mmap.mmap(-1, nbytes)
    if nbytes >= 2 << 20 and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without transparent huge pages
            pass
    return torch.frombuffer(mapped, dtype=torch.uint8)


def typed(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Contiguous bytes uint8 [n] as one dimension of `dtype`, the same memory.

    On CPU not as a view in torch's sense: torch.compile refuses to write into views of another
    dtype, and takes buffers that share an allocation for one input.
    """
    if data.device.type == "cpu":
        return torch.frombuffer(data.numpy(), dtype=dtype)
    return data.view(dtype)


def copy_bytes(destination: Tensor, source: Tensor) -> None:
    """Copy uint8 [n], or [outer, rows, inner] with contiguous rows, to the same shape.

    Returns when the bytes are there (CPU) or when the copy is queued on the current stream (CUDA).
    """
    size = source.numel()
    if (
        destination.device.type == "cpu"
        and source.device.type == "cpu"
        and (size <= _SMALL or torch.get_num_threads() == 1)
    ):
        pieces = 1 if source.is_contiguous() and destination.is_contiguous() else source.shape[0]
        if pieces == 1:
            ctypes.memmove(destination.data_ptr(), source.data_ptr(), size)
            return
        if pieces <= _PIECES:
            to, step_to = destination.data_ptr(), destination.stride(0)
            of, step_of = source.data_ptr(), source.stride(0)
            for piece in range(pieces):
                ctypes.memmove(to + piece * step_to, of + piece * step_of, size // pieces)
            return
    wide_to, wide_of = _widened(destination, source)
    wide_to.copy_(wide_of, non_blocking=True)


def _widened(destination: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """The same bytes as int64 where sizes and places allow it: a strided copy on a GPU moves an
    element a thread, which for bytes is an eighth of the width that memory wants."""
    both = (destination, source)
    if all(each.is_contiguous() for each in both) or any(
        each.device.type == "cpu" for each in both
    ):
        return both
    places = [
        place for each in both for place in (each.data_ptr(), *each.stride()[:-1], each.shape[-1])
    ]
    if any(place % 8 for place in places):
        return both
    return destination.view(torch.int64), source.view(torch.int64)


def synchronise(device: torch.device) -> None:
    """Wait until queued copies on the current stream of `device` are done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@dataclass(eq=False)
class Block:
    """A piece of memory on loan from a pool: `data`, uint8 [nbytes]."""

    data: Tensor
    pool: Pool

    @property
    def nbytes(self) -> int:
        return self.data.numel()

    def release(self) -> None:
        """Give the memory back; the caller knows that nothing reads or writes it any more."""
        self.pool.put_back(self)


class Pool:
    """Blocks of one device, recycled by size. Thread-safe.

    While anybody reads (`reading`), what is given back waits: memory is never recycled under a
    copy, and a reader need not know who drops what meanwhile.

    When more and more blocks of a size are taken and none comes back, `take_wanted` names the
    size: whoever can do so without delaying a replay then calls `stock` for it.
    """

    def __init__(
        self, device: torch.device, *, pinned: bool = False, keep_bytes: int = 512 << 20
    ) -> None:
        self.device = device
        self.used_bytes = 0
        self.free_bytes = 0
        self._wanted: set[int] = set()
        self._asked: set[int] = set()
        self._returned: set[int] = set()  # sizes of which one came back since the last take
        self._pinned = pinned
        self._keep_bytes = keep_bytes  # free memory that is kept for the next request
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._readers = 0
        self._waiting: list[Tensor] = []
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Block:
        """A block of exactly `nbytes`; what it holds is undefined.

        Raises torch.OutOfMemoryError or MemoryError / OSError when there is no memory.
        """
        with self._lock:
            known = self._free.get(nbytes)
            data = known.pop() if known else None
            if data is not None:
                self.free_bytes -= nbytes
            self.used_bytes += nbytes
            growing = nbytes in self._asked and nbytes not in self._returned
            if growing and not self._free.get(nbytes) and nbytes >= _FAULTS:
                self._wanted.add(nbytes)
            self._asked.add(nbytes)
            self._returned.discard(nbytes)
        if data is None:
            try:
                data = allocate(nbytes, self.device, pinned=self._pinned)
            except BaseException:
                with self._lock:
                    self.used_bytes -= nbytes
                raise
        return Block(data, self)

    def take_wanted(self) -> set[int]:
        """Sizes that `stock` should have ready; asked once."""
        if not self._wanted:
            return set()
        with self._lock:
            wanted, self._wanted = self._wanted, set()
            return wanted

    def stock(self, nbytes: int) -> None:
        """Have a free block of this size whose pages were touched already."""
        with self._lock:
            self._asked.add(nbytes)
            if self._free.get(nbytes) or self.free_bytes + nbytes > self._keep_bytes:
                return
        data = allocate(nbytes, self.device, pinned=self._pinned).zero_()
        with self._lock:
            self._free[nbytes].append(data)
            self.free_bytes += nbytes

    def put_back(self, block: Block) -> None:
        with self._lock:
            if self._readers:
                self._waiting.append(block.data)
            else:
                self._keep(block.data)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Nothing that was in use when this was entered is recycled before it is left."""
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                if not self._readers:
                    for data in self._waiting:
                        self._keep(data)
                    self._waiting.clear()

    def trim(self) -> None:
        """Let go of all free memory."""
        with self._lock:
            self._free.clear()
            self.free_bytes = 0

    def _keep(self, data: Tensor) -> None:
        nbytes = data.numel()
        self.used_bytes -= nbytes
        self._returned.add(nbytes)
        if nbytes and self.free_bytes + nbytes <= self._keep_bytes:
            self._free[nbytes].append(data)
            self.free_bytes += nbytes
