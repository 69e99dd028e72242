# SPDX-License-Identifier: Apache-2.0
"""The shipped policy behind real DDS: verbs, observation to command, jitter of the commands.

Every figure has a baseline in the same run, in turns with it, that does nothing: an empty
`std_srvs/Trigger`, an echo of the image's header, a thread that publishes at the same rate. So
what DDS and rclpy cost on this machine is in both. Nodes run in processes of their own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from std_srvs.srv import Trigger

from ..client import ServiceCaller
from ..demo.lifecycle import bring_up
from ..demo.processes import Processes
from ..policies import Motion
from .report import Params, Report, interleaved, quantile, row_of
from .ros_peer import NAME as PEER
from .ros_rig import POLICY, Rig

MODEL = "cued_reach"
CONTRACT = """
version: 1
inputs:
  cameras:
    camera: {topic: camera/image_raw}
  joints:
    - {topic: joint_states}
  instruction: {topic: instruction}
outputs:
  - {type: joint_trajectory, topic: joint_trajectory}
  - {type: float64_multi_array, topic: joint_commands}
"""


def run(report: Report, *, quick: bool = False, device: str = "cpu") -> None:
    """Rows of services (us), of observations (ms), of jitter (ms) and of boundaries (Hz)."""
    turns = 5 if quick else 100
    # Compiling takes a minute where no earlier start has left the code.
    plan = "eager" if quick else "cuda_graph" if device.startswith("cuda") else "compiled"
    report.notes.append(f"The policy's node: plan {plan}, one thread, a tick for each observation.")
    with _system(device, plan, rate=50.0) as rig:
        rig.tick(8)
        _services(report, rig, turns, "idle")
        with rig.streaming():
            _services(report, rig, turns, "ticking")
        _interrupts(report, rig, 3 if quick else 30)
        _observations(report, rig, 5 if quick else 100)
        _boundaries(report, rig, 1.0 if quick else 10.0)
        _jitter(report, rig, 50.0, 1.0 if quick else 5.0)
    if not quick:
        with _system(device, plan, rate=200.0) as rig:
            rig.tick(3)
            _jitter(report, rig, 200.0, 5.0)


@contextmanager
def _system(device: str, plan: str, rate: float) -> Iterator[Rig]:
    """An active policy node, the peer, and this process between them."""
    with tempfile.TemporaryDirectory(prefix="flashrt-bench-") as folder:
        contract = Path(folder, "contract.yaml")
        contract.write_text(CONTRACT)
        given = [f"model:={MODEL}", f"device:={device}", f"contract:={contract}"]
        given += [
            f"command_rate:={rate}",
            "observation_timeout:=0.0",
            "tick_period:=0.0",
            "evaluate:=false",
            f"backend:={plan}",
            "threads:=1",
        ]
        with Processes(Path(folder)) as processes, Rig() as rig:
            processes.start(POLICY, "flashrt_ros.ros.policy_node", rig.arguments(given))
            processes.start(PEER, "flashrt_ros.bench.ros_peer", rig.arguments([f"rate:={rate}"]))
            bring_up(rig.caller, POLICY)
            rig.wait_until_connected()
            yield rig


def _services(report: Report, rig: Rig, turns: int, load: str) -> None:
    """Round trips of verbs in turns with an empty service's."""
    policy, caller = rig.policy, rig.caller
    policy.snapshot("bench", overwrite=True)
    verbs: dict[str, Callable[[], object]] = {
        "snapshot": lambda: policy.snapshot("turn", overwrite=True),
        "restore": lambda: policy.restore("bench", motion=Motion.REPLAN),
        "rollback": lambda: policy.rollback(count=1, nearest=True, motion=Motion.REPLAN),
        "set_instruction": lambda: policy.set_instruction("wait"),
        "interrupt": policy.interrupt,
        "resume": lambda: policy.resume(Motion.REPLAN),
    }
    empty = {"empty": lambda: _empty(caller)}
    samples = interleaved({**empty, **verbs}, turns)
    params = {"load": load}
    nothing = samples.pop("empty")
    report.add(row_of("service_empty", nothing, params=params))
    for name, seconds in samples.items():
        report.add(row_of(f"service_{name}", seconds, params=params, against=nothing))
    worst = {name: quantile(seconds, 0.99) for name, seconds in samples.items()}
    ratios = [f"{name} {p99 / quantile(nothing, 0.99):.1f}" for name, p99 in worst.items()]
    report.notes.append(f"p99 over that of the empty service, {load}: {', '.join(ratios)}.")


def _empty(caller: ServiceCaller) -> Any:
    return caller.call(Trigger, f"{PEER}/empty", Trigger.Request())


def _interrupts(report: Report, rig: Rig, turns: int) -> None:
    """From the call of an interrupt to the last moving command, as they arrive here."""
    late = []
    with rig.streaming():
        for _ in range(turns):
            rig.tick_under_way()
            start = time.perf_counter()
            rig.policy.interrupt()
            time.sleep(0.05)
            late.append(max(rig.last_move() - start, 0.0))
            rig.policy.resume(Motion.REPLAN)
    report.add(row_of("interrupt_to_last_moving_command", late, unit="ms"))


def _observations(report: Report, rig: Rig, turns: int) -> None:
    """From the image being published to its command, in turns with an echo of its header."""
    commands, echoes = [], []
    for _ in range(turns):
        commands.append(rig.observe())
        echoes.append(rig.echo())
    report.add(row_of("observation_to_echo", echoes, unit="ms"))
    report.add(row_of("observation_to_command", commands, unit="ms", against=echoes))


def _boundaries(report: Report, rig: Rig, seconds: float) -> None:
    """Boundaries a second while observations come faster than it ticks."""
    rates = []
    with rig.streaming():
        for _ in range(3):
            before, start = rig.boundaries, time.perf_counter()
            time.sleep(seconds / 3)
            rates.append((rig.boundaries - before) / (time.perf_counter() - start))
    report.add(row_of("boundaries_sustained", rates, unit="Hz"))


def _jitter(report: Report, rig: Rig, rate: float, seconds: float) -> None:
    """Deviation of the time between two commands from the period, by the senders' own stamps."""
    found: dict[str, list[float]] = {"idle": [], "ticking": [], "peer": [], "peer_ticking": []}
    for _ in range(2):
        command, beat = rig.intervals(seconds / 2)
        found["idle"] += command
        found["peer"] += beat
        with rig.streaming():
            command, beat = rig.intervals(seconds / 2)
        found["ticking"] += command
        found["peer_ticking"] += beat
    for name, what, load in (
        ("idle", "command", "idle"),
        ("ticking", "command", "ticking"),
        ("peer", "thread", "idle"),
        ("peer_ticking", "thread", "ticking"),
    ):
        off = [abs(interval - 1.0 / rate) for interval in found[name]]
        if off:
            params: Params = {"rate": rate, "load": load}
            report.add(row_of(f"jitter_{what}", off, unit="ms", params=params))
