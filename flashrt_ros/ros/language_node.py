# SPDX-License-Identifier: Apache-2.0
"""`language_node`: serves a text model with the same capsule services as `policy_node`."""

from __future__ import annotations

import gc
import secrets
import threading
import traceback
from collections.abc import Mapping
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType
from std_msgs.msg import Header

from flashrt_ros.models.language import (
    Chunk,
    Generated,
    LanguageEngine,
    LanguageModel,
    Limits,
    Sampling,
    Stream,
    adopt,
)
from flashrt_ros.msg import Token
from flashrt_ros.policies import Motion
from flashrt_ros.ros import qos
from flashrt_ros.ros.capsule_services import CapsuleServices
from flashrt_ros.ros.evaluation_services import EvaluationServices
from flashrt_ros.ros.language_status import LanguageReporter
from flashrt_ros.ros.managed_node import ManagedNode
from flashrt_ros.ros.parameters import Parameter, read
from flashrt_ros.ros.process import leave, run_node
from flashrt_ros.ros.verbs import VerbRunner, answer
from flashrt_ros.runtime import Code, Session, Store
from flashrt_ros.runtime.errors import Busy, InvalidArgument, RuntimeFault, UnknownCapsule
from flashrt_ros.srv import CancelGeneration, Generate

PARAMETERS = (
    Parameter("model", "", "Checkpoint: a directory, or a GGUF file."),
    Parameter(
        "dtype",
        "",
        "Of weights and state; empty: the checkpoint's.",
        choices=("", "float32", "bfloat16", "float16"),
    ),
    Parameter("device", "cpu", "torch device, such as cpu or cuda:0."),
    Parameter(
        "backend",
        "eager",
        "How plans are replayed.",
        choices=("eager", "compiled", "cuda_graph"),
    ),
    Parameter(
        "kernels",
        "auto",
        "What decode steps run in: auto (C++ where it can be had), native (C++, or fail) or torch.",
        choices=("auto", "native", "torch"),
    ),
    Parameter("max_context", 2048, "Tokens that the state has room for.", 1, 2**20),
    Parameter("chunk", 256, "Tokens of a whole prefill piece.", 1, 2**16),
    Parameter(
        "capsule_directory",
        "",
        "Directory of capsules on disk (made if need be); empty: capsules live in memory only.",
    ),
    Parameter("prefix_capsules", 64, "Capsules kept of prompts' beginnings; 0: none.", 0, 10_000),
    Parameter(
        "max_waiting", 4, "Requests that may wait; more are refused as BUSY.", 0, 10, live=True
    ),
    Parameter("verb_timeout", 30.0, "Longest wait of a verb for the replay thread, s.", 0.1, 600),
    Parameter(
        "diagnostics_period",
        1.0,
        "Time between two messages on /diagnostics and of the status, s.",
        0.1,
        60.0,
        live=True,
    ),
)

# A waiting caller keeps a thread of the executor; some must be left for verbs.
_THREADS = 16


