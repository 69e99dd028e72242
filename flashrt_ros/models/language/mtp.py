# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction of Qwen3.5 and Qwen3-Next: a small head drafts, the model verifies.

The head (one decoder layer with its own rows) sees a token together with the hidden state that the
model had one position earlier, and predicts the token after it. Its weights are the `mtp.*` tensors
of the checkpoint, which transformers leaves out; embedding and output layer are the model's.
Structure: `Qwen3NextMultiTokenPredictor` of vLLM and `MtpModel` of transformers 5.24.

Where things are: row j of the head belongs to token j and the hidden state of position j - 1, so
the head's rows are counted by the same position as the model's. Row 0 has no hidden state before
it; no later row looks at it.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from flashrt_ros.models.language.cache import ArenaCache, Frame
from flashrt_ros.models.language.forward import cache_argument
from flashrt_ros.models.language.geometry import ROWS, LayerGeometry, LayerKind
from flashrt_ros.runtime import Arena, BufferSpec, Kind, Role
from flashrt_ros.runtime.errors import Unsupported

HIDDEN = "mtp.hidden"
LIMIT = "mtp.limit"
STOP = "mtp.stop"
MOST_STOP_TOKENS = 8

_FAMILIES = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"})
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class MtpHead(nn.Module):
    """The head's own weights, named as in the checkpoint."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = copy.deepcopy(model.config.get_text_config(decoder=True))
        config.num_hidden_layers = 1
        config.layer_types = ["full_attention"]
        if hasattr(config, "mlp_only_layers"):
            config.mlp_only_layers, config.decoder_sparse_step = [], 1
        decoder = model.model
        size = config.hidden_size
        norm = type(decoder.norm)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = norm(size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([type(decoder.layers[0])(config, 0)])
        self.norm = norm(size, eps=config.rms_norm_eps)
        # the model's own, not owned: they must not become part of this head's weights
        self._shared: Any = (decoder.embed_tokens, decoder.rotary_emb, model.lm_head)

    def hidden(self, tokens: Tensor, before: Tensor, cache: ArenaCache) -> Tensor:
        """Hidden states [length, size] after tokens int64 [length], and write their rows.

        Args:
            before: [length, size], hidden states of the position before each token.
            cache: the head's; its frame says where the rows go.
        """
        embed, rotary, _ = self._shared
        frame = cache.frame
        positions = frame.rows[None]
        joined = torch.cat(
            (self.pre_fc_norm_embedding(embed(tokens)), self.pre_fc_norm_hidden(before)), dim=-1
        )
        states = self.fc(joined)[None]
        layer = self.layers[0]
        options: dict[str, Any] = {cache_argument(layer): cache}
        states = layer(
            states,
            position_embeddings=rotary(states, positions),
            attention_mask=_mask(frame, states.dtype),
            position_ids=positions,
            use_cache=True,
            **options,
        )
        if isinstance(states, tuple):
            states = states[0]
        result: Tensor = self.norm(states)[0]
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [length, vocabulary] of hidden states [length, size]."""
        result: Tensor = self._shared[2](hidden)
        return result


def _mask(frame: Frame, dtype: torch.dtype) -> Tensor:
    """Causal, without row 0 but for itself; additive [1, 1, length, bucket]."""
    row = torch.arange(frame.bucket, device=frame.rows.device)
    query = frame.rows[:, None]
    visible = (row <= query) & ((row > 0) | (query == 0))
    mask = torch.zeros((), dtype=dtype, device=row.device).expand(visible.shape)
    return mask.masked_fill(~visible, float("-inf"))[None, None]


def load_head(model: Any, folder: Path, dtype: torch.dtype) -> MtpHead:
    """The head of a checkpoint directory.

    Raises:
        Unsupported: the family has no such head, the checkpoint has no `mtp.*` tensors, or they
            are others than the head needs; names them.
    """
    family = model.config.model_type
    if family not in _FAMILIES:
        known = ", ".join(sorted(_FAMILIES))
        raise Unsupported(f"{family} has no multi-token prediction here; known: {known}")
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                if name.startswith("mtp."):
                    tensors[name.removeprefix("mtp.")] = stored.get_tensor(name).to(dtype)
    if not tensors:
        raise Unsupported(f"{folder} has no mtp.* tensors: adopt it with draft_tokens=0")
    with torch.device("meta"):
        head = MtpHead(model)
    missing, unexpected = head.load_state_dict(_fused(tensors), strict=False, assign=True)
    if missing or unexpected:
        raise Unsupported(f"the mtp.* tensors lack {missing} and have {unexpected} too many")
    return head.eval().requires_grad_(False)


