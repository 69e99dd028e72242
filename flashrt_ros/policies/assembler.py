# SPDX-License-Identifier: Apache-2.0
"""Single inputs in, complete observations out."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum

import numpy as np

from flashrt_ros.policies.observation import JOINTS, Observation


class Pairing(Enum):
    """Which joint state belongs to an image."""

    EXACT = "exact"
    """The one with the same stamp: a simulator in lockstep, or synchronised hardware."""
    NEAREST = "nearest"
    """The newest one, if its stamp is within the largest skew: ordinary robots."""


class ObservationAssembler:
    """Collects inputs and gives an observation when every camera has a new image.

    Nothing is invented: while an input has not spoken, or is too old, there is no observation and
    `missing()` names it. Messages out of order and duplicates are counted and dropped, except
    that the newest complete set may be given again (`repeat=True`), as a simulator in lockstep
    asks for it when an answer was lost.

    Args:
        cameras: camera name to `(height, width, channels)`.
        joints: number of joints.
        pairing: which joint state belongs to an image.
        max_skew_s: largest difference between the stamps of one observation, s.
        repeat: give a complete set again when its messages come again.
    """

    def __init__(
        self,
        cameras: Mapping[str, tuple[int, int, int]],
        joints: int,
        *,
        pairing: Pairing = Pairing.NEAREST,
        max_skew_s: float = 0.1,
        repeat: bool = False,
    ) -> None:
        self._cameras = dict(cameras)
        self._joints = joints
        self._pairing = pairing
        # What must be new before there is an observation again. A policy without a camera ticks
        # on joint states.
        self._awaited = frozenset(self._cameras)
        if pairing is Pairing.EXACT or not self._cameras:
            self._awaited |= {JOINTS}
        self.max_skew_s = max_skew_s
        self._repeat = repeat
        self._lock = threading.Lock()
        self._images: dict[str, tuple[int, np.ndarray]] = {}
        self._positions: tuple[int, np.ndarray] | None = None
        self._fresh: set[str] = set()
        self.dropped = 0

    def clear(self) -> None:
        """Forget every input: the clock jumped back, or the node was deactivated."""
        with self._lock:
            self._images.clear()
            self._positions = None
            self._fresh.clear()

    def add_image(self, camera: str, stamp_ns: int, image: np.ndarray) -> Observation | None:
        """Add a uint8 rgb image `[height, width, 3]`.

        Raises:
            KeyError: the policy has no such camera.
            ValueError: the image has another shape or dtype than the policy takes.
        """
        expected = self._cameras[camera]
        if image.shape != expected or image.dtype != np.uint8:
            raise ValueError(
                f"image of camera '{camera}' is {image.dtype} {image.shape}, "
                f"expected uint8 {expected}"
            )
        with self._lock:
            known = self._images.get(camera)
            if known is not None and self._is_stale(stamp_ns, known[0]):
                self.dropped += 1
                return None
            self._images[camera] = (stamp_ns, image)
            self._fresh.add(camera)
            return self._complete()

    def add_joints(self, stamp_ns: int, positions: np.ndarray) -> Observation | None:
        """Add joint positions `[joints]` in the policy's order.

        Raises:
            ValueError: wrong length, or a value that is not finite.
        """
        if positions.shape != (self._joints,):
            raise ValueError(f"joint state has shape {positions.shape}, expected ({self._joints},)")
        if not np.all(np.isfinite(positions)):
            raise ValueError(f"joint state {positions.tolist()} has a value that is not finite")
        with self._lock:
            if self._positions is not None and self._is_stale(stamp_ns, self._positions[0]):
                self.dropped += 1
                return None
            self._positions = (stamp_ns, positions)
            self._fresh.add(JOINTS)
            return self._complete() if JOINTS in self._awaited else None

    def missing(self) -> list[str]:
        """Names of the inputs that have not spoken since the last `clear`."""
        with self._lock:
            names = [name for name in self._cameras if name not in self._images]
            return names if self._positions is not None else [*names, JOINTS]

    def newest_ns(self) -> dict[str, int]:
        """Input name to the stamp of its newest message, ns."""
        with self._lock:
            stamps = {name: stamp for name, (stamp, _) in self._images.items()}
            if self._positions is not None:
                stamps[JOINTS] = self._positions[0]
            return stamps

    def _is_stale(self, stamp_ns: int, newest_ns: int) -> bool:
        return stamp_ns < newest_ns if self._repeat else stamp_ns <= newest_ns

    def _complete(self) -> Observation | None:
        if self._positions is None or not self._awaited <= self._fresh:
            return None
        stamps = {name: stamp for name, (stamp, _) in self._images.items()}
        stamps[JOINTS] = self._positions[0]
        anchor_ns = min((stamps[name] for name in self._cameras), default=self._positions[0])
        skew_ns = max(stamps.values()) - min(stamps.values())
        if skew_ns > (0 if self._pairing is Pairing.EXACT else round(self.max_skew_s * 1e9)):
            return None
        self._fresh.clear()
        images = {name: image for name, (_, image) in self._images.items()}
        return Observation(anchor_ns, images, self._positions[1].copy(), stamps)
