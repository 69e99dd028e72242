# SPDX-License-Identifier: Apache-2.0
"""Single inputs in, complete observations out; nothing invented."""

from __future__ import annotations

import numpy as np
import pytest

from flashrt_ros.policies import ObservationAssembler, Pairing

SHAPE = (2, 2, 3)


def image(value: int = 0) -> np.ndarray:
    return np.full(SHAPE, value, dtype=np.uint8)


def joints(value: float = 0.0) -> np.ndarray:
    return np.full(2, value)


def assembler(pairing: Pairing = Pairing.NEAREST, repeat: bool = False) -> ObservationAssembler:
    return ObservationAssembler(
        {"camera": SHAPE}, 2, pairing=pairing, max_skew_s=0.1, repeat=repeat
    )


def test_no_observation_until_every_input_has_spoken() -> None:
    one = assembler()
    assert one.missing() == ["camera", "joint_states"]
    assert one.add_image("camera", 0, image()) is None
    assert one.missing() == ["joint_states"]
    assert one.add_joints(1, joints()) is None  # an image is what makes a policy tick
    assert one.missing() == []
    assert one.add_image("camera", 2, image()) is not None


def test_nearest_takes_the_newest_joint_state_within_the_skew() -> None:
    one = assembler()
    one.add_joints(0, joints(1.0))
    one.add_joints(20_000_000, joints(2.0))
    seen = one.add_image("camera", 30_000_000, image())
    assert seen is not None
    assert seen.positions.tolist() == [2.0, 2.0]
    assert seen.stamps == {"camera": 30_000_000, "joint_states": 20_000_000}
    assert one.add_image("camera", 200_000_000, image()) is None


def test_exact_waits_for_the_same_stamp_in_either_order() -> None:
    one = assembler(Pairing.EXACT)
    assert one.add_joints(5, joints()) is None
    assert one.add_image("camera", 5, image()) is not None
    assert one.add_image("camera", 6, image()) is None
    assert one.add_joints(6, joints()) is not None


def test_duplicates_and_late_messages_are_counted_and_dropped() -> None:
    one = assembler()
    one.add_joints(10, joints())
    assert one.add_image("camera", 10, image()) is not None
    assert one.add_image("camera", 10, image()) is None
    assert one.add_image("camera", 9, image()) is None
    assert one.add_joints(9, joints()) is None
    assert one.dropped == 3


def test_repeated_set_is_given_again_once_where_asked_for() -> None:
    one = assembler(Pairing.EXACT, repeat=True)
    given = [one.add_joints(5, joints()), one.add_image("camera", 5, image())]
    given += [one.add_joints(5, joints()), one.add_image("camera", 5, image())]
    assert [each is not None for each in given] == [False, True, False, True]


def test_every_camera_must_be_new() -> None:
    two = ObservationAssembler({"left": SHAPE, "right": SHAPE}, 2)
    two.add_joints(0, joints())
    assert two.add_image("left", 1, image()) is None
    seen = two.add_image("right", 2, image())
    assert seen is not None
    assert seen.stamp_ns == 1
    assert two.add_image("right", 3, image()) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_joint_positions_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        assembler().add_joints(0, joints(value))


def test_wrong_image_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2, 3\), expected uint8 \(2, 2, 3\)"):
        assembler().add_image("camera", 0, np.zeros((3, 2, 3), dtype=np.uint8))


def test_clear_forgets_every_input() -> None:
    one = assembler()
    one.add_joints(100, joints())
    one.add_image("camera", 100, image())
    one.clear()
    assert one.missing() == ["camera", "joint_states"]
    one.add_joints(1, joints())
    assert one.add_image("camera", 1, image()) is not None


def test_digest_changes_with_one_bit_of_any_input() -> None:
    def observe(pixel: int = 0, joint: float = 0.0, stamp: int = 5) -> bytes:
        one = assembler()
        one.add_joints(5, np.array([joint, 0.0]))
        picture = image()
        picture[1, 1, 2] = pixel
        seen = one.add_image("camera", stamp, picture)
        assert seen is not None
        return seen.digest()

    assert observe() == observe()
    digests = {observe(), observe(pixel=1), observe(joint=np.nextafter(0.0, 1.0)), observe(stamp=6)}
    assert len(digests) == 4
