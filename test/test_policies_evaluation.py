# SPDX-License-Identifier: Apache-2.0
"""Branches beside the live state: what they give, and that the live state never learns of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from test_policies_engine import Bench, Recording, wait_for
from tiny_pi0 import write_checkpoint
from toy_policy import INSTRUCTIONS, ToyPolicy

from flashrt_ros.models import load_policy
from flashrt_ros.policies import EngineOptions, Motion, Observation, PolicyEngine, evaluation
from flashrt_ros.policies.evaluation import Branch, Evaluation, EvaluationReport, Evaluator
from flashrt_ros.runtime import Arena, Code, Session
from flashrt_ros.runtime.errors import (
    Cancelled,
    InvalidArgument,
    NotReady,
    StaleEpoch,
    UnknownCapsule,
    UnknownInstruction,
    Unsupported,
)

PATIENCE = 60.0


class Evaluating(Bench):
    """A bench with an evaluator whose twin's ticks a test can hold up."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.evaluator = Evaluator(self.engine)
        twin = self.evaluator._twin.model
        assert isinstance(twin, ToyPolicy)
        self.twin = twin

    def close(self) -> None:
        self.twin.gate.set()
        self.evaluator.close()
        self.engine.close()

    def evaluate(self, *branches: Branch, **fields: object) -> EvaluationReport:
        request = Evaluation("test", branches or (Branch(),), **fields)  # type: ignore[arg-type]
        return self.evaluator.submit(request).result(PATIENCE)

    def digest(self) -> str:
        return self.engine.call(lambda session: session.digest(), timeout=PATIENCE)


@pytest.fixture
def bench() -> Iterator[Evaluating]:
    made = Evaluating(observation_timeout=0.0)
    try:
        yield made
    finally:
        made.close()


def live_chunks(bench: Bench, ticks: int) -> list[bytes]:
    return [bench.tick(20 + index).trajectory.positions.tobytes() for index in range(ticks)]


def test_a_branch_gives_what_the_live_policy_would_have_given(bench: Evaluating) -> None:
    for value in (1, 2, 3):
        bench.tick(value)
    bench.snapshot("here")
    seen = [bench.observation(20 + index) for index in range(4)]
    report = bench.evaluate(capsule="here", ticks=4, observations=tuple(seen))
    assert report.code is Code.OK
    branch = report.branches[0]
    assert [chunk.boundary for chunk in branch.chunks] == [4, 5, 6, 7]
    for observation, chunk in zip(seen, branch.chunks, strict=True):
        before = len(bench.out.chunks)
        bench.now_ns = observation.stamp_ns
        bench.engine.offer(observation)
        wait_for(lambda known=before: len(bench.out.chunks) > known)
        # The buffer, not the command, which may be ramped or limited.
        assert chunk.positions.tobytes() == bench.policy.chunk().tobytes()
    assert branch.state_digest == bench.digest()


def test_instruction_and_seed_of_a_branch_are_its_own(bench: Evaluating) -> None:
    bench.tick()
    report = bench.evaluate(
        Branch("as it is"),
        Branch("other words", instruction="go home"),
        Branch("other noise", seed=77),
        Branch("as it is, again"),
    )
    texts = [branch.instruction for branch in report.branches]
    assert texts == ["wait", "go home", "wait", "wait"]
    assert [branch.seed for branch in report.branches] == [3, 3, 77, 3]
    chunks = [branch.chunks[0].positions.tobytes() for branch in report.branches]
    assert chunks[0] == chunks[3]
    assert len(set(chunks)) == 3


