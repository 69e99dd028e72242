# SPDX-License-Identifier: Apache-2.0
"""language_node over DDS: streams, capsules in mid-text, cancel, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from language_families import speaking_checkpoint
from ros_rig import Inbox, Rig, rig

from flashrt_ros.client import CapsuleClient, VerbRefused
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import ChatMessage, Token
from flashrt_ros.policies import Motion
from flashrt_ros.runtime import Code
from flashrt_ros.srv import CancelGeneration, Generate

NODE = "language_node"


class Peer:
    """A caller of the node."""

    def __init__(self, made: Rig) -> None:
        self._rig = made
        self.capsules = CapsuleClient(made.node, NODE, timeout=60.0)
        self.tokens = Inbox(made.node, Token, f"{NODE}/tokens")

    def generate(self, prompt: str = "", **fields: Any) -> Generate.Response:
        fields.setdefault("max_tokens", 24)
        request = Generate.Request(prompt=prompt, **fields)
        return self._rig.caller.call(Generate, f"{NODE}/generate", request)

    def cancel(self, request_id: str = "") -> CancelGeneration.Response:
        request = CancelGeneration.Request(request_id=request_id)
        return self._rig.caller.call(CancelGeneration, f"{NODE}/cancel", request)

    def stream_of(self, request_id: str) -> list[Token]:
        """The tokens of a request that has ended, its end included."""
        self.tokens.wait(
            lambda seen: any(m.request_id == request_id and m.token == -1 for m in seen),
            f"the end of {request_id}",
        )
        return [m for m in self.tokens.all() if m.request_id == request_id]


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with rig("/language", tmp_path_factory.mktemp("language")) as made:
        made.start_language(
            f"model:={speaking_checkpoint()}", "max_context:=400", "chunk:=32", "max_waiting:=1"
        )
        bring_up(made.caller, NODE)
        yield Peer(made)


def test_tokens_stream_as_they_are_committed_and_the_answer_has_them_all(language: Peer) -> None:
    answer = language.generate("the robot saw", request_id="first")
    assert answer.success, answer.message
    seen = language.stream_of("first")
    assert [m.token for m in seen[:-1]] == list(answer.tokens)
    assert [m.index for m in seen[:-1]] == list(range(len(answer.tokens)))
    boundaries = [m.boundary for m in seen[:-1]]
    assert boundaries == sorted(set(boundaries))
    assert seen[-1].finish_reason == answer.finish_reason
    assert answer.prompt_tokens > 0


def test_restored_capsule_repeats_the_same_sampled_tokens(language: Peer) -> None:
    sampling = {"temperature": 1.0, "top_p": 0.9, "seed": 11}
    language.generate("the cup", max_tokens=8, **sampling)
    language.capsules.snapshot("middle", overwrite=True)
    first = language.generate("the cup and the robot", **sampling)
    language.generate("another text that overwrites the state", temperature=1.0)
    restored = language.capsules.restore("middle", motion=Motion.REPLAN)
    assert restored.steps_not_recomputed > 0
    second = language.generate("the cup and the robot", **sampling)
    assert list(first.tokens) == list(second.tokens)
    assert len(set(first.tokens)) > 1


def snapshot_in_mid_text(language: Peer) -> list[int] | None:
    """A text whose state was frozen as "mid" while it came; None where it was over by then."""
    answers: list[Generate.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(language.generate("robot", max_tokens=350))
    )
    begin = language.capsules.snapshot("mid", overwrite=True).result.boundary
    thread.start()
    taken = begin
    while taken < begin + 5 and thread.is_alive():
        taken = language.capsules.snapshot("mid", overwrite=True).result.boundary
    thread.join(60.0)
    over = language.capsules.list().result.boundary
    return list(answers[0].tokens) if taken < over else None


def test_snapshot_in_mid_text_goes_on_as_the_text_did(language: Peer) -> None:
    tries = (snapshot_in_mid_text(language) for _ in range(50))
    whole = next(tokens for tokens in tries if tokens is not None)
    language.generate("something else")
    language.capsules.restore("mid", motion=Motion.HOLD)
    rest = language.generate(resume_run=True)
    assert rest.success, rest.message
    assert 0 < len(rest.tokens) < len(whole)
    assert list(rest.tokens) == whole[-len(rest.tokens) :]


def test_prompt_that_comes_again_is_not_computed_again(language: Peer) -> None:
    prompt = "the robot took the cup and the cup took the robot " * 4
    first = language.generate(prompt, max_tokens=4)
    language.generate("another", max_tokens=4)
    second = language.generate(prompt, max_tokens=4)
    assert list(second.tokens) == list(first.tokens)
    assert second.tokens_reused > 0


def test_cancel_ends_at_the_next_boundary_with_what_there_is(language: Peer) -> None:
    answers: list[Generate.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(language.generate("cup", request_id="stop", max_tokens=350))
    )
    thread.start()
    language.tokens.wait(lambda seen: any(m.request_id == "stop" for m in seen), "a token")
    assert language.cancel("stop").success
    thread.join(60.0)
    assert answers[0].success
    assert answers[0].finish_reason == "cancelled"
    assert 0 < len(answers[0].tokens) < 350
    unknown = language.cancel("stop")
    assert not unknown.success
    assert "no request 'stop'" in unknown.message


def test_two_callers_are_served_in_turn_and_a_third_is_told_busy(language: Peer) -> None:
    answers: dict[str, Generate.Response] = {}

    def call(name: str) -> None:
        answers[name] = language.generate("the", request_id=name, max_tokens=120)

    threads = [threading.Thread(target=call, args=(name,)) for name in ("one", "two")]
    threads[0].start()
    language.tokens.wait(lambda seen: any(m.request_id == "one" for m in seen), "a token")
    threads[1].start()
    refused = None
    while refused is None or refused.result.code != Code.BUSY:
        assert any(thread.is_alive() for thread in threads), "both ended and nobody was busy"
        refused = language.generate("the", max_tokens=1)
    for thread in threads:
        thread.join(60.0)
    assert list(answers["one"].tokens) == list(answers["two"].tokens)


def test_chat_uses_the_checkpoints_template(language: Peer) -> None:
    chat = language.generate(messages=[ChatMessage(role="user", content="the cup")])
    text = language.generate("<s>user: the cup</s><s>assistant: ")
    assert list(chat.tokens) == list(text.tokens)


def test_unicode_goes_in_and_out_whole(language: Peer) -> None:
    answer = language.generate("Grüße, 机器人 🤖", request_id="unicode", max_tokens=16)
    assert answer.success, answer.message
    streamed = "".join(m.text for m in language.stream_of("unicode"))
    assert answer.text.startswith(streamed)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": "the robot " * 400}, "400"),
        ({"prompt": "a", "temperature": -1.0}, "temperature is -1.0"),
        ({"prompt": "a", "top_p": 0.0}, "top_p is 0.0"),
        ({"prompt": "a", "resume_run": True}, "prompt and resume_run were given"),
        ({"prompt": "a", "stop": [""]}, "a stop string is empty"),
    ],
)
def test_request_that_cannot_be_meant_is_refused_by_value(
    language: Peer, fields: dict[str, Any], expected: str
) -> None:
    answer = language.generate(**fields)
    assert not answer.success
    assert answer.result.code == Code.INVALID_ARGUMENT
    assert expected in answer.message
    assert language.generate("the node is up", max_tokens=1).success


def test_language_state_forks_but_is_not_evaluated(language: Peer) -> None:
    names = ["left", "right"]
    assert [info.name for info in language.capsules.fork(names=names).capsules] == names
    with pytest.raises(VerbRefused) as refusal:
        language.capsules.evaluate(["go on"])
    assert refusal.value.code is Code.UNSUPPORTED