def _fused(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoints keep experts one by one, the modules of transformers stacked."""
    experts: dict[str, dict[tuple[int, str], Tensor]] = {}
    result = {}
    for name, tensor in tensors.items():
        found = _EXPERT.fullmatch(name)
        if found is None:
            result[name] = tensor
        else:
            experts.setdefault(found[1], {})[int(found[2]), found[3]] = tensor
    for prefix, parts in experts.items():
        count = 1 + max(index for index, _ in parts)
        gate_up = [torch.cat((parts[i, "gate"], parts[i, "up"])) for i in range(count)]
        result[f"{prefix}.gate_up_proj"] = torch.stack(gate_up)
        result[f"{prefix}.down_proj"] = torch.stack([parts[i, "down"] for i in range(count)])
    return result


class Stepwise(nn.Module):
    """A recurrent layer that can go token by token and remember its states after each.

    Verifying sees several tokens at once, and afterwards the state must be the one after the last
    accepted token. A chunk kernel gives only the last state. So while the frame asks for it, the
    layer takes its one-token path for each token, the very computation of plain decoding.
    """

    def __init__(self, inner: nn.Module, index: int) -> None:
        super().__init__()
        self.inner = inner
        self.index = index

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        cache = options.get("cache", options.get("cache_params"))
        steps = cache.frame.steps if isinstance(cache, ArenaCache) else None
        if steps is None:
            result: Tensor = self.inner(hidden_states, **options)
            return result
        assert cache is not None
        states = live_states(cache, self.index)
        outputs = []
        for one in hidden_states.split(1, dim=1):
            outputs.append(self.inner(one, **options))
            steps.setdefault(self.index, []).append([state.clone() for state in states])
        return torch.cat(outputs, dim=1)


def live_states(cache: ArenaCache, index: int) -> list[Tensor]:
    """The state buffers of a layer."""
    layer = cache.layers[index]
    states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return [state for state in states if state is not None]


def make_stepwise(model: Any) -> None:
    """Let the recurrent layers of a model go token by token when asked to."""
    for index, layer in enumerate(model.model.layers):
        inner = getattr(layer, "linear_attn", None)
        if inner is not None and not isinstance(inner, Stepwise):
            layer.linear_attn = Stepwise(inner, index)


def head_geometry(geometry: tuple[LayerGeometry, ...]) -> LayerGeometry:
    """The head's rows: like those of a full attention layer of the model."""
    like = next(layer for layer in geometry if layer.kind is LayerKind.FULL)
    rows = tuple(
        BufferSpec(name, Role.MTP, spec.dtype, spec.shape, Kind.APPEND, 1, ROWS)
        for name, spec in zip(("mtp.key", "mtp.value"), like.rows, strict=True)
    )
    return LayerGeometry(0, LayerKind.FULL, rows)


def head_specs(geometry: LayerGeometry, size: int) -> list[BufferSpec]:
    """All buffers that drafting adds to a state."""
    return [
        *geometry.specs,
        BufferSpec(HIDDEN, Role.MTP, geometry.rows[0].dtype, (size,)),
        BufferSpec(LIMIT, Role.IO, torch.int64, ()),
        BufferSpec(STOP, Role.IO, torch.int64, (MOST_STOP_TOKENS,)),
    ]


class Drafting:
    """The head over one arena."""

    def __init__(self, head: MtpHead, geometry: LayerGeometry, arena: Arena, count: int) -> None:
        self.count = count
        self._head = head
        self._arena = arena
        self._frame = Frame(arena[ROWS], arena[ROWS].view(1))
        self._cache = ArenaCache((geometry,), arena, self._frame)

    def follow(self, tokens: Tensor, hidden: Tensor, rows: Tensor, bucket: int) -> None:
        """Write the head's rows for tokens that the model has seen.

        Args:
            hidden: [length, size], what the model made of these tokens.
        """
        self._frame.rows, self._frame.bucket = rows, bucket
        before = torch.cat((self._arena[HIDDEN][None], hidden[:-1]))
        self._head.hidden(tokens, before, self._cache)

    def keep(self, hidden: Tensor) -> None:
        """Keep the hidden state [size] of the last token seen."""
        self._arena[HIDDEN].copy_(hidden)

    def draft(self, pending: Tensor, rows: Tensor, bucket: int) -> Tensor:
        """The pending token and the drafts after it, int64 [count + 1]. Their rows are scratch."""
        tokens = [pending.view(1)]
        before = self._arena[HIDDEN][None]
        for index in range(self.count):
            self._frame.rows, self._frame.bucket = rows[index : index + 1], bucket
            before = self._head.hidden(tokens[-1], before, self._cache)
            tokens.append(self._head.logits(before).argmax(dim=-1))
        return torch.cat(tokens)

    def accepted(self, tokens: Tensor, best: Tensor) -> Tensor:
        """How many drafts to keep, int64 scalar.

        Those that greedy decoding would have said, up to the first wrong one; not past a stop
        token, which must stay the pending one, nor past the limit.
        """
        drafts = tokens[1:]
        right = (drafts == best[:-1]).long().cumprod(0).sum()
        stops = (drafts[:, None] == self._arena[STOP][None]).any(dim=-1)
        before_stop = (~stops).long().cumprod(0).sum()
        return torch.minimum(torch.minimum(right, before_stop), self._arena[LIMIT])


def select(steps: dict[int, list[list[Tensor]]], cache: ArenaCache, index: Tensor) -> None:
    """Make the states after step `index` (int64 [1]) the live ones."""
    for layer, taken in steps.items():
        for state, each in zip(live_states(cache, layer), zip(*taken, strict=True), strict=True):
            state.copy_(torch.stack(each).index_select(0, index)[0])
