# SPDX-License-Identifier: Apache-2.0
"""Single inputs in, complete observations out; nothing invented; every rule about time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies import Observation, ObservationAssembler
from flashrt_ros.policies.assembler import compose
from flashrt_ros.policies.contract import (
    BelowRate,
    Contract,
    StampSource,
    TimeRules,
)
from flashrt_ros.policies.contract_check import default_contract
from flashrt_ros.policies.contract_file import read_contract, resolve
from flashrt_ros.policies.stamps import StampsWentBack

SHAPE = (2, 2, 3)
S = 1_000_000_000
NOW = 100 * S


def spec(*cameras: str, **changes: Any) -> PolicySpec:
    shapes = dict.fromkeys(cameras, SHAPE)
    return replace(PolicySpec(shapes, ("a", "b"), 3, 0.05, 0.1), **changes)


def timed(contract: Contract, name: str, **changes: Any) -> Contract:
    """The contract with another timing of one input."""

    def changed(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            replace(each, timing=replace(each.timing, **changes)) if each.name == name else each
            for each in inputs
        )

    return replace(
        contract,
        cameras=changed(contract.cameras),
        joints=changed(contract.joints),
        vectors=changed(contract.vectors),
    )


def image(value: int = 0) -> np.ndarray:
    return np.full(SHAPE, value, dtype=np.uint8)


def joints(value: float = 0.0) -> np.ndarray:
    return np.full(2, value)


class Sensors:
    """An assembler, and messages whose stamps are `NOW` and some ns; received at once."""

    def __init__(self, contract: Contract | None = None, *, lockstep: bool = False) -> None:
        self.contract = contract or default_contract(spec("camera"))
        self.assembler = ObservationAssembler(self.contract, lockstep=lockstep)

    def joints(self, offset_ns: int, value: float = 0.0, **when: int) -> Observation | None:
        return self.give("joint_states", offset_ns, joints(value), **when)

    def image(self, offset_ns: int, camera: str = "camera", **when: int) -> Observation | None:
        return self.give(camera, offset_ns, image(), **when)

    def give(
        self, name: str, offset_ns: int, array: np.ndarray, late_ns: int = 0
    ) -> Observation | None:
        stamp_ns = NOW + offset_ns
        return self.assembler.add(name, stamp_ns, array, stamp_ns + late_ns)


# -- completeness ------------------------------------------------------------------------------


def test_no_observation_until_every_input_has_spoken() -> None:
    one = Sensors()
    assert one.assembler.missing() == ["camera", "joint_states"]
    assert one.image(0) is None
    assert one.assembler.missing() == ["joint_states"]
    assert one.joints(1) is None  # an image is what makes a policy tick
    assert one.assembler.missing() == []
    assert one.image(2) is not None


def test_the_newest_joint_state_within_the_skew_is_taken() -> None:
    one = Sensors()
    one.joints(0, 1.0)
    one.joints(20_000_000, 2.0)
    seen = one.image(30_000_000)
    assert seen is not None
    assert seen.positions.tolist() == [2.0, 2.0]
    assert seen.stamps == {"camera": NOW + 30_000_000, "joint_states": NOW + 20_000_000}
    assert one.image(200_000_000) is None


def test_an_observation_that_is_withheld_has_its_reason_told() -> None:
    one = Sensors()
    one.joints(0)
    assert one.image(150_000_000) is None
    said = "joint_states is -0.150 s from the observation, at most 0.1 s is allowed"
    assert one.assembler.withheld == said
    one.joints(150_000_000)
    assert one.image(160_000_000) is not None
    assert one.assembler.withheld == ""


def test_skew_of_one_input_may_differ_from_the_others() -> None:
    contract = timed(default_contract(spec("camera")), "joint_states", max_skew=0.3)
    one = Sensors(contract)
    one.joints(0)
    assert one.image(300_000_000) is not None
    assert one.image(300_000_001) is None


def test_every_awaited_camera_must_be_new_and_the_oldest_gives_the_stamp() -> None:
    two = Sensors(default_contract(spec("left", "right")))
    two.joints(0)
    assert two.image(1, "left") is None
    seen = two.image(2, "right")
    assert seen is not None
    assert seen.stamp_ns == NOW + 1
    assert two.image(3, "right") is None


def test_a_slow_camera_that_is_not_awaited_is_seen_again_while_it_is_young_enough() -> None:
    contract = default_contract(spec("fast", "slow"))
    contract = timed(contract, "slow", await_new=False, max_age=0.2, max_skew=1.0)
    two = Sensors(contract)
    two.joints(0)
    two.image(0, "slow")
    for offset in (1, 100_000_000, 200_000_000):
        two.joints(offset)
        seen = two.image(offset, "fast")
        assert seen is not None
        assert seen.stamp_ns == NOW + offset
        assert seen.stamps["slow"] == NOW
    two.joints(200_000_001)
    assert two.image(200_000_001, "fast") is None
    two.image(210_000_000, "slow")
    two.joints(210_000_000)
    assert two.image(210_000_000, "fast") is not None


def test_a_policy_without_cameras_ticks_on_joint_states() -> None:
    one = Sensors(default_contract(spec()))
    assert one.joints(1) is not None
    assert one.joints(2) is not None


def test_joint_states_of_two_sources_become_one_vector_in_the_policys_order() -> None:
    text = """
