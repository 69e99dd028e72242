# SPDX-License-Identifier: Apache-2.0
"""Joint limits from a URDF.

The format is that of http://wiki.ros.org/urdf/XML/joint: `<limit lower upper velocity effort>`,
`<safety_controller soft_lower_limit soft_upper_limit …>`, which narrows the positions, and
`<mimic joint multiplier offset>`. A URDF knows nothing of acceleration and jump.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from flashrt_ros.policies.limits import JointLimit

_MOVING = ("revolute", "prismatic", "continuous")


def parse_xml(text: str) -> Element:
    """An XML document's root. One that declares a document type is refused.

    Only there can entities be declared, and an expanded entity can fill a machine's memory.

    Raises:
        ValueError: the text is not well-formed, or declares a document type.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate()

    def refuse(name: str, *_: object) -> None:
        raise ValueError(f"the URDF declares a document type '{name}', which no URDF needs")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise ValueError(f"the URDF is not well-formed XML: {error}") from error
    return builder.close()


def joint_limits(text: str, names: Iterable[str]) -> dict[str, JointLimit]:
    """The limits of the named joints.

    A joint that others mimic is limited by theirs too, as they move with it.

    Args:
        text: the URDF's XML, with xacro expanded.
        names: the joints that a policy commands.

    Raises:
        ValueError: the text is no URDF, a joint is missing or can't be commanded (fixed, or it
            mimics another), or a limit is missing or can't be meant; the message names the joint.
    """
    root = parse_xml(text)
    if root.tag != "robot":
        raise ValueError(f"the XML begins with <{root.tag}>, expected a URDF's <robot>")
    joints = {joint.get("name", ""): joint for joint in root.findall("joint")}
    names = list(names)
    missing = [name for name in names if name not in joints]
    if missing:
        hint = ""
        if any(element.tag.startswith("xacro:") for element in root.iter()):
            hint = ". It has xacro in it: expand that first, `xacro robot.urdf.xacro > robot.urdf`"
        raise ValueError(
            f"the URDF lacks {', '.join(missing)}; it has {', '.join(joints) or 'no joint'}{hint}"
        )
    limits = {name: _own_limit(name, joints[name]) for name in names}
    for name, joint in joints.items():
        mimic = joint.find("mimic")
        leader = "" if mimic is None else mimic.get("joint", "")
        if mimic is None or leader not in limits:
            continue
        if name in limits:
            raise ValueError(f"joint '{name}' mimics '{leader}': it can't be commanded itself")
        limits[leader] = _as_leader(
            limits[leader],
            _limit(name, joint),
            _number(name, mimic, "multiplier", 1.0),
            _number(name, mimic, "offset", 0.0),
        )
        if not limits[leader].lower < limits[leader].upper:
            raise ValueError(f"joint '{leader}' can't move within the limits of its mimic '{name}'")
    return limits


def _own_limit(name: str, joint: Element) -> JointLimit:
    mimic = joint.find("mimic")
    if mimic is not None:
        raise ValueError(
            f"joint '{name}' mimics '{mimic.get('joint', '')}': it can't be commanded itself"
        )
    return _limit(name, joint)


def _limit(name: str, joint: Element) -> JointLimit:
    kind = joint.get("type", "")
    if kind not in _MOVING:
        raise ValueError(f"joint '{name}' is '{kind}', expected {', '.join(_MOVING)}")
    element = joint.find("limit")
    if element is None:
        if kind == "continuous":
            return JointLimit()
        raise ValueError(f"joint '{name}' is {kind} and has no <limit>, which it must have")
    limit = JointLimit(velocity=_number(name, element, "velocity", math.inf))
    if limit.velocity <= 0.0:
        raise ValueError(f"joint '{name}' has velocity limit {limit.velocity}, expected above 0")
    if kind == "continuous":
        return limit
    limit = limit.narrowed(
        lower=_number(name, element, "lower", 0.0), upper=_number(name, element, "upper", 0.0)
    )
    safety = joint.find("safety_controller")
    # The format's default for both is 0, which would mean a joint that can't move: not given.
    if safety is not None and "soft_lower_limit" in safety.keys():  # noqa: SIM118
        limit = limit.narrowed(lower=_number(name, safety, "soft_lower_limit", -math.inf))
    if safety is not None and "soft_upper_limit" in safety.keys():  # noqa: SIM118
        limit = limit.narrowed(upper=_number(name, safety, "soft_upper_limit", math.inf))
    if not limit.lower < limit.upper:
        raise ValueError(
            f"joint '{name}' has the lower limit {limit.lower} and the upper limit {limit.upper}, "
            "expected the lower one below"
        )
    return limit


def _as_leader(
    leader: JointLimit, follower: JointLimit, multiplier: float, offset: float
) -> JointLimit:
    """The leader's limits, with its follower's at `multiplier * leader + offset`."""
    if multiplier == 0.0:
        return leader
    ends = sorted(((follower.lower - offset) / multiplier, (follower.upper - offset) / multiplier))
    return leader.narrowed(
        lower=ends[0], upper=ends[1], velocity=follower.velocity / abs(multiplier)
    )


def _number(joint: str, element: Element, attribute: str, default: float) -> float:
    text = element.get(attribute)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(
            f"joint '{joint}': <{element.tag} {attribute}=\"{text}\"> is not a number"
        ) from error
    if not math.isfinite(value):
        raise ValueError(f"joint '{joint}': <{element.tag} {attribute}> is {value}, not finite")
    return value
