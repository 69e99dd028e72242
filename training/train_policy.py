# SPDX-License-Identifier: Apache-2.0
"""Stages 2 and 3: the backbone and the action head, on the frozen encoder's features."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from flashrt_ros.models.streaming_vla.checkpoint import Checkpoint
from training.progress import load_state, save_state
from training.rollout import Sequences
from training.scripts import PHRASES

_HOLD = 4  # class of the intent readout for "wait" and "go home"
_IGNORE = -100


@dataclass(frozen=True)
class Recipe:
    """How long and how fast. rate: peak learning rate; steps: optimiser steps; ema: decay of the
    averaged weights, which are what is saved."""

    steps: int
    rate: float
    batch: int = 16
    warmup: int = 100
    ema: float = 0.995
    weight_decay: float = 0.01
    seed: int = 0


class Readouts(nn.Module):
    """What the backbone's output is asked for while it learns, and never after: the colour that
    the lamp showed last, and which block is meant now."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cue = nn.Linear(hidden, 5)
        self.intent = nn.Linear(hidden, 5)


def intents(sequences: Sequences) -> Tensor:
    """int64 [episodes, ticks]: index of the block that is meant, _HOLD, or not to be known."""
    phrases, cues = sequences.phrases, sequences.cues
    intent = torch.where(phrases >= 3, phrases - 3, _HOLD)
    remembered = torch.where(cues == 4, _IGNORE, cues)
    return torch.where(phrases == 2, remembered, intent)


class PolicyTrainer:
    """Trains a checkpoint's network in place, all but its encoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.network = checkpoint.network
        self.readouts = Readouts(checkpoint.config.hidden_size)
        self.network.vision.requires_grad_(False)
        self._ids = torch.tensor([checkpoint.tokenizer.encode(p) for p in PHRASES])

    def losses(self, batch: Sequences, intent: Tensor) -> dict[str, Tensor]:
        """Mean losses over a batch, each by its name."""
        network, normalisation = self.network, self.checkpoint.normalisation
        state = normalisation.state(batch.joints)
        hidden = network(batch.features, self._ids[batch.phrases], state)
        goals = normalisation.state(batch.goals)
        actions = normalisation.actions(batch.chunks, batch.joints).flatten(2)
        condition = network.condition(hidden, state)
        flow = network.head.loss(actions.flatten(0, 1), condition.flatten(0, 1))
        cue, intended = self.readouts.cue(hidden), self.readouts.intent(hidden)
        return {
            "flow": flow.mean(),
            "goal": F.smooth_l1_loss(network.goal(hidden), goals, beta=0.1),
            "cue": F.cross_entropy(cue.flatten(0, 1), batch.cues.flatten()),
            "intent": F.cross_entropy(
                intended.flatten(0, 1), intent.flatten(), ignore_index=_IGNORE
            ),
        }

    def train(self, data: Sequences, recipe: Recipe, state_file: Path, name: str) -> None:
        """Optimise, going on from state_file where interrupted. Ends with averaged weights."""
        modules = nn.ModuleList([self.network, self.readouts])
        trained = [p for p in modules.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=recipe.rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, recipe.rate, total_steps=recipe.steps,
            pct_start=recipe.warmup / recipe.steps, cycle_momentum=False,
        )  # fmt: skip
        average = copy.deepcopy(modules)
        begin = 0
        if (state := load_state(state_file)) is not None:
            modules.load_state_dict(state["modules"])
            average.load_state_dict(state["average"])
            optimizer.load_state_dict(state["optimizer"])
            schedule.load_state_dict(state["schedule"])
            begin = state["step"]

        def save(step: int) -> None:
            save_state(state_file, {
                "modules": modules.state_dict(), "average": average.state_dict(),
                "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
                "step": step,
            })  # fmt: skip

        intent = intents(data)
        self.network.train()
        bar = tqdm(range(begin, recipe.steps), desc=name, mininterval=10,
                   initial=begin, total=recipe.steps)  # fmt: skip
        for step in bar:
            draw = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
            torch.manual_seed(recipe.seed * 1_000_003 + step)  # the flow's noise and times
            rows = torch.randperm(len(data), generator=draw)[: recipe.batch]
            batch = Sequences(*(getattr(data, f)[rows] for f in Sequences.__dataclass_fields__))
            losses = self.losses(batch, intent[rows])
            total = losses["flow"] + 2 * losses["goal"] + 0.3 * losses["cue"]
            total = total + 0.3 * losses["intent"]
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            schedule.step()
            decay = min(recipe.ema, (step + 1) / (step + 20))
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), modules.parameters(), strict=True):
                    slow.lerp_(fast, 1 - decay)
            if step % 20 == 0:
                bar.set_postfix({k: f"{v.item():.4f}" for k, v in losses.items()})
            if (step + 1) % 100 == 0:
                save(step + 1)
        save(recipe.steps)
        modules.load_state_dict(average.state_dict())
        self.network.eval()
