# SPDX-License-Identifier: Apache-2.0
"""Limits from a URDF: what is read, what is folded in, and what is refused by name."""

from __future__ import annotations

import math

import pytest

from flashrt_ros.policies.limits import JointLimit
from flashrt_ros.policies.urdf import joint_limits

LIMIT = '<limit lower="-1.5" upper="2" velocity="3" effort="10"/>'


def urdf(*joints: str) -> str:
    return f'<?xml version="1.0"?><robot name="arm">{"".join(joints)}</robot>'


def joint(name: str, inside: str = LIMIT, kind: str = "revolute") -> str:
    return f'<joint name="{name}" type="{kind}"><parent link="a"/>{inside}</joint>'


def test_position_and_velocity_limits_are_read() -> None:
    text = urdf(joint("waist"), joint("other"), joint("slide", kind="prismatic"))
    limits = joint_limits(text, ["slide", "waist"])
    assert list(limits) == ["slide", "waist"]
    assert limits["waist"] == JointLimit(-1.5, 2.0, 3.0)
    assert math.isinf(limits["waist"].acceleration)


def test_continuous_joint_has_no_position_limit_even_if_the_file_gives_one() -> None:
    limits = joint_limits(urdf(joint("wheel", kind="continuous")), ["wheel"])
    assert limits["wheel"] == JointLimit(velocity=3.0)
    assert joint_limits(urdf(joint("wheel", "", "continuous")), ["wheel"])["wheel"] == JointLimit()


def test_soft_limits_narrow_and_never_widen() -> None:
    soft = '<safety_controller soft_lower_limit="-1" soft_upper_limit="9" k_velocity="1"/>'
    limits = joint_limits(urdf(joint("waist", LIMIT + soft)), ["waist"])
    assert (limits["waist"].lower, limits["waist"].upper) == (-1.0, 2.0)


def test_safety_controller_without_soft_limits_changes_nothing() -> None:
    limits = joint_limits(urdf(joint("a", LIMIT + '<safety_controller k_velocity="1"/>')), ["a"])
    assert (limits["a"].lower, limits["a"].upper) == (-1.5, 2.0)


@pytest.mark.parametrize("multiplier", [-2.0, 2.0])
def test_leader_keeps_within_the_limits_of_its_mimic(multiplier: float) -> None:
    follower = f'{LIMIT}<mimic joint="finger" multiplier="{multiplier}" offset="0.5"/>'
    limits = joint_limits(urdf(joint("finger"), joint("mirror", follower)), ["finger"])
    for end in (limits["finger"].lower, limits["finger"].upper):
        assert -1.5 <= multiplier * end + 0.5 <= 2.0
    assert limits["finger"].upper - limits["finger"].lower == pytest.approx(3.5 / 2)
    assert limits["finger"].velocity == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (urdf(joint("waist")), "lacks elbow, wrist; it has waist"),
        (urdf('<xacro:arm name="x"/>'), "expand that first"),
        (urdf(joint("elbow", kind="fixed"), joint("wrist")), "'elbow' is 'fixed'"),
        (urdf(joint("elbow", ""), joint("wrist")), "'elbow' is revolute and has no <limit>"),
        (urdf(joint("elbow", "<limit velocity='1'/>"), joint("wrist")), "0.0, expected the lower"),
        (
            urdf(joint("elbow", LIMIT.replace('"3"', '"0"')), joint("wrist")),
            "'elbow' has velocity limit 0.0",
        ),
        (
            urdf(joint("elbow", LIMIT.replace('"3"', '"fast"')), joint("wrist")),
            'velocity="fast"> is not a number',
        ),
        (
            urdf(joint("elbow", LIMIT.replace('"2"', '"nan"')), joint("wrist")),
            "<limit upper> is nan, not finite",
        ),
        (
            urdf(joint("elbow"), joint("wrist", LIMIT + '<mimic joint="elbow"/>')),
            "'wrist' mimics 'elbow'",
        ),
        ("<robot><joint", "not well-formed"),
        ("<sdf/>", "begins with <sdf>"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        joint_limits(text, ["elbow", "wrist"])


def test_entities_are_not_expanded() -> None:
    laughs = '<!DOCTYPE robot [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><robot>&b;</robot>'
    with pytest.raises(ValueError, match="declares a document type 'robot'"):
        joint_limits(laughs, ["waist"])
