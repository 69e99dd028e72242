# SPDX-License-Identifier: Apache-2.0
"""The parameters of `policy_node`."""

from __future__ import annotations

from flashrt_ros.ros import policy_execution, policy_safety
from flashrt_ros.ros.parameters import Parameter

PARAMETERS = (
    Parameter("model", "cued_reach", "Checkpoint: a directory, or the name of a shipped one."),
    Parameter(
        "contract",
        "",
        "YAML file that maps topics to the policy's inputs and outputs (docs/contract.md); "
        "empty: the default topics.",
    ),
    Parameter("device", "cpu", "torch device of the buffers, such as cpu or cuda:0."),
    Parameter(
        "backend",
        "eager",
        "How plans are replayed.",
        choices=("eager", "compiled", "cuda_graph"),
    ),
    Parameter("seed", 0, "Seed of the policy's noise.", 0, 2**31 - 1),
    Parameter("threads", 0, "CPU threads of torch; 0: torch's default.", 0, 1024),
    Parameter("instruction", "wait", "Instruction before anyone gave one."),
    Parameter(
        "lockstep",
        False,
        "The world waits for an answer to each observation (a simulator in lockstep).",
    ),
    Parameter(
        "max_skew",
        0.1,
        "Largest difference of the stamps in one observation, s.",
        0.0,
        10.0,
        live=True,
    ),
    Parameter(
        "observation_timeout",
        0.5,
        "Hold when no complete observation came for this long, s; 0: never.",
        0.0,
        60.0,
        live=True,
    ),
    Parameter(
        "continue_tolerance",
        0.05,
        "CONTINUE is allowed while each joint is this near to where the capsule saw it, rad or m.",
        0.0,
        3.2,
        live=True,
    ),
    Parameter("hold_duration", 0.1, "Time to the one point of a hold, s.", 0.001, 10.0, live=True),
    Parameter("evaluate", True, "Keep a second arena beside the live one for `evaluate`."),
    Parameter("verb_timeout", 5.0, "Longest wait of a service for the replay thread, s.", 0.1, 600),
    Parameter(
        "capsule_directory",
        "",
        "Directory of capsules on disk (made if need be); empty: capsules live in memory only.",
    ),
    Parameter("boundary_snapshots", 64, "Automatic snapshots kept for rollback.", 0, 100_000),
    Parameter("boundary_budget_mb", 256.0, "Bytes they may take, MB (10^6).", 0.0, 1e6, live=True),
    Parameter(
        "state_digest_every",
        0,
        "Boundaries carry the SHA-256 of the live state every so many ticks; 0: never.",
        0,
        2**31 - 1,
    ),
    Parameter(
        "diagnostics_period",
        1.0,
        "Time between two messages on /diagnostics and of the status at rest, s.",
        0.1,
        60.0,
        live=True,
    ),
    *policy_execution.PARAMETERS,
    *policy_safety.PARAMETERS,
)
