# SPDX-License-Identifier: Apache-2.0
"""The simulated world: an arm, four blocks, a cue lamp and a camera, stepped in MuJoCo.

No ROS in here. Time is in integer nanoseconds, so that no amount of stepping drifts. Everything
that decides the future is in `save()`: a world that is put back continues bit for bit.
"""

from __future__ import annotations

import functools
import json
from dataclasses import astuple, dataclass, replace

import mujoco
import numpy as np

from flashrt_ros.sim import camera
from flashrt_ros.sim.scene import (
    COLOURS,
    CONTROL_NS,
    CUE_TICKS,
    DARK,
    JOINT_NAMES,
    PHYSICS_NS,
    TICK_NS,
    draw_layout,
    load_model,
)
from flashrt_ros.sim.trajectory import Trajectory

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_FORMAT = "flashrt_ros.sim.world/1"


@dataclass(frozen=True)
class SimObservation:
    """What the policy may see.

    stamp_ns: sim time; image: uint8 [64, 64, 3] rgb; positions: float64 [5] rad and velocities:
    float64 [5] rad/s, in joint_names' order.
    """

    stamp_ns: int
    image: np.ndarray
    joint_names: tuple[str, ...]
    positions: np.ndarray
    velocities: np.ndarray


@dataclass(frozen=True)
class SimTruth:
    """Ground truth, for bookkeeping and tests and never for a policy.

    lamp: colour shown now or "dark"; last_cue: colour shown last, or ""; touching: colour of the
    block that the fingertip touches, or ""; touching_for: s without interruption; tip: float64 [3]
    m, the end of the fingertip; block_positions: float64 [4, 3] m, centres of the top faces in
    block_colours' order. Positions are in "arm_base".
    """

    seed: int
    tick: int
    lamp: str
    last_cue: str
    touching: str
    touching_for: float
    joint_names: tuple[str, ...]
    joint_positions: np.ndarray
    tip: np.ndarray
    block_colours: tuple[str, ...]
    block_positions: np.ndarray


@dataclass(frozen=True)
class _Lamp:
    """Shows `colour` in ticks `begin` .. `end` - 1; `last` is the colour shown last."""

    colour: str
    begin: int
    end: int
    last: str

    def at(self, tick: int) -> str:
        return self.colour if self.begin <= tick < self.end else DARK


