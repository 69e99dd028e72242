# SPDX-License-Identifier: Apache-2.0
"""Benchmarks' files: their format, the pairs they compare, and the document made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashrt_ros.bench import capsule, cli, policy
from flashrt_ros.bench.document import main as make_document
from flashrt_ros.bench.report import Report, Row, interleaved, read, row_of, validate
from flashrt_ros.runtime import Backend


def written(tmp_path: Path, median: float = 1.0) -> Path:
    report = Report("capsule", notes=["A note."])
    report.add(Row("copy", {"bytes": 8}, "us", median, 2.0, 3))
    report.add(Row("verb", {}, "us", median, 2.0, 3, 4.0, 4.0 / median, (2.0, 5.0)))
    path = tmp_path / "capsule.json"
    report.write(path)
    return path


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    measured = read(written(tmp_path))
    assert measured.benchmark == "capsule"
    assert measured.rows[1].spread == (2.0, 5.0)
    assert {"cores", "threads", "processor"} <= set(measured.machine)
    assert {"torch", "numpy", "python", "flashrt_ros"} <= set(measured.versions)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (("schema",), "other/9", "schema is 'other/9'"),
        (("rows",), [], "rows is empty"),
        (("machine", "cores"), None, "machine has no 'cores'"),
        (("rows", 0, "median"), -1, "median is -1"),
        (("rows", 0, "n"), 0, "n is 0"),
        (("rows", 1, "spread"), [5.0, 2.0], "spread is"),
        (("rows", 0, "unit"), "", "needs a name, a unit"),
    ],
)
def test_a_file_of_another_form_is_refused_by_field(tmp_path, where, value, said) -> None:
    path = written(tmp_path)
    content = json.loads(path.read_text())
    place = content
    for key in where[:-1]:
        place = place[key]
    if value is None:
        del place[where[-1]]
    else:
        place[where[-1]] = value
    with pytest.raises(ValueError, match=said):
        validate(content)


def test_what_is_compared_is_called_in_turns() -> None:
    called: list[str] = []
    runs = {name: (lambda name=name: called.append(name)) for name in "ab"}
    samples = interleaved(runs, 3, warmup=1)
    assert called == list("abababab")
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 3, "b": 3}


def test_a_ratio_is_the_median_over_the_pairs_with_its_quartiles() -> None:
    row = row_of("x", [1.0, 1.0, 2.0, 1.0], unit="s", against=[2.0, 3.0, 2.0, 8.0])
    assert (row.ratio, row.spread, row.baseline) == (2.5, (2.0, 8.0), 2.5)
    rate = row_of("x", [10.0], unit="tokens/s", against=[5.0])
    assert rate.ratio == 2.0  # for rates more is better


def test_the_document_s_sections_are_replaced_and_its_own_text_stays(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, plots = tmp_path / "docs" / "benchmarks.md", tmp_path / "docs" / "plots"
    out.parent.mkdir()
    out.write_text("# Benchmarks\n\nBy hand.\n")
    call = [str(written(tmp_path)), "--out", str(out), "--plots", str(plots)]
    assert make_document(call, "report") == 0
    first, drawn = out.read_text(), (plots / "bench_capsule.svg").read_bytes()
    assert first.startswith("# Benchmarks\n\nBy hand.\n")
    assert "| `verb` | us | 1 | 2 | 3 | 4 | 4 (2 to 5) |" in first
    assert "](plots/bench_capsule.svg)" in first
    assert make_document(call, "report") == 0
    written_again = out.read_text()
    assert (plots / "bench_capsule.svg").read_bytes() == drawn
    assert written_again.count("<!-- flashrt bench capsule -->") == 1
    out.write_text(written_again + "\nMore by hand.\n")
    written(tmp_path, median=0.5)
    assert make_document(call, "report") == 0
    assert "| `verb` | us | 0.5 | 2 | 3 | 4 | 8 (2 to 5) |" in out.read_text()
    assert out.read_text().endswith("\nMore by hand.\n")


def test_a_file_that_is_no_benchmark_s_is_refused_by_name(tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert make_document([str(path)], "report") == 2
    assert "x.json: schema is None" in capsys.readouterr().err


@pytest.mark.slow
def test_capsule_and_policy_run_and_their_files_validate(tmp_path: Path) -> None:
    for name, run in (("capsule", capsule.run), ("policy", policy.run)):
        report = Report(name)
        options = {} if name == "capsule" else {"captured": Backend.EAGER}
        run(report, quick=True, device="cpu", **options)
        report.write(tmp_path / f"{name}.json")
        assert read(tmp_path / f"{name}.json").rows


def test_all_runs_each_goes_on_after_a_failure_and_says_what_is_missing(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    def measure(name: str, *, quick: bool, device: str) -> Report:
        if name == "ros":
            raise ModuleNotFoundError("No module named 'rclpy'", name="rclpy")
        if name == "ttft":
            raise RuntimeError("out of memory")
        report = Report(name)
        report.add(Row("x", {}, "us", 1.0, 1.0, 1))
        return report

    monkeypatch.setattr(cli, "measure", measure)
    assert cli.main(["all", "--quick", "--json", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "ros: left out, needs the module 'rclpy'" in said
    assert "ttft: failed, RuntimeError: out of memory" in said
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["capsule", "decode", "policy"]
