# SPDX-License-Identifier: Apache-2.0
"""The engine: ticks, epochs, motion rules and faults, with a small real policy and no ROS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from toy_policy import JOINTS, ToyPolicy

from flashrt_ros.policies import (
    ChunkOutput,
    CommandOutput,
    Ends,
    EngineEvent,
    EngineOptions,
    EngineState,
    Motion,
    Observation,
    PolicyEngine,
)
from flashrt_ros.policies.limits import JointLimit, JointLimits
from flashrt_ros.runtime import Arena, AutoSnapshots, Session
from flashrt_ros.runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    NeedsReset,
    NotReady,
    RuntimeFault,
    StaleBoundary,
    UnknownCapsule,
    UnknownInstruction,
)

TICK_NS = 100_000_000


class Recording:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.chunks: list[ChunkOutput] = []
        self.commands: list[CommandOutput] = []
        self.events: list[EngineEvent] = []

    def on_chunk(self, chunk: ChunkOutput) -> None:
        self.chunks.append(chunk)

    def on_command(self, command: CommandOutput) -> None:
        self.commands.append(command)

    def on_event(self, event: EngineEvent) -> None:
        self.events.append(event)

    def on_status(self) -> None:
        pass


class Bench:
    """An engine on its own thread, a clock that the test moves, and what came out."""

    def __init__(self, **options: object) -> None:
        self.now_ns = 1_000_000_000
        self.policy = ToyPolicy()
        arena = Arena(self.policy.buffer_specs())
        arena.seal()
        self.policy.bind(arena, seed=3)
        self.session = Session(
            arena, fingerprint=self.policy.fingerprint, seed=3, auto=AutoSnapshots()
        )
        self.out = Recording()
        self.engine = PolicyEngine(
            self.policy,
            self.session,
            self.out,
            clock=lambda: self.now_ns,
            options=EngineOptions(**options),  # type: ignore[arg-type]
        )
        self.engine.start()
        self.engine.activate()

    def observation(
        self, value: int = 10, positions: tuple[float, float] = (0.1, 0.2)
    ) -> Observation:
        self.now_ns += TICK_NS
        image = np.full((4, 4, 3), value, dtype=np.uint8)
        return Observation(
            self.now_ns, {"camera": image}, np.array(positions), {"camera": self.now_ns}
        )

    def tick(self, value: int = 10, positions: tuple[float, float] = (0.1, 0.2)) -> CommandOutput:
        """Offer an observation and wait for the command that answers it."""
        before = len(self.out.commands)
        self.engine.offer(self.observation(value, positions))
        wait_for(lambda: len(self.out.commands) > before)
        return self.out.commands[-1]

    def settle(self) -> None:
        """Wait until everything offered so far has been seen."""
        for _ in range(3):
            self.engine.call(lambda session: None, timeout=5.0)

    def restore(self, name: str, motion: Motion, **checks: object) -> tuple[object, Motion]:
        return self.engine.call(lambda s: self.engine.restore(name, motion, **checks), timeout=5.0)

    def snapshot(self, name: str) -> None:
        self.engine.call(lambda session: session.snapshot(name), timeout=5.0)

    def say(self, text: str) -> None:
        self.engine.call(lambda session: self.engine.set_instruction(text), timeout=5.0)

    def interrupt(self, **checks: object) -> Motion:
        return self.engine.call(lambda session: self.engine.interrupt(**checks), timeout=5.0)

    def resume(self, motion: Motion = Motion.UNCHANGED) -> Motion:
        return self.engine.call(lambda session: self.engine.resume(motion), timeout=5.0)


def wait_for(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.001)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(observation_timeout=0.0)
    yield made
    made.policy.gate.set()
    made.engine.close()


@pytest.fixture
def lockstep() -> Iterator[Bench]:
    made = Bench(lockstep=True)
    yield made
    made.policy.gate.set()
    made.engine.close()


def test_nothing_is_sent_before_the_first_observation(bench: Bench) -> None:
    bench.interrupt()
    bench.resume()
    bench.engine.fault("bad image")
    bench.settle()
    assert bench.out.commands == []


EARLY: dict[str, Callable[[Bench], object]] = {
    "a bad input": lambda bench: bench.engine.fault("bad image"),
    "an interrupt": lambda bench: bench.interrupt(),
    "the emergency stop": lambda bench: bench.engine.press_emergency_stop("pressed").result(5.0),
    "a reset": lambda bench: bench.engine.call(lambda s: bench.engine.reset(Motion.REPLAN)),
    "a chunk to go on with": lambda bench: bench.restore("moving", Motion.CONTINUE),
    "deactivation": lambda bench: bench.engine.deactivate(),
}


@pytest.mark.parametrize("what", EARLY)
def test_nothing_leaves_between_activation_and_an_observation_though_the_joints_are_known(
    bench: Bench, what: str
) -> None:
    bench.tick()
    bench.snapshot("moving")
    bench.engine.deactivate()
    bench.engine.activate()
    bench.engine.measure(np.array([0.1, 0.2]))
    sent = len(bench.out.commands)
    EARLY[what](bench)
    bench.settle()
    assert len(bench.out.commands) == sent


def test_hold_before_any_command_is_sent_once_an_observation_was_complete(bench: Bench) -> None:
    bench.engine.fault("instruction: unknown", ends=Ends.INSTRUCTION)
    bench.engine.offer(bench.observation())
    bench.settle()
    assert bench.out.commands == []
    bench.interrupt()
    (held,) = bench.out.commands
    np.testing.assert_array_equal(held.trajectory.positions, [[0.1, 0.2]])  # as measured


def test_hold_is_sent_after_the_clock_jumped_though_no_observation_has_come_since(
    bench: Bench,
) -> None:
    bench.tick()  # a controller may still be at it
    bench.engine.clock_jumped().result(5.0)
    bench.engine.measure(np.array([0.1, 0.2]))
    bench.engine.fault("bad image")
    bench.settle()
    assert bench.out.commands[-1].is_hold


def test_a_tick_commits_one_boundary_and_sends_its_chunk(bench: Bench) -> None:
    command = bench.tick()
    assert (command.boundary, command.step, command.is_hold) == (1, 1, False)
    assert command.trajectory.start_ns == bench.now_ns
    np.testing.assert_allclose(command.trajectory.times, [0.05, 0.10, 0.15])
    assert [event.kind for event in bench.out.events if event.kind == "COMMIT"] == ["COMMIT"]
    assert bench.out.chunks[0].stamps == {"camera": bench.now_ns}


def test_sequence_grows_over_restores_and_boundaries_are_never_reused(bench: Bench) -> None:
    bench.tick()
    bench.snapshot("one")
    bench.tick()
    bench.restore("one", Motion.REPLAN)
    command = bench.tick()
    numbers = [each.sequence for each in bench.out.commands]
    assert numbers == sorted(set(numbers))
    assert (command.boundary, command.step) == (3, 2)


def test_restored_policy_repeats_its_chunks_bit_for_bit(bench: Bench) -> None:
    bench.say("reach")
    for value in (10, 200, 30):
        bench.tick(value)
    bench.snapshot("here")
    first = [bench.tick(value).trajectory.positions for value in (40, 50, 60)]
    bench.say("go home")
    bench.tick(255)
    report, _ = bench.restore("here", Motion.REPLAN)
    assert report.steps_not_recomputed == 3
    assert bench.engine.status.instruction == "reach"
    second = [bench.tick(value).trajectory.positions for value in (40, 50, 60)]
    np.testing.assert_array_equal(first, second)


def test_restoring_only_some_roles_does_not_repeat_them(bench: Bench) -> None:
    for value in (10, 200, 30):
        bench.tick(value)
    bench.snapshot("here")
    first = bench.tick(40).trajectory.positions
    for value in (255, 0, 255):
        bench.tick(value)
    bench.restore("here", Motion.REPLAN, roles={"random", "io", "action"})
    assert not np.array_equal(first, bench.tick(40).trajectory.positions)


@pytest.mark.parametrize("verb", ["restore", "rollback", "reset", "interrupt"])
def test_each_verb_that_changes_the_live_state_raises_the_epoch(bench: Bench, verb: str) -> None:
    bench.tick()
    bench.snapshot("one")
    bench.tick()
    before = bench.engine.status.epoch
    engine = bench.engine
    verbs = {
        "restore": lambda session: engine.restore("one", Motion.REPLAN),
        "rollback": lambda session: engine.rollback(Motion.REPLAN, count=1),
        "reset": lambda session: engine.reset(Motion.REPLAN),
        "interrupt": lambda session: engine.interrupt(),
    }
    engine.call(verbs[verb], timeout=5.0)
    assert engine.status.epoch == before + 1
    assert bench.out.events[-1].kind == verb.upper()
    assert bench.out.events[-1].epoch == before + 1


def test_nothing_of_an_older_epoch_leaves_after_an_interrupt_met_a_replay_in_flight(
    bench: Bench,
) -> None:
    bench.tick()
    bench.policy.gate.clear()
    bench.policy.started.clear()
    bench.engine.offer(bench.observation())
    assert bench.policy.started.wait(5.0)
    answer: Future[Motion] = bench.engine.submit(lambda session: bench.engine.interrupt())
    seen: list[int] = []
    answer.add_done_callback(lambda _: seen.append(len(bench.out.commands)))
    assert not answer.done()  # it waits for the one replay
    bench.policy.gate.set()
    assert answer.result(5.0) is Motion.HOLD
    bench.engine.offer(bench.observation())
    bench.settle()
    after = bench.out.commands[seen[0] :]
    epoch = bench.engine.status.epoch
    assert all(command.epoch == epoch for command in after)
    assert bench.out.commands[-1].is_hold
    assert bench.engine.status.state is EngineState.HOLDING


def test_interrupt_holds_where_the_joints_were_commanded_to_be(bench: Bench) -> None:
    command = bench.tick()
    bench.now_ns += 75_000_000
    bench.interrupt()
    held = bench.out.commands[-1]
    assert held.is_hold
    assert held.immediate  # it must hold whenever it arrives
    np.testing.assert_array_equal(held.trajectory.positions[0], command.trajectory.at(bench.now_ns))


def test_held_policy_does_not_tick_until_it_is_resumed(bench: Bench) -> None:
    bench.tick()
    bench.interrupt()
    boundary = bench.engine.status.boundary
    bench.engine.offer(bench.observation())
    bench.settle()
    assert bench.engine.status.boundary == boundary
    assert bench.resume() is Motion.REPLAN
    assert bench.tick().boundary == boundary + 1


def test_replan_ignores_observations_from_before_the_verb(bench: Bench) -> None:
    bench.tick()
    bench.snapshot("one")
    old = bench.observation()
    bench.now_ns += TICK_NS
    bench.restore("one", Motion.REPLAN)
    boundary = bench.engine.status.boundary
    bench.engine.offer(old)
    bench.settle()
    assert bench.engine.status.boundary == boundary
    assert bench.out.commands[-1].is_hold  # what the controller still executed is replaced
    assert not bench.tick().is_hold


def test_continue_sends_the_capsules_chunk_where_the_joints_still_are(bench: Bench) -> None:
    chunk = bench.tick(positions=(0.1, 0.2)).trajectory.positions
    bench.snapshot("one")
    bench.tick(value=200, positions=(0.11, 0.2))
    _, applied = bench.restore("one", Motion.CONTINUE)
    assert applied is Motion.CONTINUE
    command = bench.out.commands[-1]
    assert not command.is_hold
    np.testing.assert_array_equal(command.trajectory.positions, chunk)
    assert command.epoch == bench.engine.status.epoch


def test_continue_out_of_tolerance_becomes_replan_and_says_so(bench: Bench) -> None:
    bench.tick(positions=(0.1, 0.2))
    bench.snapshot("one")
    bench.tick(positions=(0.3, 0.2))
    _, applied = bench.restore("one", Motion.CONTINUE)
    assert applied is Motion.REPLAN
    assert bench.out.events[-1].motion is Motion.REPLAN
    assert bench.out.commands[-1].is_hold


def test_continue_without_a_chunk_in_the_capsule_becomes_replan(bench: Bench) -> None:
    bench.snapshot("empty")
    bench.tick()
    assert bench.restore("empty", Motion.CONTINUE)[1] is Motion.REPLAN


def test_restore_told_to_hold_stays(bench: Bench) -> None:
    bench.tick()
    bench.snapshot("one")
    assert bench.restore("one", Motion.HOLD)[1] is Motion.HOLD
    assert bench.engine.status.state is EngineState.HOLDING
    assert bench.out.commands[-1].is_hold


def test_refused_verbs_change_nothing(bench: Bench) -> None:
    bench.tick()
    bench.snapshot("one")
    before, sent = bench.engine.status, len(bench.out.commands)
    refusals: list[tuple[type[RuntimeFault], Callable[[], object]]] = [
        (UnknownCapsule, lambda: bench.restore("none", Motion.REPLAN)),
        (StaleBoundary, lambda: bench.restore("one", Motion.REPLAN, expected_boundary=7)),
        (StaleBoundary, lambda: bench.interrupt(expected_boundary=7)),
        (InvalidArgument, lambda: bench.restore("one", Motion.UNCHANGED)),
        (NotReady, bench.resume),
        (UnknownInstruction, lambda: bench.say("dance")),
    ]
    for fault, verb in refusals:
        with pytest.raises(fault):
            verb()
    assert bench.engine.status == before
    assert len(bench.out.commands) == sent


def test_not_finite_action_never_leaves_and_needs_a_reset(bench: Bench) -> None:
    bench.tick()
    bench.policy.poison = float("nan")
    command = bench.tick()
    assert command.is_hold
    assert all(np.all(np.isfinite(each.trajectory.positions)) for each in bench.out.commands)
    assert bench.engine.status.state is EngineState.NEEDS_RESET
    assert "point 1, joint 0 is nan" in bench.engine.status.last_error
    bench.policy.poison = None
    with pytest.raises(NeedsReset):
        bench.restore("anything", Motion.REPLAN)
    bench.engine.call(lambda session: bench.engine.reset(Motion.REPLAN), timeout=5.0)
    assert bench.tick().step == 1


def test_failed_replay_commits_nothing_and_a_reset_clears_it(bench: Bench) -> None:
    clean = Bench(observation_timeout=0.0)
    expected = clean.tick().trajectory.positions
    clean.engine.close()
    bench.policy.fail = True
    bench.engine.offer(bench.observation())
    wait_for(lambda: bench.engine.status.state is EngineState.NEEDS_RESET)
    assert bench.engine.status.boundary == 0
    assert "injected failure" in bench.engine.status.reason
    bench.policy.fail = False
    bench.engine.call(lambda session: bench.engine.reset(Motion.REPLAN), timeout=5.0)
    np.testing.assert_array_equal(bench.tick().trajectory.positions, expected)


def test_fault_holds_and_the_next_good_observation_ends_it(bench: Bench) -> None:
    bench.tick()
    bench.engine.fault("camera: image encoding is 'yuv'")
    bench.settle()
    assert bench.engine.status.state is EngineState.HOLDING
    assert bench.engine.status.reason == "camera: image encoding is 'yuv'"
    assert bench.out.commands[-1].is_hold
    assert not bench.tick().is_hold
    assert bench.engine.status.state is EngineState.RUNNING


def test_fault_never_ends_an_interrupt(bench: Bench) -> None:
    bench.tick()
    bench.interrupt()
    bench.engine.fault("camera: bad")
    bench.engine.offer(bench.observation())
    bench.settle()
    assert bench.engine.status.reason == "interrupted"


def test_unknown_instruction_holds_until_a_known_one(bench: Bench) -> None:
    bench.tick()
    bench.engine.fault("instruction: unknown", ends=Ends.INSTRUCTION)
    bench.engine.offer(bench.observation())
    bench.settle()
    assert bench.engine.status.state is EngineState.HOLDING
    bench.say("reach")
    assert not bench.tick().is_hold


def test_silence_holds_and_says_for_how_long() -> None:
    bench = Bench(observation_timeout=0.5)
    bench.tick()
    bench.now_ns += 700_000_000
    wait_for(lambda: bench.engine.status.state is EngineState.HOLDING)
    assert "no complete observation for 0.70 s" in bench.engine.status.reason
    assert not bench.tick().is_hold
    bench.engine.close()


def test_clock_that_jumps_back_raises_the_epoch_and_drops_inputs(bench: Bench) -> None:
    bench.tick()
    epoch = bench.engine.status.epoch
    bench.now_ns = 0
    bench.engine.clock_jumped().result(5.0)
    assert bench.engine.status.epoch == epoch + 1
    assert bench.out.events[-1].kind == "CLOCK_JUMP"
    assert not bench.tick().is_hold


def test_lockstep_answers_every_observation_and_nothing_else(lockstep: Bench) -> None:
    lockstep.tick()
    lockstep.interrupt()
    assert len(lockstep.out.commands) == 1
    held = lockstep.tick()
    assert held.is_hold
    assert not held.immediate  # it answers this observation and no other
    assert held.trajectory.start_ns == lockstep.now_ns
    again = lockstep.tick()
    np.testing.assert_array_equal(held.trajectory.positions, again.trajectory.positions)
    lockstep.resume()
    assert not lockstep.tick().is_hold
    assert len(lockstep.out.commands) == 4


def test_lockstep_repeats_its_answer_to_a_repeated_observation(lockstep: Bench) -> None:
    observation = lockstep.observation()
    lockstep.engine.offer(observation)
    wait_for(lambda: len(lockstep.out.commands) == 1)
    lockstep.engine.offer(observation)
    wait_for(lambda: len(lockstep.out.commands) == 2)
    assert lockstep.out.commands[0] is lockstep.out.commands[1]
    assert lockstep.engine.status.boundary == 1


def test_lockstep_repeats_no_command_from_before_an_activation(lockstep: Bench) -> None:
    lockstep.tick()
    lockstep.engine.deactivate()
    lockstep.engine.activate()
    far = {name: JointLimit(lower=5.0) for name in JOINTS}
    lockstep.engine.safety.guard.limit(JointLimits.of(JOINTS, far))  # so nothing at all is sent
    observation = lockstep.observation()
    for _ in range(2):
        lockstep.engine.offer(observation)
        lockstep.settle()
    assert len(lockstep.out.commands) == 1


def test_deactivated_engine_holds_and_keeps_its_state(bench: Bench) -> None:
    bench.tick()
    bench.engine.deactivate()
    assert bench.out.commands[-1].is_hold
    assert bench.engine.status.state is EngineState.INACTIVE
    with pytest.raises(NotReady):
        bench.interrupt()
    bench.engine.activate()
    assert bench.tick().boundary == 2


def begin_to_tick(bench: Bench) -> None:
    """A tick is under way, and stays so until the gate is opened."""
    bench.policy.gate.clear()
    bench.policy.started.clear()
    bench.engine.offer(bench.observation())
    assert bench.policy.started.wait(5.0)


def test_deactivation_holds_beside_a_tick_under_way_whose_chunk_is_not_sent(bench: Bench) -> None:
    bench.tick()
    sent = len(bench.out.commands)
    begin_to_tick(bench)
    with ThreadPoolExecutor(1) as pool:
        deactivating = pool.submit(bench.engine.deactivate)
        wait_for(lambda: len(bench.out.commands) > sent)
        assert bench.out.commands[-1].is_hold
        assert not deactivating.done()
        bench.policy.gate.set()
        deactivating.result(5.0)
    assert all(command.is_hold for command in bench.out.commands[sent:])
    status = bench.engine.status
    assert (status.state, status.boundary) == (EngineState.INACTIVE, 2)
    bench.engine.activate()
    assert not bench.tick().is_hold


def test_deactivation_gives_up_a_tick_that_hangs_and_nothing_comes_of_it(bench: Bench) -> None:
    bench.tick()
    sent, chunks = len(bench.out.commands), len(bench.out.chunks)
    begin_to_tick(bench)
    waiting = bench.engine.submit(lambda session: session.snapshot())
    with pytest.raises(DeadlineExceeded, match=r"did not end within 0\.1 s"):
        bench.engine.deactivate(timeout=0.1)
    assert bench.out.commands[-1].is_hold
    bench.engine.release_emergency_stop()  # which does not make it move again
    bench.engine.close(timeout=0.1)
    assert isinstance(waiting.exception(5.0), Cancelled)
    bench.policy.gate.set()
    bench.engine._thread.join(5.0)
    assert not bench.engine._thread.is_alive()
    assert all(command.is_hold for command in bench.out.commands[sent:])
    assert len(bench.out.chunks) == chunks


def test_a_tick_that_was_given_up_and_ends_before_the_close_only_holds(bench: Bench) -> None:
    bench.tick()
    sent = len(bench.out.commands)
    begin_to_tick(bench)
    with pytest.raises(DeadlineExceeded):
        bench.engine.deactivate(timeout=0.05)
    bench.engine.release_emergency_stop()
    bench.policy.gate.set()
    wait_for(lambda: bench.engine.status.state is EngineState.INACTIVE)
    bench.engine.activate()
    bench.engine.offer(bench.observation())
    bench.settle()
    assert all(command.is_hold for command in bench.out.commands[sent:])
    with pytest.raises(DeadlineExceeded):
        bench.engine.deactivate(timeout=5.0)


def test_closing_answers_verbs_that_wait(bench: Bench) -> None:
    bench.policy.gate.clear()
    bench.policy.started.clear()
    bench.engine.offer(bench.observation())
    assert bench.policy.started.wait(5.0)
    waiting = [bench.engine.submit(lambda session: session.snapshot()) for _ in range(3)]
    closer = threading.Thread(target=bench.engine.close)
    closer.start()
    bench.policy.gate.set()
    closer.join(5.0)
    assert not closer.is_alive()
    for future in waiting:
        assert future.done()


def test_concurrent_verbs_are_all_answered_in_order_while_ticking(bench: Bench) -> None:
    bench.tick()
    bench.snapshot("one")
    order: list[int] = []

    def verb(index: int) -> Callable[[Session], None]:
        def apply(session: Session) -> None:
            order.append(index)
            bench.engine.restore("one", Motion.REPLAN)

        return apply

    futures = []
    for index in range(50):
        futures.append(bench.engine.submit(verb(index)))
        bench.engine.offer(bench.observation())
    for future in futures:
        future.result(5.0)
    assert order == list(range(50))