class LanguageNode(ManagedNode):
    """Hosts one language model; see docs/ros.md for its services and topics."""

    def __init__(self, name: str = "language_node", **options: Any) -> None:
        self._engine: LanguageEngine | None = None
        self._reporter: LanguageReporter | None = None
        super().__init__(name, PARAMETERS, **options)
        self._requests: dict[str, Stream] = {}
        self._requests_lock = threading.Lock()
        self._generation_services: list[Any] = []
        self._group = ReentrantCallbackGroup()
        self._runner = VerbRunner(self)
        CapsuleServices(self, self._runner, self._group)
        EvaluationServices(self, self._runner, self._group)  # which answer UNSUPPORTED
        self._tokens = self.create_publisher(Token, "~/tokens", qos.STREAM)
        self._reporter = LanguageReporter(self)
        self._timer = self.create_timer(
            read(self, "diagnostics_period"),
            self._report_periodically,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )
        self._report()

    # -- life cycle, see ManagedNode ---------------------------------------------------------

    def _begin(self) -> None:
        """Accept prompts."""
        self._generation_services = [
            self.create_service(Generate, "~/generate", self._generate, callback_group=self._group),
            self.create_service(
                CancelGeneration, "~/cancel", self._cancel, callback_group=self._group
            ),
        ]

    def _pause(self) -> None:
        """End what is under way; the state stays."""
        for service in self._generation_services:
            self.destroy_service(service)
        self._generation_services = []
        with self._requests_lock:
            for stream in self._requests.values():
                stream.cancel()

    def _adjust(self, changes: Mapping[str, Any]) -> None:
        """`max_waiting` is read for each request; the period is the timer's."""
        if "diagnostics_period" in changes:
            self._timer.timer_period_ns = round(changes["diagnostics_period"] * 1e9)

    def _teardown(self) -> None:
        """Free everything that configure made. Idempotent."""
        engine, self._engine = self._engine, None
        self._runner.detach()
        if engine is not None:
            self._attempt("closing", engine.close)
            self._attempt("closing", engine.session.store.close)
        if self._reporter is not None:
            self._attempt("ending diagnostics", self._reporter.close)
        del engine
        gc.collect()  # the engine and its session know each other

    def _configure(self) -> None:
        model = self._load()
        self._stage("capturing and warming up plans")
        arena = model.arena()
        decoder = model.bind(arena)
        store = Store(arena.device, directory=read(self, "capsule_directory") or None)
        session = Session(arena, fingerprint=model.fingerprint, store=store)
        self._engine = LanguageEngine(
            decoder, session, prefix_capacity=read(self, "prefix_capsules")
        )
        self._engine.start()
        self._runner.attach(self._engine, read(self, "verb_timeout"))
        assert self._reporter is not None
        plan = f"{read(self, 'backend')}, kernels {model.kernels}"
        self.get_logger().info(f"plan: {plan}")
        self._reporter.open(self._engine, read(self, "model"), plan)

    def _load(self) -> LanguageModel:
        path = read(self, "model")
        if not path:
            raise ValueError(
                "parameter 'model' is empty, expected a checkpoint directory or GGUF file"
            )
        self._stage(f"adopting '{path}'")
        return adopt(
            path,
            max_context=read(self, "max_context"),
            dtype=read(self, "dtype") or None,
            device=read(self, "device"),
            backend=read(self, "backend"),
            chunk=read(self, "chunk"),
            kernels=read(self, "kernels"),
        )

    # -- requests --------------------------------------------------------------------------

    def _generate(self, request: Generate.Request, response: Generate.Response) -> Any:
        request_id = request.request_id or secrets.token_hex(8)
        response.request_id = request_id
        try:
            stream = self._take(request_id, request)
        except RuntimeFault as fault:
            return answer(response, self._runner.outcome(fault.code, str(fault)))
        try:
            for chunk in stream:
                self._publish_token(request_id, chunk)
            generated = stream.result()
        except RuntimeFault as fault:
            self._publish_end(request_id, f"failed: {fault}")
            return answer(response, self._runner.outcome(fault.code, str(fault)))
        except Exception as error:
            self.get_logger().error(f"generate failed:\n{traceback.format_exc()}")
            self._publish_end(request_id, f"failed: {error}")
            message = f"generate failed: {type(error).__name__}: {error}"
            return answer(response, self._runner.outcome(Code.INTERNAL, message))
        finally:
            with self._requests_lock:
                del self._requests[request_id]
        self._publish_end(request_id, str(generated.finish))
        self._fill(response, generated)
        if self._reporter is not None:
            self._reporter.generated(generated)
        message = f"{len(generated.tokens)} tokens, ended by {generated.finish}"
        done = self._runner.outcome(Code.OK, "")
        return answer(response, done, message)

    def _take(self, request_id: str, request: Generate.Request) -> Stream:
        """Check a request and queue it.

        Raises:
            RuntimeFault: what is wrong with it.
        """
        engine = self._engine
        assert engine is not None
        with self._requests_lock:
            if request_id in self._requests:
                raise InvalidArgument(f"request id '{request_id}' is under way already")
            # The thread of each waiting caller waits with it; some must be left for verbs.
            most = read(self, "max_waiting") + 1
            if len(self._requests) >= most:
                raise Busy(f"{len(self._requests)} requests are under way or wait, {most} may")
            stream = self._queue(engine, request)
            self._requests[request_id] = stream
            return stream

    @staticmethod
    def _queue(engine: LanguageEngine, request: Generate.Request) -> Stream:
        given = [
            name
            for name, value in (
                ("prompt", request.prompt),
                ("messages", request.messages),
                ("resume_run", request.resume_run),
            )
            if value
        ]
        if len(given) > 1:
            raise InvalidArgument(f"{' and '.join(given)} were given: give one of them")
        if request.resume_run:
            return engine.go_on()
        if request.messages:
            turns = [{"role": turn.role, "content": turn.content} for turn in request.messages]
            prompt: Any = engine.chat(turns)
        else:
            prompt = request.prompt
        sampling = Sampling(
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            repetition_penalty=request.repetition_penalty,
            seed=None if request.seed == -1 else request.seed,
        )
        limits = Limits(max_tokens=request.max_tokens, stop=tuple(request.stop))
        return engine.generate(prompt, sampling, limits)

    async def _cancel(
        self, request: CancelGeneration.Request, response: CancelGeneration.Response
    ) -> Any:
        def verb(session: Session) -> tuple[None, Motion]:
            with self._requests_lock:
                known = ", ".join(self._requests) or "none"
                if not request.request_id and self._requests:
                    next(iter(self._requests.values())).cancel()
                elif request.request_id in self._requests:
                    self._requests[request.request_id].cancel()
                else:
                    raise UnknownCapsule(
                        f"no request '{request.request_id}' is under way; there are: {known}"
                    )
            return None, Motion.UNCHANGED

        # Its id is that of another request, not its own.
        outcome = await self._runner.run("cancel", None, verb)
        return answer(response, outcome, "it ends at the next boundary")

    # -- messages --------------------------------------------------------------------------

    def _fill(self, response: Generate.Response, generated: Generated) -> None:
        response.text = generated.text
        response.tokens = list(generated.tokens)
        response.finish_reason = str(generated.finish)
        response.seed = generated.seed % 2**64
        response.time_to_first_token = generated.first_token_s
        response.tokens_per_second = generated.tokens_per_second
        if generated.started is not None:
            response.prompt_tokens = generated.started.prompt
            response.tokens_reused = generated.started.reused

    def _publish_token(self, request_id: str, chunk: Chunk) -> None:
        self._tokens.publish(
            Token(
                header=Header(stamp=self.get_clock().now().to_msg()),
                request_id=request_id,
                epoch=chunk.epoch,
                boundary=chunk.boundary,
                index=chunk.index,
                token=chunk.token,
                text=chunk.text,
            )
        )

    def _publish_end(self, request_id: str, reason: str) -> None:
        self._tokens.publish(
            Token(
                header=Header(stamp=self.get_clock().now().to_msg()),
                request_id=request_id,
                token=-1,
                finish_reason=reason,
            )
        )

    def _report(self) -> None:
        if self._reporter is not None:
            self._reporter.publish_status(self._engine, self._last_error)

    def _report_periodically(self) -> None:
        self._report()
        if self._reporter is not None and self._engine is not None:
            self._reporter.publish_diagnostics(self._engine, len(self._requests))


def main(args: list[str] | None = None) -> int:
    """Entry point of the executable `language_node`."""
    return run_node(LanguageNode, args, threads=_THREADS)


if __name__ == "__main__":
    leave(main())
