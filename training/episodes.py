# SPDX-License-Identifier: Apache-2.0
"""Episodes in the simulated world, labelled by the expert at every tick whoever acts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tqdm import tqdm

from flashrt_ros.sim import expert
from flashrt_ros.sim.scene import COLOURS, HOME
from flashrt_ros.sim.world import ArmWorld
from training.scripts import EPISODE_TICKS, Script, draw_script

EPISODE_SEEDS = 1_000_000  # of training; seeds below are held out
CHUNK_LENGTH, CHUNK_DT = 8, 0.05
TIMES = (np.arange(CHUNK_LENGTH) + 1) * CHUNK_DT
NO_CUE = len(COLOURS)
SHARD_EPISODES = 50


@dataclass(frozen=True)
class Episodes:
    """Recorded ticks, [episodes, ticks, ...].

    images: uint8 [..., 64, 64, 3]; joints: float32 [..., 5] rad; phrases: int64, index into
    PHRASES; chunks: float32 [..., 8, 5] rad, absolute, the expert's; goals: float32 [..., 5] rad,
    where the expert is going; cues: int64, the colour shown last, 4 if none was seen.
    """

    images: np.ndarray
    joints: np.ndarray
    phrases: np.ndarray
    chunks: np.ndarray
    goals: np.ndarray
    cues: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    @staticmethod
    def joined(parts: list[Episodes]) -> Episodes:
        return Episodes(
            *(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Episodes))
        )

    def save(self, folder: Path) -> None:
        """One .npy a field, so that images can be mapped into memory."""
        partial = folder.with_name(folder.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        for f in fields(self):
            np.save(partial / f"{f.name}.npy", getattr(self, f.name))
        partial.rename(folder)

    @staticmethod
    def load(folder: Path) -> Episodes:
        return Episodes(
            *(np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(Episodes))
        )


class Episode:
    """One running episode: a script in a world, disturbed, and labelled."""

    def __init__(self, seed: int, *, disturb: bool = True, script: Script | None = None) -> None:
        self._draw = np.random.Generator(np.random.Philox(key=[seed, 0xE915]))
        self.script = draw_script(self._draw) if script is None else script
        self.world = ArmWorld(seed)
        self.tick = 0
        self.seen_cue = NO_CUE
        self._disturb = disturb
        level = self._draw.random()
        self._level = 0.0 if not disturb or level < 0.35 else 0.03 if level < 0.7 else 0.07
        self._offset = np.zeros(5)
        self._kick_left, self._kick_goal = 0, HOME
        if self.script.skip:
            self._pass_unseen()

    def _pass_unseen(self) -> None:
        """What happened before the policy began: the arm went somewhere."""
        goal = self._somewhere() if self._draw.random() < 0.5 else HOME
        for _ in range(self.script.skip):
            joints = self.world.truth().joint_positions
            self._send(expert.step_towards(joints, goal, 0.1)[None], np.array([0.1]))
            self.world.advance_tick()

    def _somewhere(self) -> np.ndarray:
        radius, azimuth = self._draw.uniform(0.2, 0.4), self._draw.uniform(-1.0, 1.0)
        height = self._draw.uniform(0.09, 0.28)
        point = np.array([radius * np.cos(azimuth), radius * np.sin(azimuth), height])
        return expert.inverse_kinematics(point) + self._draw.normal(0, 0.05, 5)

    @property
    def phrase(self) -> int:
        return int(self.script.phrases[self.tick])

    def label(self, joints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The expert's chunk [8, 5] and goal [5] at joints [5]."""
        if self.world.lamp in COLOURS:
            self.seen_cue = COLOURS.index(self.world.lamp)
        if self.phrase == 0:
            return expert.plan_wait(joints, CHUNK_LENGTH), joints
        if self.phrase == 1:
            return expert.plan_home(joints, CHUNK_LENGTH, CHUNK_DT), HOME
        target = self.phrase - 3
        if self.phrase == 2:
            target = self.script.guess if self.seen_cue == NO_CUE else self.seen_cue
        top = self.world.truth().block_positions[target]
        chunk = expert.plan_reach(joints, top, CHUNK_LENGTH, CHUNK_DT)
        return chunk, expert.inverse_kinematics(expert.touch_point(top))

    def act(self, chunk: np.ndarray) -> None:
        """Execute a chunk [8, 5], with this episode's disturbance, for a tick."""
        chunk = self._disturbed(np.asarray(chunk, dtype=np.float64))
        self._send(chunk, TIMES)
        for event in self.script.lamp:
            if event.tick == self.tick + 1:
                self.world.light_lamp(COLOURS[event.colour], event.ticks)
        self.world.advance_tick()
        self.tick += 1

    def _send(self, positions: np.ndarray, times: np.ndarray) -> None:
        self.world.command(self.world.time_ns, times, positions)

    def _disturbed(self, chunk: np.ndarray) -> np.ndarray:
        """Wandering offsets and pushes elsewhere, so that the data hold ways back from errors
        (after DART, Laskey et al. 2017, arXiv 1703.09327)."""
        if not self._disturb:
            return chunk
        self._offset = 0.8 * self._offset + 0.6 * self._level * self._draw.normal(size=5)
        if self._kick_left == 0 and self._draw.random() < 0.015:
            self._kick_left, self._kick_goal = int(self._draw.integers(3, 9)), self._somewhere()
        if self._kick_left > 0:
            self._kick_left -= 1
            joints = self.world.truth().joint_positions
            steps = [joints]
            for _ in range(CHUNK_LENGTH):
                steps.append(expert.step_towards(steps[-1], self._kick_goal, CHUNK_DT))
            return np.stack(steps[1:])
        return chunk + self._offset


class Recorder:
    """Collects the ticks of one episode."""

    def __init__(self) -> None:
        self._rows: list[tuple[np.ndarray, ...]] = []

    def add(self, episode: Episode, image: np.ndarray, joints: np.ndarray) -> np.ndarray:
        """Record the tick that begins; returns the expert's chunk."""
        chunk, goal = episode.label(joints)
        row = (image, joints, episode.phrase, chunk, goal, episode.seen_cue)
        self._rows.append(row)  # type: ignore[arg-type]
        return chunk

    def episodes(self) -> Episodes:
        types = (np.uint8, np.float32, np.int64, np.float32, np.float32, np.int64)
        columns = zip(*self._rows, strict=True)
        return Episodes(*(np.stack(c).astype(t)[None] for c, t in zip(columns, types, strict=True)))


def _expert_episode(seed: int) -> Episodes:
    episode, recorder = Episode(seed), Recorder()
    for _ in range(EPISODE_TICKS):
        seen = episode.world.observe()
        episode.act(recorder.add(episode, seen.image, seen.positions))
    return recorder.episodes()


def _make_shard(job: tuple[int, Path]) -> None:
    first, folder = job
    if not folder.exists():
        seeds = range(first, first + SHARD_EPISODES)
        Episodes.joined([_expert_episode(seed) for seed in seeds]).save(folder)


def make_expert_episodes(count: int, folder: Path, processes: int = 2) -> list[Path]:
    """`count` episodes (a multiple of SHARD_EPISODES) with the expert acting, as folders for
    `Episodes.load`. What is there already is not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        (EPISODE_SEEDS + first, folder / f"{first:06d}")
        for first in range(0, count, SHARD_EPISODES)
    ]
    with get_context("spawn").Pool(processes) as pool:
        made = pool.imap(_make_shard, jobs)
        for _ in tqdm(made, total=len(jobs), desc=f"expert episodes, {SHARD_EPISODES} each"):
            pass
    return [shard for _, shard in jobs]
