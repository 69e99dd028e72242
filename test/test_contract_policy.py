# SPDX-License-Identifier: Apache-2.0
"""What the shipped policy must do on every device and by every plan."""

from __future__ import annotations

import numpy as np
import pytest
from contract import NEEDS_GPU, ON_EACH_DEVICE, no_synchronisation

from flashrt_ros.models import PolicyModel, load_policy
from flashrt_ros.runtime import Arena, Backend, Plan, Session

each = pytest.mark.parametrize(("device", "backend"), ON_EACH_DEVICE)
TICKS = 6


class Driven:
    """The policy with its session, fed with a sequence of made-up observations."""

    def __init__(self, device: str, backend: Backend, *, fused: bool = False) -> None:
        self.policy: PolicyModel = load_policy("cued_reach", device=device)
        self.arena = Arena(self.policy.buffer_specs(), device)
        if fused:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Plan, "_compile", lambda plan, arena: plan._run_eagerly())
                self.policy.bind(self.arena, seed=1, backend=Backend.COMPILED)
        else:
            self.policy.bind(self.arena, seed=1, backend=backend)
        self.policy.write_instruction("reach")
        self.session = Session(self.arena, fingerprint=self.policy.fingerprint)

    def observe(self, index: int) -> None:
        image = np.random.default_rng(index).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        self.policy.write_observation({"camera": image}, np.full(5, 0.01 * index))

    def run(self, first: int, ticks: int = TICKS) -> np.ndarray:
        chunks = []
        for index in range(first, first + ticks):
            self.observe(index)
            self.policy.tick()
            self.session.commit(stamp_ns=index)
            chunks.append(self.policy.chunk())
        return np.stack(chunks)


@each
def test_a_restored_policy_acts_bit_for_bit_as_if_uninterrupted(device, backend) -> None:
    one = Driven(device, backend)
    one.run(0)
    kept = one.session.snapshot()
    wanted = one.run(10)
    one.policy.write_instruction("wait")
    one.run(30)
    one.session.restore(kept)
    assert one.run(10).tobytes() == wanted.tobytes()


@each
def test_a_tick_never_waits_for_the_device(device, backend) -> None:
    one = Driven(device, backend)
    one.run(0, 1)
    with no_synchronisation(device):
        one.policy.tick()


def test_the_fused_tick_never_waits_for_the_device() -> None:
    one = Driven("cpu", Backend.COMPILED, fused=True)
    one.run(0, 1)
    with no_synchronisation("cpu"):
        one.policy.tick()


def test_the_fused_tick_acts_as_the_blocks_of_transformers_to_rounding() -> None:
    eager, fused = Driven("cpu", Backend.EAGER), Driven("cpu", Backend.COMPILED, fused=True)
    assert fused.policy.fingerprint.plan == "fused"
    wanted, found = eager.run(0, 24), fused.run(0, 24)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    for name in eager.arena:
        a, b = eager.arena[name].double(), fused.arena[name].double()
        assert float((a - b).abs().max()) <= 1e-4, name


def test_capsules_of_one_plan_are_refused_by_another_s_session() -> None:
    eager, fused = Driven("cpu", Backend.EAGER), Driven("cpu", Backend.COMPILED, fused=True)
    differing = eager.session.fingerprint.mismatches(fused.session.fingerprint)
    assert [name for name, _, _ in differing] == ["plan"]


@NEEDS_GPU
@pytest.mark.parametrize("backend", [Backend.EAGER, Backend.CUDA_GRAPH])
def test_a_gpu_acts_as_the_cpu_to_rounding(backend) -> None:
    cpu, gpu = Driven("cpu", Backend.EAGER), Driven("cuda", backend)
    np.testing.assert_allclose(gpu.run(0), cpu.run(0), rtol=0, atol=1e-3)
