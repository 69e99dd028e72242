# SPDX-License-Identifier: Apache-2.0
"""`python -m flashrt_ros.demo`: run the experiment, print a table, write what was found."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from tqdm import tqdm
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.client import CapsuleClient, ServiceCaller, spinning
from flashrt_ros.demo import report
from flashrt_ros.demo.errand import Planner, Schedule, Trial, Way
from flashrt_ros.demo.lifecycle import bring_up
from flashrt_ros.demo.processes import Processes
from flashrt_ros.demo.simulator import SimClient
from flashrt_ros.msg import ActionChunk, Boundary, RunInfo, RuntimeStatus, SimState
from flashrt_ros.replay.recorder import BagRecorder, Topic
from flashrt_ros.ros.process import leave

HELD_OUT = 2_000
"""No training and no choice of a setting has used the seeds from here to 999,999."""

POLICY = "policy_node"
SIM = "sim_arm_node"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="demo.sh",
        description="A policy is interrupted between cue and reach, and comes back in four ways.",
    )
    parser.add_argument("--episodes", type=int, default=20, help="seeds to run (default 20)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for results")
    parser.add_argument("--model", default="cued_reach", help="checkpoint name or directory")
    parser.add_argument("--seed", type=int, default=HELD_OUT, help="seed of the first episode")
    parser.add_argument("--no-bag", action="store_true", help="record no bag")
    parsed = parser.parse_args(argv)
    if parsed.episodes < 1:
        parser.error(f"--episodes is {parsed.episodes}, expected at least 1")
    return parsed


def topics() -> list[Topic]:
    """What the demonstration's bag holds."""
    return [
        Topic("camera/image_raw", Image),
        Topic("joint_states", JointState),
        Topic("joint_trajectory", JointTrajectory),
        Topic(f"{POLICY}/run_info", RunInfo, latched=True),
        Topic(f"{POLICY}/action_chunk", ActionChunk),
        Topic(f"{POLICY}/boundary", Boundary),
        Topic(f"{POLICY}/status", RuntimeStatus, latched=True),
        Topic(f"{SIM}/state", SimState, latched=True),
    ]


def bag_path(out: Path) -> Path:
    """`out/bag`, or the first of `out/bag_1`, `out/bag_2`, ... that does not exist."""
    candidates = [out / "bag"]
    while candidates[-1].exists():
        candidates.append(out / f"bag_{len(candidates)}")
    return candidates[-1]


def run_trials(
    node: Node,
    options: argparse.Namespace,
    processes: Processes,
    recorder: BagRecorder | None,
) -> list[Trial]:
    """Bring the policy up and run every episode in every way."""
    caller = ServiceCaller(node, timeout=120.0)
    processes.check()
    bring_up(caller, POLICY)
    if recorder is not None:
        recorder.wait_for_publishers()
    policy, sim = CapsuleClient(node, POLICY, timeout=30.0), SimClient(node, SIM, timeout=30.0)
    planner = Planner(policy, sim, Schedule())
    trials: list[Trial] = []
    ways = list(Way)
    with tqdm(total=options.episodes * len(ways), unit="run", file=sys.stdout) as bar:
        for seed in range(options.seed, options.seed + options.episodes):
            for way in ways:
                processes.check()
                bar.set_description(f"seed {seed} {report.LABELS[way]}")
                trials.append(planner.run(seed, way))
                bar.update()
    return trials


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration; the exit status is 0 when every episode ran."""
    options = arguments(argv)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    # Three processes on one machine: a robot on the same network must not hear them.
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    with Processes(out) as processes:
        processes.start(SIM, "flashrt_ros.sim.node", ["--ros-args", "-p", "mode:=lockstep"])
        processes.start(
            POLICY,
            "flashrt_ros.ros.policy_node",
            [
                "--ros-args",
                *("-p", f"model:={options.model}"),
                *("-p", "lockstep:=true"),
                *("-p", "state_digest_every:=10"),  # a replay then names the buffer that differs
                *("-p", "use_sim_time:=true"),
            ],
        )
        with spinning("planner") as node:
            recorder = None if options.no_bag else BagRecorder(node, bag_path(out), topics())
            try:
                trials = run_trials(node, options, processes, recorder)
                if recorder is not None:
                    recorder.drain()
            except Exception:
                for name in (SIM, POLICY):
                    print(f"--- end of {name}.log\n{processes.log_tail(name)}", file=sys.stderr)
                raise
            finally:
                if recorder is not None:
                    recorder.close()
        statuses = processes.stop()
    summary = report.summarise(trials)
    summary["exit_statuses"] = statuses
    if recorder is not None:
        summary["bag_messages"] = dict(recorder.counts)
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    report.draw(trials, summary, out / "demo.png")
    print("\n" + report.table(summary))
    print(f"\nwrote {out / 'summary.json'} and {out / 'demo.png'}")
    return 0


if __name__ == "__main__":
    leave(main())