def test_live_state_and_next_20_chunks_are_the_same_with_evaluations_and_without() -> None:
    quiet = Bench(observation_timeout=0.0)
    busy = Evaluating(observation_timeout=0.0)
    try:
        for made in (quiet, busy):
            live_chunks(made, 3)
            made.snapshot("here")
        expected = live_chunks(quiet, 20)
        stop = threading.Event()
        reports: list[EvaluationReport] = []

        def keep_evaluating() -> None:
            while not stop.is_set():
                branches = [Branch(text, text, seed) for seed, text in enumerate(INSTRUCTIONS)]
                reports.append(busy.evaluate(*branches, capsule="here", ticks=3, keep=True))

        others = threading.Thread(target=keep_evaluating)
        others.start()
        wait_for(lambda: len(reports) > 0)
        epoch = busy.session.epoch
        got = []
        for index in range(20):
            before = len(reports)
            got.append(busy.tick(20 + index).trajectory.positions.tobytes())
            wait_for(lambda known=before: len(reports) > known)  # at least one between two ticks
        stop.set()
        others.join(PATIENCE)
        assert len(reports) > 20
        assert all(report.code is Code.OK for report in reports)
        assert got == expected
        assert busy.digest() == quiet.engine.call(lambda session: session.digest(), timeout=5.0)
        assert busy.session.epoch == epoch == quiet.session.epoch
        assert busy.session.live.inputs_digest == quiet.session.live.inputs_digest
        assert [c.boundary for c in busy.out.commands] == [c.boundary for c in quiet.out.commands]
    finally:
        quiet.engine.close()
        busy.close()


def test_live_state_at_the_next_boundary_is_evaluated_without_a_capsule(bench: Evaluating) -> None:
    bench.tick()
    known = {info.id for info in bench.session.capsules()}
    report = bench.evaluate(Branch(), ticks=2)
    assert report.boundary == 1
    assert len(report.branches[0].chunks) == 2
    assert {info.id for info in bench.session.capsules()} == known


def test_kept_end_shares_the_store_and_continues_live_as_the_branch_did(bench: Evaluating) -> None:
    bench.tick()
    bench.snapshot("here")
    seen = (bench.observation(5), bench.observation(6))
    longer = bench.evaluate(Branch(instruction="reach"), capsule="here", ticks=2, observations=seen)
    report = bench.evaluate(
        Branch(instruction="reach"), capsule="here", observations=seen[:1], keep=True
    )
    kept = report.branches[0].capsule
    restored, _ = bench.restore(kept, Motion.REPLAN)
    assert restored.step == 2  # type: ignore[attr-defined]
    assert bench.digest() == report.branches[0].state_digest
    assert bench.engine.status.instruction == "reach"
    bench.now_ns = seen[1].stamp_ns - 1
    bench.engine.call(lambda session: setattr(bench.engine, "_not_before_ns", 0))
    bench.engine.offer(seen[1])
    wait_for(lambda: bench.out.chunks[-1].command.step == 3)
    assert bench.digest() == longer.branches[0].state_digest


def test_evaluations_take_no_bytes_of_the_store_but_those_that_are_kept(
    bench: Evaluating,
) -> None:
    def used() -> int:
        return sum(tier.used_bytes for tier in bench.session.store.statistics())

    bench.tick()
    bench.snapshot("here")
    before = used()
    known = {info.id for info in bench.session.capsules()}
    bench.evaluate(*[Branch()] * 5, capsule="here", ticks=3)
    assert used() == before
    assert {info.id for info in bench.session.capsules()} == known
    bench.evaluate(*[Branch()] * 2, capsule="here", keep=True)
    assert used() == before + 2 * bench.session.arena.fixed.numel()


def test_capsule_deleted_or_replaced_meanwhile_is_evaluated_all_the_same(bench: Evaluating) -> None:
    bench.tick()
    bench.snapshot("here")
    expected = bench.evaluate(Branch(), Branch(), capsule="here")
    bench.twin.gate.clear()
    bench.twin.started.clear()
    answer = bench.evaluator.submit(Evaluation("x", (Branch(), Branch()), capsule="here"))
    assert bench.twin.started.wait(PATIENCE)
    bench.engine.call(lambda session: session.drop("here"), timeout=PATIENCE)
    bench.twin.gate.set()
    report = answer.result(PATIENCE)
    assert report.code is Code.OK
    digests = [branch.state_digest for branch in report.branches]
    assert digests == [branch.state_digest for branch in expected.branches]


