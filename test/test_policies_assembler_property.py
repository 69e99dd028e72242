# SPDX-License-Identifier: Apache-2.0
"""Whatever arrives whenever: an observation never breaks its contract, and none is withheld."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.models.policy import PolicySpec
from flashrt_ros.policies import Observation, ObservationAssembler
from flashrt_ros.policies.contract import Contract, TimeRules
from flashrt_ros.policies.contract_check import default_contract
from flashrt_ros.policies.stamps import StampsWentBack

MS = 1_000_000
SPEC = PolicySpec(
    {"fast": (1, 1, 3), "slow": (1, 1, 3)},
    ("a",),
    3,
    0.05,
    0.1,
    {"wrench": 1, "touch": 1},
    frozenset({"touch"}),
)
# In ms; None: no limit.
AGES = {"fast": None, "slow": 300, "joint_states": 100, "wrench": 200, "touch": 100}
SKEWS = {"fast": 50, "slow": 300, "joint_states": 50, "wrench": 100, "touch": 50}
AWAITED = {"fast"}
FUTURE = 200
BACK = 1000


def seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def contract() -> Contract:
    made = default_contract(SPEC)

    def timed(inputs: tuple) -> tuple:
        return tuple(
            replace(
                each,
                timing=replace(
                    each.timing,
                    await_new=each.name in AWAITED,
                    max_age=seconds(AGES[each.name]),
                    max_skew=seconds(SKEWS[each.name]),
                ),
            )
            for each in inputs
        )

    return replace(
        made,
        cameras=timed(made.cameras),
        joints=timed(made.joints),
        vectors=timed(made.vectors),
        time=TimeRules(None, FUTURE / 1000, BACK / 1000),
    )


@dataclass(frozen=True)
class Arrival:
    name: str
    elapsed_ms: int
    """Of the node's clock since the arrival before."""
    age_ms: int
    """The clock minus the stamp: below 0 for the future."""


NAMES = [*sorted(AGES), "fast", "fast"]
ELAPSED = [1, 5, 10, 20, 33, 0, 100, 400]
USUAL_AGES = [0, 1, 5, 10, 20]
ODD_AGES = [50, 51, 100, 101, 300, 301, -100, -200, -201, 1500, 2500]
ARRIVALS = st.builds(
    Arrival,
    st.sampled_from(NAMES),
    st.sampled_from(ELAPSED),
    st.one_of(st.sampled_from(USUAL_AGES), st.sampled_from(USUAL_AGES), st.sampled_from(ODD_AGES)),
)


class Model:
    """What the rules say, written down again without regard to speed or order of checks."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[int, int]] = {}
        self.fresh: set[str] = set()

    def clear(self) -> None:
        self.newest, self.fresh = {}, set()

    def take(self, name: str, stamp_ns: int, value: int, now_ns: int) -> dict[str, int] | None:
        """The values of the observation that the message completes, by input."""
        self.newest[name] = (stamp_ns, value)
        self.fresh.add(name)
        if name not in AWAITED or not self.fresh.issuperset(AWAITED):
            return None
        anchor_ns = min(self.newest[each][0] for each in AWAITED)
        usable = {
            each: value
            for each, (stamp, value) in self.newest.items()
            if abs(stamp - anchor_ns) <= SKEWS[each] * MS
            and (AGES[each] is None or now_ns - stamp <= AGES[each] * MS)
        }
        if not set(AGES) - {"touch"} <= set(usable):
            return None
        self.fresh = set()
        return usable


def values(seen: Observation) -> dict[str, int]:
    found = {name: int(image[0, 0, 0]) for name, image in seen.images.items()}
    found |= {name: int(vector[0]) for name, vector in seen.vectors.items()}
    return found | {"joint_states": int(seen.positions[0])}


def array(name: str, value: int) -> np.ndarray:
    if name in SPEC.cameras:
        return np.full((1, 1, 3), value, dtype=np.uint8)
    return np.array([float(value)])


@settings(max_examples=80, deadline=None)
@given(st.lists(ARRIVALS, min_size=20, max_size=60))
def test_every_observation_is_what_the_rules_say_and_none_is_withheld(
    arrivals: list[Arrival],
) -> None:
    assembler, model = ObservationAssembler(contract()), Model()
    now_ns = 1_000_000 * MS
    last_ns = 0
    begun = [Arrival(name, 0, 0) for name in ("slow", "joint_states", "wrench", "fast")]
    for value, arrival in enumerate(begun + arrivals):
        now_ns += arrival.elapsed_ms * MS
        stamp_ns = now_ns - arrival.age_ms * MS
        newest = model.newest.get(arrival.name)
        try:
            seen = assembler.add(arrival.name, stamp_ns, array(arrival.name, value), now_ns)
        except ValueError:
            assert -arrival.age_ms > FUTURE
            continue
        except StampsWentBack:
            assert newest is not None
            assert newest[0] - stamp_ns > BACK * MS
            assembler.clear()
            model.clear()
            last_ns = 0
            continue
        assert -arrival.age_ms <= FUTURE
        if newest is not None and stamp_ns <= newest[0]:
            assert seen is None
            continue
        expected = model.take(arrival.name, stamp_ns, value, now_ns)
        assert (None if seen is None else values(seen)) == expected
        if seen is not None:
            assert seen.stamp_ns > last_ns  # nothing is seen twice
            assert dict(seen.stamps) == {name: model.newest[name][0] for name in seen.stamps}
            assert set(seen.stamps) == set(values(seen)) == set(seen.digests)
            last_ns = seen.stamp_ns
