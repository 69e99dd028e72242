# SPDX-License-Identifier: Apache-2.0
"""The life cycle of a node that hosts a model, once for every such node.

A node fills the hooks and overrides no transition: so each of them logs what failed, and all of
them end in one teardown that tolerates a half-built state.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from flashrt_ros.ros.parameters import Parameter, ParameterGuard


class ConfigureAbandoned(RuntimeError):
    """The process is asked to end while the node is configured."""


class ManagedNode(LifecycleNode):
    """A lifecycle node; subclasses fill `_configure`, `_begin`, `_pause`, `_teardown`, `_report`.

    Args:
        name: of the node.
        parameters: what it declares.
        options: for `LifecycleNode`.
    """

    def __init__(self, name: str, parameters: Sequence[Parameter], **options: Any) -> None:
        super().__init__(name, enable_logger_service=True, **options)
        self.abandoned = False
        """Set by a signal: a configure that is under way gives up at its next stage."""
        self._last_error = ""
        self._configured = False
        self._guard = ParameterGuard(self, parameters, lambda: self._configured, self._adjust)

    # -- hooks -----------------------------------------------------------------------------

    def _configure(self) -> None:
        """Make everything; calls `_stage` between long steps. May raise anything, half-way too."""

    def _begin(self) -> None:
        """Act from now on; publishers publish already."""

    def _pause(self) -> None:
        """Hold what moves and stop acting; the state stays. Publishers publish still."""

    def _teardown(self) -> None:
        """Free whatever exists. Idempotent; also after a configure that failed half-way."""

    def _report(self) -> None:
        """Publish the status."""

    def _adjust(self, changes: Mapping[str, Any]) -> None:
        """Take new values of live parameters; the node is configured."""

    # -- for hooks -------------------------------------------------------------------------

    def _stage(self, what: str) -> None:
        """A step of configure begins.

        Raises:
            ConfigureAbandoned: the process is asked to end.
        """
        if self.abandoned:
            raise ConfigureAbandoned(f"asked to end before '{what}'")
        self.get_logger().info(what)

    def _attempt(self, what: str, action: Callable[[], object]) -> None:
        """Run a step of a teardown; the others follow whatever it does."""
        try:
            action()
        except Exception:
            self.get_logger().error(f"{what} failed:\n{traceback.format_exc()}")

    # -- transitions -----------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, allocate, capture, warm up, and open topics and services."""
        started = time.perf_counter()
        self._last_error = ""
        try:
            self._configure()
        except Exception as error:
            self._failed("configure", error)
            self._free()
            return TransitionCallbackReturn.FAILURE
        self._configured = True
        self.get_logger().info(f"configured in {time.perf_counter() - started:.1f} s")
        self._report()
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Begin to act. Where that fails the node stays inactive."""
        result = super().on_activate(state)
        try:
            self._begin()
        except Exception as error:
            self._failed("activate", error)
            self._attempt("pausing", self._pause)
            super().on_deactivate(state)
            self._report()
            return TransitionCallbackReturn.FAILURE
        self._report()
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Hold and stop; the state stays. Where that fails the node is torn down."""
        try:
            self._pause()
        except Exception as error:
            self._failed("deactivate", error)
            super().on_deactivate(state)
            return TransitionCallbackReturn.ERROR
        self._report()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything that configure made."""
        self._free()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Hold if moving, then free everything."""
        self.stop()
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """The node can be configured again."""
        self._free()
        return TransitionCallbackReturn.SUCCESS

    def hold(self) -> None:
        """Hold what moves, from any state and thread. Idempotent."""
        self._attempt("hold", self._pause)

    def stop(self) -> None:
        """Hold what moves and free everything, from any state. Idempotent."""
        self.hold()
        self._free()

    def _failed(self, what: str, error: Exception) -> None:
        self._last_error = f"{what} failed: {error}"
        self.get_logger().error(f"{self._last_error}\n{traceback.format_exc()}")

    def _free(self) -> None:
        self._configured = False
        self._attempt("teardown", self._teardown)
        self._attempt("status", self._report)
        # rclpy's callback groups keep a reference to every entity that ever was in them.
        kept = self.default_callback_group.entities
        kept -= {reference for reference in kept if reference() is None}
