# SPDX-License-Identifier: Apache-2.0
"""The record of answers: what is asked for again is not done again."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from flashrt_ros.ros.repeats import AnswerRecord
from flashrt_ros.runtime.errors import InvalidArgument
from flashrt_ros.srv import Snapshot


class Counting:
    """Starts verbs and counts them."""

    def __init__(self) -> None:
        self.started: list[Future[int]] = []

    def __call__(self) -> Future[int]:
        self.started.append(Future())
        return self.started[-1]


def asked(name: str, request_id: str) -> Snapshot.Request:
    return Snapshot.Request(name=name, request_id=request_id)


def test_same_request_gets_the_same_future_also_while_it_is_under_way() -> None:
    record, start = AnswerRecord(), Counting()
    first, repeated = record.claim("snapshot", asked("a", "1"), start)
    assert not repeated
    again, repeated = record.claim("snapshot", asked("a", "1"), start)
    assert repeated
    assert again is first
    assert len(start.started) == 1


def test_requests_without_an_id_are_all_different() -> None:
    record, start = AnswerRecord(), Counting()
    for _ in range(3):
        assert not record.claim("snapshot", asked("a", ""), start)[1]
    assert len(start.started) == 3
    assert len(record) == 0


@pytest.mark.parametrize(("verb", "name"), [("snapshot", "b"), ("fork", "a")])
def test_id_of_another_request_is_refused_and_starts_nothing(verb: str, name: str) -> None:
    record, start = AnswerRecord(), Counting()
    record.claim("snapshot", asked("a", "1"), start)
    with pytest.raises(InvalidArgument, match="request id '1'"):
        record.claim(verb, asked(name, "1"), start)
    assert len(start.started) == 1


def test_oldest_answers_are_forgotten_but_none_that_is_under_way() -> None:
    record, start = AnswerRecord(capacity=4), Counting()
    for number in range(10):
        record.claim("snapshot", asked("a", str(number)), start)
        if number != 2:
            start.started[-1].set_result(number)
    assert record.claim("snapshot", asked("a", "2"), start)[1]
    assert not record.claim("snapshot", asked("a", "0"), start)[1]
    assert len(record) <= 5


def test_withdrawn_request_may_come_again() -> None:
    record, start = AnswerRecord(), Counting()
    record.claim("snapshot", asked("a", "1"), start)
    record.forget(asked("a", "1"))
    assert not record.claim("snapshot", asked("a", "1"), start)[1]
    assert len(start.started) == 2