def test_cancel_ends_it_at_the_next_tick_border_with_what_was_done(bench: Evaluating) -> None:
    bench.tick()
    bench.twin.gate.clear()
    bench.twin.started.clear()
    answer = bench.evaluator.submit(Evaluation("long", (Branch("a"), Branch("b")), ticks=100))
    waiting = bench.evaluator.submit(Evaluation("next", (Branch(),)))
    assert bench.twin.started.wait(PATIENCE)
    assert bench.evaluator.cancel("long") == "long"
    bench.twin.gate.set()
    report = answer.result(PATIENCE)
    assert report.code is Code.CANCELLED
    assert [branch.label for branch in report.branches] == ["a"]
    assert len(report.branches[0].chunks) == 1
    assert not report.branches[0].complete
    assert waiting.result(PATIENCE).code is Code.OK
    with pytest.raises(InvalidArgument, match="there are: none"):
        bench.evaluator.cancel("long")


def test_branch_gives_way_to_a_live_tick_that_is_under_way(
    bench: Evaluating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_GIVE_WAY", PATIENCE)
    bench.tick()
    bench.twin.gate.clear()
    bench.twin.started.clear()
    answer = bench.evaluator.submit(Evaluation("x", (Branch(),), ticks=2))
    assert bench.twin.started.wait(PATIENCE)
    bench.policy.gate.clear()
    bench.policy.started.clear()
    bench.engine.offer(bench.observation())
    assert bench.policy.started.wait(PATIENCE)
    bench.twin.started.clear()
    bench.twin.gate.set()
    assert not bench.twin.started.wait(0.3)
    bench.policy.gate.set()
    assert answer.result(PATIENCE).code is Code.OK


def test_deadline_leaves_out_what_is_not_done(bench: Evaluating) -> None:
    bench.tick()
    bench.twin.gate.clear()
    answer = bench.evaluator.submit(Evaluation("slow", (Branch("a"), Branch("b")), deadline=0.05))
    threading.Event().wait(0.2)
    bench.twin.gate.set()
    report = answer.result(PATIENCE)
    assert report.code is Code.DEADLINE_EXCEEDED
    assert len(report.branches) < 2


def test_what_cannot_be_meant_is_refused_with_its_code(bench: Evaluating) -> None:
    with pytest.raises(NotReady, match="no complete observation"):
        bench.evaluate(Branch())
    bench.tick()
    with pytest.raises(UnknownCapsule):
        bench.evaluate(Branch(), capsule="nowhere")
    with pytest.raises(UnknownInstruction, match="dance"):
        bench.evaluate(Branch("b", instruction="dance"))
    with pytest.raises(StaleEpoch):
        bench.evaluate(Branch(), expected_epoch=9)
    with pytest.raises(InvalidArgument, match="0 ticks"):
        bench.evaluate(Branch(), ticks=0)
    with pytest.raises(InvalidArgument, match="2 observations for 3 ticks"):
        bench.evaluate(Branch(), ticks=3, observations=(bench.observation(),) * 2)
    assert bench.evaluate(Branch()).code is Code.OK


def test_observation_that_does_not_fit_and_a_tick_that_fails_hurt_nobody_else(
    bench: Evaluating,
) -> None:
    bench.tick()
    good = bench.evaluate(Branch())
    small = Observation(5, {"camera": np.zeros((2, 2, 3), np.uint8)}, np.zeros(2), {})
    unfit = bench.evaluator.submit(Evaluation("x", (Branch(),), observations=(small,)))
    assert "size" in str(unfit.exception(PATIENCE))
    bench.twin.fail = True
    failed = bench.evaluator.submit(Evaluation("y", (Branch(),)))
    assert "injected failure" in str(failed.exception(PATIENCE))
    bench.twin.fail = False
    bench.twin.poison = float("nan")
    assert bench.evaluate(Branch()).code is Code.INTERNAL
    bench.twin.poison = None
    again = bench.evaluate(Branch())
    assert again.branches[0].state_digest == good.branches[0].state_digest


def test_closing_answers_what_runs_and_what_waits(bench: Evaluating) -> None:
    bench.tick()
    bench.twin.gate.clear()
    bench.twin.started.clear()
    running = bench.evaluator.submit(Evaluation("a", (Branch(),), ticks=50))
    waiting = bench.evaluator.submit(Evaluation("b", (Branch(),)))
    assert bench.twin.started.wait(PATIENCE)
    closing = threading.Thread(target=bench.evaluator.close)
    closing.start()
    bench.twin.gate.set()
    closing.join(PATIENCE)
    assert running.result(PATIENCE).code is Code.CANCELLED
    assert waiting.result(PATIENCE).code is Code.CANCELLED
    with pytest.raises(Cancelled):
        bench.evaluate(Branch())


def test_policy_without_a_twin_is_not_evaluated() -> None:
    class Single(ToyPolicy):
        twin = None  # type: ignore[assignment]

    made = Bench(observation_timeout=0.0)
    try:
        made.engine.model = Single()
        with pytest.raises(Unsupported, match="no twin"):
            Evaluator(made.engine)
    finally:
        made.engine.close()


@pytest.mark.parametrize("kind", ["streaming_vla", "pi0"])
def test_twin_of_a_real_policy_shares_its_weights_and_disturbs_no_tick(
    kind: str, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    model = load_policy("cued_reach" if kind == "streaming_vla" else write_checkpoint(tmp_path))
    texts = ("wait", "reach") if kind == "streaming_vla" else ("pick the red cube up", "pick")
    arena = Arena(model.buffer_specs())
    model.bind(arena, seed=3)
    session = Session(arena, fingerprint=model.fingerprint, seed=3)
    now_ns = 0
    options = EngineOptions(instruction=texts[0], lockstep=True)
    out = Recording()
    engine = PolicyEngine(model, session, out, clock=lambda: now_ns, options=options)
    evaluator = Evaluator(engine)
    engine.start()
    engine.activate()
    noise = np.random.default_rng(0)
    seen = [
        Observation(
            (index + 1) * 100_000_000,
            {name: noise.integers(0, 256, shape, np.uint8) for name, shape in cameras.items()},
            noise.uniform(-0.1, 0.1, len(model.spec.joint_names)),
            {},
        )
        for cameras in [model.spec.cameras]
        for index in range(12)
    ]

    def run(observations: list[Observation]) -> tuple[list[bytes], str]:
        nonlocal now_ns
        chunks = []
        for observation in observations:
            now_ns = observation.stamp_ns
            before = session.live.step
            engine.offer(observation)
            wait_for(lambda known=before: session.live.step > known, 60.0)
            chunks.append(engine.call(lambda session: model.chunk().tobytes()))
        return chunks, engine.call(lambda session: session.digest())

    try:
        run(seen[:4])
        engine.call(lambda session: session.snapshot("here"))
        expected = run(seen[4:])
        engine.call(lambda session: engine.restore("here", Motion.REPLAN))
        engine.deactivate()
        engine.activate()  # the same stamps come again
        branches = tuple(Branch(text, text, seed) for text in texts for seed in (3, 4))
        answer = evaluator.submit(
            Evaluation("x", (Branch(), *branches), "here", 8, tuple(seen[4:]), keep=True)
        )
        assert run(seen[4:]) == expected
        report = answer.result(PATIENCE)
        assert report.code is Code.OK
        assert [chunk.positions.tobytes() for chunk in report.branches[0].chunks] == expected[0]
        assert report.branches[0].state_digest == expected[1]
        assert len({branch.state_digest for branch in report.branches}) == 4
    finally:
        evaluator.close()
        engine.close()
