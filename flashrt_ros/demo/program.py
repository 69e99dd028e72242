# SPDX-License-Identifier: Apache-2.0
"""A planner that does anything a planner may do, at random, and knows what each answer must be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rclpy.node import Node

from flashrt_ros.client import AsyncCapsuleClient, CapsuleClient, Code, Motion, RunHandle
from flashrt_ros.client import requests as verbs
from flashrt_ros.client.requests import Call
from flashrt_ros.demo.dialogue import Asked, Dialogue, told
from flashrt_ros.demo.expectations import judge_branches, judge_move, target
from flashrt_ros.demo.notebook import INSTRUCTIONS, Notebook
from flashrt_ros.demo.witness import CommandWitness, LineageWitness, Lost, Moment, Wrong
from flashrt_ros.msg import Boundary

ERRAND = "before_errand"

_MOTIONS = (Motion.HOLD, Motion.REPLAN, Motion.CONTINUE)


class Program:
    """Calls verbs of a policy node through the client library and judges every answer.

    Args:
        node: spun by another thread.
        policy: name of the policy node, active.
        witnesses: listening already.
        seed: of what is drawn.
        patience: longest wait for anything, s.
    """

    def __init__(
        self,
        node: Node,
        policy: str,
        witnesses: tuple[LineageWitness, CommandWitness],
        *,
        seed: int,
        patience: float,
    ) -> None:
        self._policy = CapsuleClient(node, policy, timeout=patience)
        self._async = AsyncCapsuleClient(node, policy, timeout=patience)
        self._dialogue = Dialogue(self._policy, witnesses, patience)
        self.tally = self._dialogue.tally
        self._lineage, self._commands = witnesses
        self._patience = patience
        self._notes = Notebook(self._lineage, self._dialogue, seed)

    def close(self) -> None:
        """Remove the clients."""
        self._policy.close()
        self._async.close()

    def begin(self) -> None:
        """Until events come: the subscription needs a while to be known."""
        lineage, deadline = self._lineage, time.monotonic() + self._patience
        while not lineage.moments:
            if time.monotonic() > deadline:
                raise Lost(f"no event has come within {self._patience} s")
            self._policy.set_instruction("wait")
            lineage.pause(0.1)

    def run(self, calls: int, progress: Callable[[int], None]) -> None:
        """Go on until so many interrupts, rollbacks and evaluations are answered.

        progress: called after every step with how many there are.

        Raises:
            Wrong, Lost, Unanswered: with what was wrong first.
        """
        self._see_progress(5)
        steps = {
            self.interrupt: 8, self.resume: 5, self.snapshot: 5, self.restore: 6,
            self.rollback: 10, self.evaluate: 10, self.fork: 2, self.delete: 4,
            self.set_instruction: 2, self.timed_run: 3, self.errand: 3, self.stale: 4,
            self.repeat: 4, self.listing: 1, self.unmeant: 1,
            self.move: 2, self.reset: 0.5,
        }  # fmt: skip
        while self.tally.core < calls:
            self._notes.random.choices(list(steps), list(steps.values()))[0]()
            self._think()
            progress(self.tally.core)
        self._close_the_books()

    # -- steps

    def interrupt(self) -> None:
        """Stop; mostly go on soon."""
        response, index = self._apply(verbs.interrupt(**self._notes.fields()), Boundary.INTERRUPT)
        if response.result.motion != int(Motion.HOLD) or not self._moment(index).held:
            raise Wrong(f"an interrupt does not hold: {response.result}")
        if self._notes.random.random() < 0.6:
            self._think()
            self.resume()

    def resume(self) -> None:
        """End a hold, if there is one."""
        motion = self._notes.random.choice([Motion.UNCHANGED, Motion.REPLAN, Motion.CONTINUE])

        def judge(asked: Asked, between: Sequence[Moment]) -> None:
            if all(moment.held for moment in between):
                raise Wrong(f"resume was refused although the policy was held: {asked.response}")

        call = verbs.resume(motion, **self._notes.fields())
        asked = self._dialogue.ask(call, {Code.OK, Code.NOT_READY}, judge)
        if asked.code is Code.OK:
            index = self._dialogue.confirm(asked, Boundary.RESUME)
            if not self._moment(index - 1).held:
                raise Wrong("resume was answered OK, but nothing was held")

    def snapshot(self) -> None:
        """Freeze the live state under a name."""
        name, overwrite = self._notes.names(1)[0], self._notes.random.random() < 0.6
        call = verbs.snapshot(name, overwrite=overwrite, tags=["program"], **self._notes.fields())
        if name in self._notes.capsules and not overwrite:
            self._refuse(call, Code.NAME_TAKEN)
            return
        response, _ = self._apply(call, Boundary.SNAPSHOT)
        capsule, result = response.capsule, response.result
        if (capsule.boundary, capsule.step) != (result.boundary, result.step):
            raise Wrong(f"the snapshot is of boundary {capsule.boundary}, live is {result}")
        self._notes.capsules[name] = capsule

    def restore(self) -> None:
        """Make a capsule live; it is what was frozen."""
        name, motion = self._notes.name(), self._notes.random.choice(_MOTIONS)
        call = verbs.restore(name, motion=motion, **self._notes.fields())
        known = self._notes.capsules.get(name)
        if known is None:
            self._refuse(call, Code.UNKNOWN_CAPSULE)
            return
        response, index = self._apply(call, Boundary.RESTORE)
        judge_move(response, motion, known.boundary, self._moment(index))
        if (response.capsule.id, response.result.step) != (known.id, known.step):
            raise Wrong(f"restored {response.capsule}, frozen as '{name}' was {known}")
        if self._moment(index).instruction != known.instruction:
            raise Wrong(f"the instruction is not the capsule's: {self._moment(index)}, {known}")

    def rollback(self) -> None:
        """Back along the lineage in one of four ways."""
        past, known = self._notes.past(), self._notes.capsules.get(name := self._notes.name())
        near = past[:40]
        anywhere = [number for number, _ in near]
        anywhere.append(self._notes.random.randrange(max(anywhere) + 1))
        where: dict[str, Any] = self._notes.random.choice(
            [
                {"count": self._notes.random.randint(1, 8)},
                {"boundary": self._notes.random.choice(anywhere)},
                {"before_ns": max(self._notes.random.choice(near)[1], 1)},
                {"name": name},
            ]
        )
        nearest, motion = self._notes.random.random() < 0.6, self._notes.random.choice(_MOTIONS)
        call = verbs.rollback(**where, nearest=nearest, motion=motion, **self._notes.fields())
        if "name" not in where:
            known = None
        elif known is None:
            self._refuse(call, Code.UNKNOWN_CAPSULE)
            return
        named = None if known is None else known.boundary

        def judge(asked: Asked, between: Sequence[Moment]) -> None:
            live = self._notes.past(asked.response.result.boundary)
            aim = target(call.request, live, self._lineage.stored(), named)
            if aim is not asked.code:
                raise Wrong(f"{told(call)} was answered {asked.response}, expected {aim}")

        codes = {Code.OK, Code.NOT_STORED, Code.INVALID_ARGUMENT}
        asked = self._dialogue.ask(call, codes, judge)
        if asked.code is Code.OK:
            index = self._dialogue.confirm(asked, Boundary.ROLLBACK)
            live = self._notes.past(self._moment(index - 1).boundary)
            aim = target(call.request, live, self._lineage.stored(index), named)
            if isinstance(aim, Code):
                raise Wrong(f"{told(call)} was answered OK, expected {aim.name}")
            judge_move(asked.response, motion, aim, self._moment(index))

    def evaluate(self) -> None:
        """Two to four branches, two of them alike, perhaps while other verbs are called."""
        drawn = [self._notes.branch() for _ in range(self._notes.random.randint(1, 3))]
        branches = [*drawn, self._notes.random.choice(drawn)]
        name, ticks = (
            self._notes.random.choice(["", self._notes.name()]),
            self._notes.random.randint(1, 3),
        )
        call = verbs.evaluate(branches, capsule=name, ticks=ticks, **self._notes.fields(cas=False))
        if name and name not in self._notes.capsules:
            self._refuse(call, Code.UNKNOWN_CAPSULE)
            return
        begin = self._notes.capsules[name].boundary if name else None
        self._dialogue.look()
        started, epoch = time.perf_counter(), self._lineage.moments[self._dialogue.mark].epoch
        sent = self._async.send(call)
        if beside := self._notes.random.random() < 0.4:
            self._notes.random.choice(
                [self.interrupt, self.snapshot, self.restore, self.rollback]
            )()
            begin = None  # either may have been first, and a name may be another capsule's now
        code, response = self._dialogue.wait(call.name, started, sent.result)
        if code is not Code.OK:
            raise Wrong(f"{told(call)} was answered {code.name}: {response.message}")
        self._dialogue.answers.append(Asked(call, code, response, self._dialogue.mark))
        judge_branches(response, branches, ticks, begin)
        index = self._event(call.request.request_id, Boundary.EVALUATE)
        if not beside and {response.result.epoch, self._moment(index).epoch} != {epoch}:
            raise Wrong(f"an evaluation in epoch {epoch} was answered {response.result}")

    def fork(self) -> None:
        """Two capsules that share a third's bytes, or the live state's."""
        source, names = self._notes.random.choice(["", self._notes.name()]), self._notes.names(2)
        call = verbs.fork(source, names=names, **self._notes.fields())
        if self._notes.capsules.keys() & set(names):
            self._refuse(call, Code.NAME_TAKEN)
        elif source and source not in self._notes.capsules:
            self._refuse(call, Code.UNKNOWN_CAPSULE)
        else:
            response, index = self._apply(call, Boundary.FORK, count=2)
            wanted = (
                self._notes.capsules[source].boundary if source else self._moment(index).boundary
            )
            for name, capsule in zip(names, response.capsules, strict=True):
                if (capsule.name, capsule.boundary) != (name, wanted):
                    raise Wrong(f"fork of boundary {wanted} as {name} gave {capsule}")
                self._notes.capsules[name] = capsule

    def delete(self) -> None:
        """Forget a capsule."""
        name = self._notes.name()
        call = verbs.delete(name, **self._notes.fields())
        if name in self._notes.capsules:
            self._apply(call, Boundary.DELETE)
            del self._notes.capsules[name]
        else:
            self._refuse(call, Code.UNKNOWN_CAPSULE)

    def move(self) -> None:
        """A capsule to another tier; there is no disk here."""
        name, tier = self._notes.name(), self._notes.random.choice(["device", "host", "disk"])
        call = verbs.move(name, tier, **self._notes.fields())
        if name not in self._notes.capsules:
            self._refuse(call, Code.UNKNOWN_CAPSULE)
        elif tier == "disk":
            self._refuse(call, Code.UNSUPPORTED)
        else:
            response, _ = self._apply(call, Boundary.MOVE)
            if (response.info.id, response.info.tier) != (self._notes.capsules[name].id, tier):
                raise Wrong(f"'{name}' was to be on {tier}: {response.info}")

    def reset(self) -> None:
        """Back to the first boundary."""
        motion = self._notes.random.choice([Motion.HOLD, Motion.REPLAN])
        call = verbs.reset(motion, **self._notes.fields())
        response, index = self._apply(call, Boundary.RESET)
        result, held = response.result, self._moment(index).held
        if (result.boundary, result.step, result.motion) != (0, 0, int(motion)):
            raise Wrong(f"a reset went to {result}")
        if held != (motion is Motion.HOLD):
            raise Wrong(f"a reset with motion {motion.name}: {self._moment(index)}")

    def set_instruction(self) -> None:
        """Another instruction, or words that nobody knows."""
        text = self._notes.random.choice([*INSTRUCTIONS, "polish the floor"])
        call = verbs.set_instruction(text, **self._notes.fields())
        if text not in INSTRUCTIONS:
            self._refuse(call, Code.UNKNOWN_INSTRUCTION)
            return
        _, index = self._apply(call, Boundary.INSTRUCTION)
        if self._moment(index).instruction != text:
            raise Wrong(f"the instruction is {self._moment(index).instruction}, asked was {text}")

    def errand(self) -> None:
        """What capsules are for: stop, do something else, come back."""
        self._apply(verbs.interrupt(**self._notes.fields()), Boundary.INTERRUPT)
        call = verbs.snapshot(ERRAND, overwrite=True, **self._notes.fields())
        frozen, _ = self._apply(call, Boundary.SNAPSHOT)
        self._notes.capsules[ERRAND] = frozen.capsule
        self._apply(verbs.set_instruction("go home", **self._notes.fields()), Boundary.INSTRUCTION)
        self._apply(verbs.resume(Motion.REPLAN, **self._notes.fields()), Boundary.RESUME)
        self._see_progress(2)
        call = verbs.restore(ERRAND, motion=Motion.REPLAN, **self._notes.fields())
        back, index = self._apply(call, Boundary.RESTORE)
        judge_move(back, Motion.REPLAN, frozen.capsule.boundary, self._moment(index))
        if back.steps_not_recomputed != frozen.capsule.step:
            raise Wrong(f"{back.steps_not_recomputed} steps were not recomputed, of {frozen}")

    def timed_run(self) -> None:
        """A run that ends by its time, by a cancel, by another instruction, or is paused."""
        how = self._notes.random.choice(["time", "pause", "cancel", "service", "take over"])
        at_end = self._notes.random.choice([Motion.HOLD, Motion.UNCHANGED])
        text, other = self._notes.random.sample(INSTRUCTIONS, 2)
        given = {"at_end": at_end, **self._notes.fields(cas=False)}
        if how in ("time", "pause"):
            given["duration"] = self._notes.random.uniform(0.2, 0.5)
        run_id = given["request_id"]
        started, handle = time.perf_counter(), None
        if how == "service":
            self._apply(verbs.start_run(text, **given), Boundary.RUN_START)
        else:
            self._dialogue.look()
            handle = self._policy.run(text, **given)
            self._event(run_id, Boundary.RUN_START)
        self._think()
        expected = Code.OK
        if how == "pause":
            # Without compare-and-swap: the run may be faster, and its end raises the epoch, too.
            fields = self._notes.fields(cas=False)
            self._apply(verbs.interrupt(**fields), Boundary.INTERRUPT)
        elif how == "take over":
            call = verbs.set_instruction(other, **self._notes.fields())
            self._apply(call, Boundary.INSTRUCTION)
            expected = Code.PREEMPTED
        elif how != "time":
            self._cancel(run_id, handle)
            expected = Code.CANCELLED
        ended = self._event(run_id, Boundary.RUN_END)
        if at_end is Motion.HOLD and how != "take over" and not self._moment(ended).held:
            raise Wrong(f"a run that was to end in a hold has ended in {self._moment(ended)}")
        if handle is not None:
            code, result = self._dialogue.wait("run (action)", started, handle.result)
            if code is not expected:
                raise Wrong(f"a run ended by '{how}' was answered {result}")

    def _cancel(self, run_id: str, handle: RunHandle | None) -> None:
        """End a run, by its handle or by its id."""
        if handle is None:
            self._dialogue.ask(verbs.cancel_run(run_id), {Code.OK})
            return
        started, sent = time.perf_counter(), handle.cancel()
        _, cancelled = self._dialogue.wait("cancel_run", started, sent.result)
        if not cancelled.success:
            raise Wrong(f"cancelling a run was answered {cancelled}")

    def stale(self) -> None:
        """A verb by a planner that has slept."""
        live = self._lineage.moments[self._dialogue.mark]
        fields = self._notes.fields(cas=False)
        past = [
            number for number, _ in self._notes.past()[1:6]
        ]  # a tick gives the live one a new number
        code, expected = Code.STALE_EPOCH, live.epoch + (-1 if live.epoch else 1)
        if past and self._notes.random.random() < 0.5:
            code = Code.STALE_BOUNDARY
            fields["expected_boundary"] = self._notes.random.choice(past)
        else:
            fields["expected_epoch"] = expected
        name = self._notes.name()
        made: Sequence[Callable[[], Call[Any]]] = (
            partial(verbs.interrupt, **fields),
            partial(verbs.snapshot, name, overwrite=True, **fields),
            partial(verbs.restore, name, **fields),
            partial(verbs.rollback, count=1, **fields),
            partial(verbs.fork, **fields),
            partial(verbs.delete, name, **fields),
            partial(verbs.evaluate, ["wait"], **fields),
            partial(verbs.start_run, "wait", **fields),
            partial(verbs.reset, **fields),
            partial(verbs.set_instruction, "wait", **fields),
        )
        self._refuse(self._notes.random.choice(made)(), code)

    def repeat(self) -> None:
        """An answer was lost, the planner thinks; and an id that is used for something else."""
        if not self._dialogue.answers:
            return
        earlier = self._notes.random.choice(self._dialogue.answers[-20:])
        request_id = earlier.call.request.request_id
        counted = self._lineage.count(request_id)
        code, response = self._dialogue.send(earlier.call)
        was, now = earlier.response.result, response.result
        same = (was.boundary, was.step, was.epoch) == (now.boundary, now.step, now.epoch)
        if not (code is earlier.code and now.repeated and same):
            raise Wrong(
                f"{told(earlier.call)} was answered {earlier.response}, and then {response}"
            )
        if self._notes.random.random() < 0.3:
            other = verbs.snapshot("other", request_id=request_id)
            self._refuse(other, Code.INVALID_ARGUMENT, remember=False)
        # What is told next is told after anything that the repetition could have caused.
        self._apply(verbs.snapshot(**self._notes.fields()), Boundary.SNAPSHOT)
        if self._lineage.count(request_id) != counted:
            raise Wrong(f"{told(earlier.call)} was applied again")

    def listing(self) -> None:
        """The names are those that the answers gave."""
        listed = self._dialogue.ask(verbs.capsules(), {Code.OK}).response
        names = {info.name: info.id for info in listed.capsules}
        if names != {name: info.id for name, info in self._notes.capsules.items()}:
            raise Wrong(f"listed are {names}, the answers said {self._notes.capsules}")
        page = self._dialogue.ask(verbs.capsules(offset=1, limit=2), {Code.OK}).response
        ids = [info.id for info in listed.capsules[1:3]]
        if (page.total, [info.id for info in page.capsules]) != (len(names), ids):
            raise Wrong(f"a page is {page}, expected {ids} of {len(names)}")

    def unmeant(self) -> None:
        """What cannot be meant is refused."""
        made = (
            (verbs.rollback(**self._notes.fields()), Code.INVALID_ARGUMENT),
            (verbs.rollback(count=1, name="a", **self._notes.fields()), Code.INVALID_ARGUMENT),
            (verbs.evaluate([], **self._notes.fields(cas=False)), Code.INVALID_ARGUMENT),
            (verbs.evaluate(["polish"], **self._notes.fields(cas=False)), Code.UNKNOWN_INSTRUCTION),
            (verbs.snapshot("no name", **self._notes.fields()), Code.INVALID_ARGUMENT),
        )
        for call, code in self._notes.random.sample(made, 2):
            self._refuse(call, code)

    def _close_the_books(self) -> None:
        """Once nothing moves any more: the capsules, the chunks, the refusals."""
        self._apply(verbs.interrupt(**self._notes.fields(cas=False)), Boundary.INTERRUPT)
        listed = self._dialogue.ask(verbs.capsules(unnamed=True), {Code.OK}).response
        self.listing()
        self._apply(verbs.interrupt(**self._notes.fields(cas=False)), Boundary.INTERRUPT)
        names = {info.id: info.name for info in listed.capsules if "first" not in info.tags}
        view = {seen.id: seen.name for seen in self._lineage.view.capsules.values()}
        if names != view:
            raise Wrong(f"listed are {names}, the events tell of {view}")
        for boundary, step, epoch in self._commands.chunks:
            if self._lineage.commits.get(boundary, ())[:2] != (step, epoch):
                raise Wrong(f"a chunk of boundary {boundary}, step {step}, epoch {epoch}")
        for asked in self._dialogue.answers:
            events = self._lineage.count(asked.call.request.request_id)
            if asked.code is not Code.OK and events:
                raise Wrong(
                    f"{told(asked.call)} was refused ({asked.code.name}), and told of: {events}"
                )
        self._dialogue.look()

    # -- helpers

    def _apply(self, call: Call[Any], kind: int, *, count: int = 1) -> tuple[Any, int]:
        return self._dialogue.apply(call, kind, count=count)

    def _refuse(self, call: Call[Any], code: Code, *, remember: bool = True) -> None:
        self._dialogue.ask(call, {code}, remember=remember)

    def _event(self, request_id: str, kind: int) -> int:
        """Wait for an event of ours; its place."""
        index = self._lineage.event(request_id, kind, 1, self._patience)
        self._dialogue.passed(index)
        return index

    def _moment(self, index: int) -> Moment:
        return self._lineage.moments[index]

    def _think(self) -> None:
        """Call again at once, or let the arm move a little first."""
        if self._notes.random.random() < 0.5 and not self._lineage.moments[-1].held:
            self._see_progress(self._notes.random.randint(1, 2))

    def _see_progress(self, ticks: int) -> None:
        """Wait for so many boundaries."""
        lineage = self._lineage
        goal = len(lineage.commits) + ticks
        lineage.wait(lambda: len(lineage.commits) >= goal, self._patience, f"{ticks} boundaries")
