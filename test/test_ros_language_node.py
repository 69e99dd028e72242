# SPDX-License-Identifier: Apache-2.0
"""language_node over DDS: streams, capsules in mid-text, cancel, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from language_families import speaking_checkpoint
from rclpy.executors import MultiThreadedExecutor
from ros_host import until
from ros_rig import Inbox, Rig, rig

from flashrt_ros.client import CapsuleClient, VerbRefused
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.msg import ChatMessage, Token
from flashrt_ros.policies import Motion
from flashrt_ros.ros.language_node import LanguageNode
from flashrt_ros.runtime import Code, Event, EventKind
from flashrt_ros.srv import CancelGeneration, Generate

NODE = "language_node"


class Peer:
    """A caller of the node."""

    def __init__(self, made: Rig, name: str = NODE) -> None:
        self._rig, self._name = made, name
        self.capsules = CapsuleClient(made.node, name, timeout=60.0)
        self.tokens = Inbox(made.node, Token, f"{name}/tokens")

    def generate(self, prompt: str = "", **fields: Any) -> Generate.Response:
        fields.setdefault("max_tokens", 24)
        request = Generate.Request(prompt=prompt, **fields)
        return self._rig.caller.call(Generate, f"{self._name}/generate", request)

    def cancel(self, request_id: str = "") -> CancelGeneration.Response:
        request = CancelGeneration.Request(request_id=request_id)
        return self._rig.caller.call(CancelGeneration, f"{self._name}/cancel", request)

    def stream_of(self, request_id: str) -> list[Token]:
        """The tokens of a request that has ended, its end included."""
        self.tokens.wait(
            lambda seen: any(m.request_id == request_id and m.token == -1 for m in seen),
            f"the end of {request_id}",
        )
        return [m for m in self.tokens.all() if m.request_id == request_id]


class Gated:
    """A node in the test's process whose replay thread waits at each boundary for the test.

    A text is so under way for as long as a test wants it, however fast it is decoded.
    """

    def __init__(self, made: Rig, *parameters: str) -> None:
        given = [argument for each in parameters for argument in ("-p", each)]
        context = made.node.context
        self.node = LanguageNode(
            "gated_node",
            context=context,
            namespace=made.namespace,
            cli_args=["--ros-args", *given],
        )
        self.peer = Peer(made, "gated_node")
        self._boundaries = threading.Semaphore(0)
        self._open = threading.Event()
        self.waits = threading.Event()
        """Set when the replay thread waits."""
        self._executor = MultiThreadedExecutor(num_threads=8, context=context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()
        bring_up(made.caller, "gated_node")
        assert self.node._engine is not None
        self.node._engine.session.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        """On the replay thread."""
        if event.kind is not EventKind.COMMIT or self._open.is_set():
            return
        if not self._boundaries.acquire(blocking=False):
            self.waits.set()
            self._boundaries.acquire()

    def let_pass(self, boundaries: int) -> None:
        """So many more are committed, the next one then waits."""
        self._boundaries.release(boundaries)

    def open(self) -> None:
        """Nothing waits any more."""
        self._open.set()
        self.let_pass(1)

    def under_way(self) -> list[str]:
        return list(self.node._requests)

    def close(self) -> None:
        self.open()
        self.node.stop()
        self._executor.shutdown()
        self._thread.join(60.0)
        self.node.destroy_node()


@pytest.fixture
def gated(language: Peer) -> Iterator[Gated]:
    made = Gated(
        language._rig,
        f"model:={speaking_checkpoint()}",
        "max_context:=400",
        "chunk:=32",
        "max_waiting:=1",
        "kernels:=torch",
    )
    yield made
    made.close()


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


def test_cancel_ends_at_the_next_boundary_with_what_there_is(gated: Gated) -> None:
    peer = gated.peer
    with ThreadPoolExecutor(2) as pool:
        text = pool.submit(peer.generate, "cup", request_id="stop", max_tokens=350)
        gated.let_pass(8)
        seen = peer.tokens.wait(lambda seen: any(m.request_id == "stop" for m in seen), "a token")
        assert seen[0].token != -1
        assert gated.waits.wait(60.0)
        cancelling = pool.submit(peer.cancel, "stop")
        until(lambda: gated.node._runner.answering == 1, "the cancel waits for the boundary")
        assert not text.done()
        gated.open()
        assert cancelling.result(60.0).success
        answer = text.result(60.0)
    assert answer.success
    assert answer.finish_reason == "cancelled"
    assert 0 < len(answer.tokens) <= 10  # nothing like the text that was asked for
    unknown = peer.cancel("stop")
    assert not unknown.success
    assert "no request 'stop'" in unknown.message


def test_two_callers_are_served_in_turn_and_a_third_is_told_busy(gated: Gated) -> None:
    peer = gated.peer
    with ThreadPoolExecutor(2) as pool:
        texts = []
        for name in ("one", "two"):
            texts.append(pool.submit(peer.generate, "the", request_id=name, max_tokens=60))
            until(lambda wanted=name: wanted in gated.under_way(), f"{name} is under way")
        for _ in range(3):
            assert peer.generate("the", max_tokens=1).result.code == Code.BUSY
        gated.open()
        one, two = (text.result(60.0) for text in texts)
    assert list(one.tokens) == list(two.tokens)
    peer.stream_of("one")
    peer.stream_of("two")
    order = [m.request_id for m in peer.tokens.all()]
    assert order == sorted(order)  # all of one's before two's


def test_status_says_what_decode_steps_run_in(language: Peer, gated: Gated) -> None:
    plans = {}
    for peer in (language, gated.peer):
        peer.capsules.wait_for_status(lambda status: status.plan != "", 60.0)
        plans[peer._name] = peer.capsules.wait_for_status(lambda status: True, 60.0).plan
    assert plans["gated_node"] == "eager, kernels torch"
    assert plans[NODE].startswith(("eager, kernels native", "eager, kernels torch: "))


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
