# SPDX-License-Identifier: Apache-2.0
"""A transformers cache whose every tensor is a view into an arena.

The layers subclass those of transformers, because models and mask functions ask for their types.
They differ in what they own: nothing. Position and lengths are not Python numbers but the position
buffer; "no previous state" is not a flag but a state of zeros, which is what an empty convolution
window and an empty recurrent state are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import cache_utils as known
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from flashrt_ros.models.language.geometry import LayerGeometry, LayerKind
from flashrt_ros.runtime import Arena


@dataclass
class Frame:
    """What one replay looks at.

    Attributes:
        position: int64 scalar buffer: rows that are valid before this replay.
        rows: int64 [length], where the new rows go.
        bucket: rows that attention reads; a constant of the shape key.
        steps: while drafts are verified, the states of recurrent layers after each token.

    Rows, bucket and steps are set by the plan's function before every forward, so no replay
    depends on what an earlier one left here.
    """

    position: Tensor
    rows: Tensor
    bucket: int = 0
    steps: dict[int, list[list[Tensor]]] | None = None


class ArenaRows(CacheLayerMixin):
    """Keys and values of one attention layer: append rows of the arena.

    Sliding-window layers keep all rows too and let the mask hide the old ones: that is exact at
    every length, and rows that are never overwritten are shared between capsules.
    """

    is_compileable = True
    is_croppable = False
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, frame: Frame, *, sliding: bool) -> None:
        super().__init__()
        self._hold_rows(keys, values, frame, sliding)

    def _hold_rows(self, keys: Tensor, values: Tensor, frame: Frame, sliding: bool) -> None:
        # [heads, rows, size] in the arena; models think in batches
        self.keys: Tensor = keys.unsqueeze(0)
        self.values: Tensor = values.unsqueeze(0)
        self.frame = frame
        self.is_sliding = sliding
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the arena was laid out before."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows at the position, return the first `bucket` rows."""
        self.keys.index_copy_(2, self.frame.rows, key_states)
        self.values.index_copy_(2, self.frame.rows, value_states)
        bucket = self.frame.bucket
        return self.keys[:, :, :bucket], self.values[:, :, :bucket]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.frame.bucket, 0

    def get_seq_length(self) -> Tensor:
        return self.frame.position

    def get_max_length(self) -> int:
        return int(self.keys.shape[-2])


class ArenaStates(LinearAttentionLayer):
    """Convolution windows and recurrent states of one layer: fixed buffers of the arena."""

    def __init__(self, conv: list[Tensor], recurrent: list[Tensor]) -> None:
        super().__init__(number_of_states=max(len(conv), len(recurrent), 1))
        self._hold_states(conv, recurrent)

    def _hold_states(self, conv: list[Tensor], recurrent: list[Tensor]) -> None:
        for index, state in enumerate(conv):
            self.conv_states[index] = state
            self.conv_kernel_size[index] = state.shape[-1]
            self.is_conv_states_initialized[index] = True
            self.device, self.dtype = state.device, state.dtype
        for index, state in enumerate(recurrent):
            self.recurrent_states[index] = state
            self.is_recurrent_states_initialized[index] = True
        for index in self.has_previous_state:
            self.has_previous_state[index] = True


class ArenaRowsAndStates(ArenaStates, ArenaRows):
    """Both in one layer, as models that run attention and a state space side by side have."""

    is_compileable = True
    is_croppable = False

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        frame: Frame,
        conv: list[Tensor],
        recurrent: list[Tensor],
        *,
        sliding: bool,
    ) -> None:
        ArenaStates.__init__(self, conv, recurrent)
        self._hold_rows(keys, values, frame, sliding)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the arena was laid out before."""

    def get_max_length(self) -> int:
        return ArenaRows.get_max_length(self)


class ArenaCache(Cache):
    """The cache of one live state."""

    def __init__(self, geometry: tuple[LayerGeometry, ...], arena: Arena, frame: Frame) -> None:
        super().__init__(layers=[_layer(layer, arena, frame) for layer in geometry])
        self.frame = frame

    def get_seq_length(self, layer_idx: int = 0) -> Tensor:
        return self.frame.position

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        return self.frame.position

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.frame.bucket, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        rows = [layer.get_max_length() for layer in self.layers]
        return max(rows) if layer_idx is None else rows[layer_idx]


def _layer(geometry: LayerGeometry, arena: Arena, frame: Frame) -> Any:
    conv = [arena[spec.name] for spec in geometry.conv]
    recurrent = [arena[spec.name] for spec in geometry.recurrent]
    sliding = geometry.kind in (LayerKind.SLIDING, LayerKind.SLIDING_AND_STATES)
    if geometry.kind is LayerKind.NONE:
        return known.DummyLayer()  # only where transformers has it is this kind ever found
    if geometry.kind is LayerKind.STATES:
        return ArenaStates(conv, recurrent)
    keys, values = (arena[spec.name] for spec in geometry.rows)
    if geometry.kind in (LayerKind.FULL, LayerKind.SLIDING):
        return ArenaRows(keys, values, frame, sliding=sliding)
    return ArenaRowsAndStates(keys, values, frame, conv, recurrent, sliding=sliding)