version: 1
inputs:
  cameras: {camera: {topic: camera/image_raw}}
  joints:
    - {name: arm, topic: arm/joint_states, joints: [b]}
    - {name: hand, topic: hand/joint_states}
"""
    one = Sensors(resolve(read_contract(text, "two.yaml").contract, spec("camera")))
    one.give("arm", 0, np.array([2.0]))
    assert one.assembler.positions() is None
    assert one.image(0) is None
    one.give("hand", 1, np.array([1.0]))
    seen = one.image(1)
    assert seen is not None
    assert seen.positions.tolist() == [1.0, 2.0]
    assert set(seen.stamps) == {"camera", "arm", "hand"} == set(seen.digests)
    assert seen.digests["arm"] != seen.digests["hand"]


# -- optional inputs: never filled in ----------------------------------------------------------


def optional_wrench() -> Contract:
    told = spec("camera", vectors={"wrench": 3}, optional=frozenset({"wrench"}))
    contract = default_contract(told)
    return timed(contract, "wrench", max_age=0.05)


def test_an_optional_input_is_left_out_while_missing_or_old_and_never_zero() -> None:
    one = Sensors(optional_wrench())
    one.joints(0)
    seen = one.image(0)
    assert seen is not None
    assert dict(seen.vectors) == {}
    assert "wrench" not in seen.stamps
    assert "wrench" not in seen.digests
    one.give("wrench", 1, np.arange(3.0))
    seen = one.image(2)
    assert seen is not None
    assert seen.vectors["wrench"].tolist() == [0.0, 1.0, 2.0]
    assert seen.stamps["wrench"] == NOW + 1
    one.joints(60_000_000)
    seen = one.image(60_000_000)
    assert seen is not None
    assert dict(seen.vectors) == {}
    assert one.assembler.left_out["wrench"] == 2
    assert one.assembler.missing() == []


def test_a_required_vector_is_waited_for() -> None:
    one = Sensors(default_contract(spec("camera", vectors={"wrench": 3})))
    one.joints(0)
    assert one.image(0) is None
    assert one.assembler.missing() == ["wrench"]
    one.give("wrench", 1, np.arange(3.0))
    assert one.image(2) is not None


# -- order and duplicates ----------------------------------------------------------------------


def test_duplicates_and_late_messages_are_counted_and_dropped() -> None:
    one = Sensors()
    one.joints(10)
    assert one.image(10) is not None
    assert one.image(10) is None
    assert one.image(9) is None
    assert one.joints(9) is None
    assert one.assembler.dropped == 3
    assert [report.dropped for report in one.assembler.reports(NOW)] == [2, 1]
    assert one.assembler.newest_ns() == {"camera": NOW + 10, "joint_states": NOW + 10}


# -- stamps that cannot be ---------------------------------------------------------------------


def test_a_zero_stamp_is_refused_by_name_and_with_what_to_do() -> None:
    one = Sensors()
    with pytest.raises(ValueError, match=r"stamp of 'camera' is 0, .* needs stamp: receipt"):
        one.assembler.add("camera", 0, image(), NOW)


def test_a_simulation_may_begin_at_zero() -> None:
    one = Sensors()
    one.assembler.add("joint_states", 0, joints(), 5_000_000)
    assert one.assembler.add("camera", 0, image(), 5_000_000) is not None


def test_a_stamp_in_the_future_is_refused_beyond_the_tolerance() -> None:
    contract = replace(default_contract(spec("camera")), time=TimeRules(future_tolerance=0.5))
    one = Sensors(contract)
    one.joints(0)
    assert one.image(500_000_000, late_ns=-500_000_000) is None  # too far from the joint state
    with pytest.raises(ValueError, match=r"'camera' is 0\.600 s in the future"):
        one.image(600_000_000, late_ns=-600_000_000)
    assert one.assembler.newest_ns()["camera"] == NOW + 500_000_000


def test_before_the_first_clock_message_nothing_is_taken() -> None:
    one = Sensors()
    assert one.assembler.add("camera", NOW, image(), 0) is None
    assert one.assembler.missing() == ["camera", "joint_states"]
    assert one.assembler.dropped == 1


# -- a clock that jumps ------------------------------------------------------------------------


def test_clear_forgets_every_input_so_that_older_stamps_count_again() -> None:
    one = Sensors()
    one.joints(100)
    one.image(100)
    one.assembler.clear()
    assert one.assembler.missing() == ["camera", "joint_states"]
    one.joints(1)
    assert one.image(1) is not None


def test_stamps_that_go_back_and_on_from_there_are_a_new_time() -> None:
    one = Sensors()
    one.image(5 * S)
    assert one.image(S, late_ns=4 * S) is None  # one message alone is late
    assert one.image(5 * S + 1) is None  # and the old time goes on
    assert one.image(S, late_ns=4 * S) is None
    with pytest.raises(StampsWentBack, match=r"'camera' went back by 3\.9"):
        one.image(S + 100_000_000, late_ns=4 * S)


def test_stamps_that_go_back_by_little_are_only_late() -> None:
    one = Sensors()
    one.image(5 * S)
    for offset in (4 * S, 4 * S + 1, 4 * S + 2):  # 1 s is the rule's border
        assert one.image(offset, late_ns=S) is None
    assert one.assembler.dropped == 3


def test_after_a_jump_forwards_old_inputs_are_too_old_until_new_ones_come() -> None:
    one = Sensors(timed(default_contract(spec("camera")), "joint_states", max_age=0.2))
    one.joints(0)
    assert one.image(0) is not None
    assert one.image(1000 * S) is None
    assert list(one.assembler.obstacles(NOW + 1000 * S)) == ["joint_states"]
    one.joints(1000 * S + 1)
    assert one.image(1000 * S + 2) is not None


# -- age and rate ------------------------------------------------------------------------------


def test_an_input_older_than_its_maximum_is_not_used_and_is_named() -> None:
    one = Sensors(timed(default_contract(spec("camera")), "joint_states", max_age=0.05))
    one.joints(0)
    assert one.image(50_000_000) is not None
    assert one.assembler.obstacles(NOW + 50_000_000) == {}
    assert one.image(50_000_001) is None
    reason = one.assembler.obstacles(NOW + 60_000_000)["joint_states"]
    assert reason == "joint_states is 0.060 s old, at most 0.05 s is allowed"


def test_an_age_at_its_limit_is_allowed_to_the_ns() -> None:
    """As floats, 300000000 ns are 0.30000000000000004 s."""
    one = Sensors(timed(default_contract(spec("camera")), "camera", max_age=0.3))
    one.joints(0)
    assert one.image(0, late_ns=300_000_001) is None
    assert one.image(1, late_ns=300_000_000) is not None


def test_age_counts_from_the_stamp_not_from_the_receipt() -> None:
    one = Sensors(timed(default_contract(spec("camera")), "camera", max_age=0.05))
    one.joints(0)
    assert one.image(0, late_ns=60_000_000) is None
    assert "camera" in one.assembler.obstacles(NOW + 60_000_000)


@pytest.mark.parametrize("below", BelowRate)
def test_an_input_below_its_rate_is_told_and_holds_where_asked(below: BelowRate) -> None:
    contract = timed(default_contract(spec("camera")), "camera", rate=20.0, below_rate=below)
    one = Sensors(contract)
    seen = None
    for index in range(60):  # 20 Hz for 3 s: neither too slow nor at its border
        one.joints(index * S // 20)
        seen = one.image(index * S // 20)
        assert seen is not None
        assert one.assembler.slow(NOW + index * S // 20) == {}
    for index in range(30):  # then 10 Hz for 3 s
        one.joints(3 * S + index * S // 10)
        seen = one.image(3 * S + index * S // 10)
    now_ns = NOW + 3 * S + 29 * S // 10
    text = "camera comes at 10.0 Hz, 20.0 Hz is required"
    assert one.assembler.slow(now_ns) == {"camera": text}
    assert one.assembler.obstacles(now_ns) == ({"camera": text} if below is BelowRate.HOLD else {})
    assert (seen is None) == (below is BelowRate.HOLD)
    report = next(r for r in one.assembler.reports(now_ns) if r.name == "camera")
    assert (report.rate, report.required_rate) == (pytest.approx(10.0), 20.0)


def test_a_sender_that_falls_silent_comes_ever_more_slowly() -> None:
    one = Sensors(timed(default_contract(spec("camera")), "camera", rate=20.0))
    for index in range(60):
        one.image(index * S // 20)
    last_ns = NOW + 59 * S // 20
    rates = [one.assembler.reports(last_ns + age * S)[0].rate for age in (0, 1, 2, 10)]
    assert rates[0] == pytest.approx(20.0)
    assert rates == sorted(rates, key=lambda rate: -(rate or 0.0))
    assert rates[-1] == 0.0


def test_a_rate_is_not_judged_before_a_window_has_passed() -> None:
    one = Sensors(timed(default_contract(spec("camera")), "camera", rate=20.0))
    one.image(0)
    assert one.assembler.slow(NOW + 2 * S - 1) == {}
    assert list(one.assembler.slow(NOW + 2 * S)) == ["camera"]


# -- lockstep: wall time decides nothing -------------------------------------------------------


def test_lockstep_waits_for_the_same_stamp_in_either_order() -> None:
    one = Sensors(lockstep=True)
    assert one.joints(5) is None
    assert one.image(5) is not None
    assert one.image(6) is None
    assert one.joints(6) is not None


def test_lockstep_gives_a_complete_set_again_when_its_messages_come_again() -> None:
    one = Sensors(lockstep=True)
    given = [one.joints(5), one.image(5), one.joints(5), one.image(5)]
    assert [each is not None for each in given] == [False, True, False, True]


def test_lockstep_judges_no_stamp_by_the_clock() -> None:
    one = Sensors(timed(default_contract(spec("camera")), "camera", max_age=0.1), lockstep=True)
    for now_ns in (0, NOW):
        one.assembler.add("joint_states", 10 * NOW, joints(), now_ns)
        assert one.assembler.add("camera", 10 * NOW, image(), now_ns) is not None
        one.assembler.clear()


def test_lockstep_refuses_inputs_that_have_no_stamp_of_their_own() -> None:
    contract = default_contract(spec("camera", vectors={"touch": 2}))
    with pytest.raises(ValueError, match="touch stamped at receipt"):
        ObservationAssembler(contract, lockstep=True)
    contract = timed(default_contract(spec("camera")), "camera", stamp=StampSource.RECEIPT)
    with pytest.raises(ValueError, match="camera stamped at receipt"):
        ObservationAssembler(contract, lockstep=True)


# -- arrays and digests ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_joint_positions_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        Sensors().joints(0, value)


def test_wrong_image_size_is_refused_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"\(3, 2, 3\), expected uint8 \(2, 2, 3\)"):
        Sensors().give("camera", 0, np.zeros((3, 2, 3), dtype=np.uint8))


def test_digest_changes_with_one_bit_of_any_input() -> None:
    def observe(pixel: int = 0, joint: float = 0.0, stamp: int = 5, force: float = 0.0) -> bytes:
        one = Sensors(default_contract(spec("camera", vectors={"wrench": 1})))
        one.give("joint_states", 5, np.array([joint, 0.0]))
        one.give("wrench", 5, np.array([force]))
        picture = image()
        picture[1, 1, 2] = pixel
        seen = one.give("camera", stamp, picture)
        assert seen is not None
        return seen.digest()

    assert observe() == observe()
    tiny = float(np.nextafter(0.0, 1.0))
    digests = {observe(), observe(pixel=1), observe(joint=tiny), observe(stamp=6)}
    assert len(digests | {observe(force=tiny)}) == 5


def test_a_replay_composes_the_same_observation_from_the_same_messages() -> None:
    one = Sensors(optional_wrench())
    one.joints(1, 0.25)
    one.give("wrench", 2, np.arange(3.0))
    seen = one.image(3)
    assert seen is not None
    arrived = {
        "wrench": (NOW + 2, np.arange(3.0)),
        "camera": (NOW + 3, image()),
        "joint_states": (NOW + 1, joints(0.25)),
    }
    again = compose(one.contract, arrived)
    assert (again.stamp_ns, again.digest()) == (seen.stamp_ns, seen.digest())
    with pytest.raises(KeyError, match="camera"):
        compose(one.contract, {"joint_states": (NOW, joints())})
    with pytest.raises(KeyError, match="no input 'lidar'"):
        compose(one.contract, {**arrived, "lidar": (NOW, joints())})
