# SPDX-License-Identifier: Apache-2.0
"""The runtime's closure and completeness audits, on models that keep every kind of state."""

from __future__ import annotations

import pytest

from flashrt_ros.runtime.audit import audit


@pytest.mark.parametrize("program", ["hybrid", "side_by_side"])
def test_the_closed_set_of_a_language_model_is_closed_and_complete(program: str) -> None:
    report = audit(f"language_programs:{program}", steps=3, warmup=2)
    assert report.findings == ()
    assert report.leaks == ()
    assert "fresh process" in report.trials
