# SPDX-License-Identifier: Apache-2.0
"""What the layers above a session stand on: their own verbs and replays that fail."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.runtime import Arena, BufferSpec, Fingerprint, Role, Session
from flashrt_ros.runtime.errors import NeedsReset, StaleBoundary, StaleEpoch


@pytest.fixture
def session() -> Session:
    arena = Arena([BufferSpec("state", Role.RECURRENT, torch.float32, (4,))])
    return Session(arena, fingerprint=Fingerprint(model="test"))


def test_require_refuses_as_a_verb_would(session: Session) -> None:
    session.require(expected_boundary=0, expected_epoch=0)
    with pytest.raises(StaleBoundary):
        session.require(expected_boundary=1)
    with pytest.raises(StaleEpoch):
        session.require(expected_epoch=1)


def test_invalidated_session_accepts_only_a_reset_and_says_why(session: Session) -> None:
    session.snapshot("good")
    session.arena["state"].fill_(float("nan"))
    session.invalidate("tick failed: division by zero")
    for verb in (session.require, session.snapshot, lambda: session.restore("good")):
        with pytest.raises(NeedsReset, match="division by zero"):
            verb()
    session.reset()
    assert session.arena["state"].tolist() == [0.0] * 4
    session.require()