class ArmWorld:
    """One arm on its table. Not thread safe.

    The lamp shows the seed's colour for the first CUE_TICKS ticks of an episode. `command` takes
    what joint_trajectory_controller takes. Physics runs at 200 Hz, set points change at 50 Hz.
    """

    def __init__(self, seed: int = 0) -> None:
        self._model = load_model()
        self._data = mujoco.MjData(self._model)
        self._time_ns = 0
        self.reset(seed)

    def reset(self, seed: int, lamp_colour: str | None = None) -> None:
        """Start the episode of a seed. Sim time goes on, ticks start at 0.

        lamp_colour forces the cue; None takes the seed's.
        Raises ValueError for a colour that no block has, or a seed outside [0, 2**64).
        """
        if lamp_colour is not None:
            _check_colour(lamp_colour)
        self._layout = draw_layout(seed)
        self._seed = seed
        self._tick = 0
        self._begin_ns = self._time_ns
        data, layout = self._data, self._layout
        mujoco.mj_resetData(self._model, data)
        data.qpos[:] = layout.start
        data.ctrl[:] = layout.start
        data.mocap_pos[:] = layout.blocks
        data.mocap_quat[:, 0] = np.cos(layout.yaws / 2)
        data.mocap_quat[:, 1:3] = 0.0
        data.mocap_quat[:, 3] = np.sin(layout.yaws / 2)
        mujoco.mj_forward(self._model, data)
        self._trajectory = Trajectory.hold(layout.start)
        cue = layout.cue if lamp_colour is None else lamp_colour
        self._lamp = _Lamp(cue, 0, CUE_TICKS, last=cue)
        self._touch = ("", 0)
        self._update_touch(0)

    @property
    def seed(self) -> int:
        """The running episode's seed."""
        return self._seed

    @property
    def tick(self) -> int:
        """Policy ticks since the reset."""
        return self._tick

    @property
    def time_ns(self) -> int:
        """Sim time. It never goes back, also not at a reset; only `load` sets it."""
        return self._time_ns

    @property
    def lamp(self) -> str:
        """The colour shown now, or "dark"."""
        return self._lamp.at(self._tick)

    def observe(self) -> SimObservation:
        """Image and joints now. Taking one changes nothing: twice gives the same bytes."""
        data = self._data
        frame = (self._time_ns - self._begin_ns) // PHYSICS_NS
        image = camera.render(
            data, self.lamp, self._layout.light, self._layout.brightness, (self._seed, frame)
        )
        return SimObservation(self._time_ns, image, JOINT_NAMES, data.qpos.copy(), data.qvel.copy())

    def joints(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions, float64 [5] rad, and velocities, float64 [5] rad/s, without an image."""
        return self._data.qpos.copy(), self._data.qvel.copy()

    def command(self, start_ns: int, times: np.ndarray, positions: np.ndarray) -> None:
        """Replace the running joint trajectory.

        start_ns: sim time of the trajectory's zero; times: [n] s after it, strictly increasing;
        positions: [n, 5] rad. Between points the set point is interpolated linearly, from the
        set point of now to the first point that is still to come, as joint_trajectory_controller
        does; points already past are skipped; the last one is held.
        Raises ValueError for wrong shapes, no point, values that are not finite, or times that do
        not increase; the running trajectory then goes on.
        """
        self._trajectory = self._trajectory.replaced(self._time_ns, start_ns, times, positions)

    def advance(self, seconds: float) -> None:
        """Let `seconds` of sim time pass, rounded to the physics step of 5 ms.

        A tick counts when its last physics step has passed, however it was cut into pieces.
        """
        steps = round(seconds * 1e9 / PHYSICS_NS)
        for _ in range(steps):
            if (self._time_ns - self._begin_ns) % CONTROL_NS == 0:
                # The set point that is due at the end of the interval which begins now: the arm
                # follows a ramp without a whole interval's delay.
                self._data.ctrl[:] = self._trajectory.at(self._time_ns + CONTROL_NS)
            mujoco.mj_step(self._model, self._data)
            self._time_ns += PHYSICS_NS
            self._update_touch(PHYSICS_NS)
            if (self._time_ns - self._begin_ns) % TICK_NS == 0:
                self._tick += 1
                if self.lamp != DARK:
                    self._lamp = replace(self._lamp, last=self.lamp)
        # Positions of the bodies belong to qpos as it is now (mj_step leaves them a step behind).
        mujoco.mj_kinematics(self._model, self._data)

    def advance_tick(self) -> None:
        """Let a policy tick pass."""
        self.advance(TICK_NS * 1e-9)

    def light_lamp(self, colour: str, ticks: int) -> None:
        """Show a colour for some ticks, from the next tick on; it replaces what was shown.

        Raises ValueError for a colour that no block has, or fewer ticks than one.
        """
        _check_colour(colour)
        if ticks < 1:
            raise ValueError(f"ticks is {ticks}, expected at least 1")
        begin = self._tick + 1
        self._lamp = _Lamp(colour, begin, begin + ticks, self._lamp.last)

    def truth(self) -> SimTruth:
        """Ground truth now."""
        tops = self._data.mocap_pos.copy()
        tops[:, 2] *= 2
        return SimTruth(
            seed=self._seed,
            tick=self._tick,
            lamp=self.lamp,
            last_cue=self._lamp.last,
            touching=self._touch[0],
            touching_for=self._touch[1] * 1e-9,
            joint_names=JOINT_NAMES,
            joint_positions=self._data.qpos.copy(),
            tip=self._data.site("tip").xpos.copy(),
            block_colours=COLOURS,
            block_positions=tops,
        )

    def save(self) -> bytes:
        """The whole world. `load` continues it bit for bit, also in another process."""
        state = np.empty(mujoco.mj_stateSize(self._model, _STATE))
        mujoco.mj_getState(self._model, self._data, state, _STATE)
        book = {
            "format": _FORMAT,
            "seed": self._seed,
            "tick": self._tick,
            "time_ns": self._time_ns,
            "begin_ns": self._begin_ns,
            "lamp": astuple(self._lamp),
            "touch": list(self._touch),
            "trajectory": self._trajectory.to_json(),
        }
        return json.dumps(book).encode() + b"\n" + state.tobytes()

    def load(self, data: bytes, now_ns: int | None = None) -> None:
        """Put back what `save` returned: sim time included, or going on at `now_ns`.

        Nothing but stamps depends on when an episode began, so both continue the same.
        Raises ValueError, and changes nothing, if data was not made by `save` of this version.
        """
        book, state, trajectory = self._parse(data)
        self._seed, self._tick = book["seed"], book["tick"]
        self._layout = draw_layout(self._seed)
        shift_ns = 0 if now_ns is None else now_ns - book["time_ns"]
        self._time_ns, self._begin_ns = book["time_ns"] + shift_ns, book["begin_ns"] + shift_ns
        self._lamp = _Lamp(*book["lamp"])
        self._touch = (book["touch"][0], book["touch"][1])
        self._trajectory = trajectory.shifted(shift_ns)
        mujoco.mj_setState(self._model, self._data, state, _STATE)
        mujoco.mj_kinematics(self._model, self._data)

    def _parse(self, data: bytes) -> tuple[dict, np.ndarray, Trajectory]:
        head, _, body = data.partition(b"\n")
        try:
            book = json.loads(head)
            trajectory = Trajectory.from_json(book["trajectory"])
            if book["format"] != _FORMAT:
                raise KeyError(book["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a saved world of format {_FORMAT}: {error!r}") from error
        size = mujoco.mj_stateSize(self._model, _STATE)
        if len(body) != size * 8:
            raise ValueError(f"saved world has {len(body)} state bytes, expected {size * 8}")
        return book, np.frombuffer(body, dtype=np.float64).copy(), trajectory

    def _update_touch(self, passed_ns: int) -> None:
        fingertip, blocks = _touching_geoms()
        touching = ""
        for pair in self._data.contact.geom[: self._data.ncon]:
            if fingertip in pair:
                other = int(pair[0] if pair[1] == fingertip else pair[1])
                touching = blocks.get(other, touching)
        if touching and touching == self._touch[0]:
            self._touch = (touching, self._touch[1] + passed_ns)
        else:
            self._touch = (touching, 0)


@functools.cache
def _touching_geoms() -> tuple[int, dict[int, str]]:
    """The fingertip's geom, and the blocks' with their colours."""
    model = load_model()
    return model.geom("fingertip").id, {model.geom(f"block_{c}").id: c for c in COLOURS}


def _check_colour(colour: str) -> None:
    if colour not in COLOURS:
        raise ValueError(f"colour is {colour!r}, expected one of {', '.join(COLOURS)}")
