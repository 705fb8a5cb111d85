"""verify_npu_vs_cpu.py passes where a device agrees with its reference, and says what differs where not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npu_process import ROOT, run_on_npu

from verify_npu_vs_cpu import Case, Comparison, cases, compare, main, stderr_lines

PATCH = ROOT / "patches" / "toto2_ascend_npu.patch"


def verify(checkpoint: Path, report: Path, *arguments: str, **variables: str) -> tuple[int, str, dict[str, Any]]:
    done = run_on_npu(
        "verify_npu_vs_cpu.py", "--device", "npu:1", "--model-path", checkpoint, "--report", report,
        "--repeats", "0", *arguments, **variables,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout, json.loads(report.read_text())


@pytest.mark.slow
def test_a_device_that_computes_as_the_cpu_does_passes(small_checkpoint: Path, tmp_path: Path) -> None:
    status, text, report = verify(small_checkpoint, tmp_path / "r.json")
    assert status == 0
    assert report["passed"]
    assert (report["device"], report["chip"], report["attention"]) == ("npu:1", "Ascend910B3", "fused")
    assert report["cases"][0]["case"] == "2x512 to 96"
    assert len(report["cases"]) == len(list(cases()))
    assert all(len(case["differences"]) == 9 and case["device_seconds"] > 0 for case in report["cases"])
    assert f"passed: {len(report['cases'])} cases" in text


@pytest.mark.slow
def test_the_form_of_attention_can_be_chosen(small_checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--quick", "--attention", "composite")
    status, _, report = verify(small_checkpoint, tmp_path / "r.json", *arguments)
    assert status == 0
    assert (report["attention"], len(report["cases"])) == ("composite", 1)


@pytest.mark.slow
def test_an_operator_that_falls_back_to_the_cpu_fails_it(small_checkpoint: Path, tmp_path: Path) -> None:
    status, text, report = verify(small_checkpoint, tmp_path / "r.json", "--quick", FAKE_NPU_FALLBACK="addmm")
    assert status == 1
    assert len(report["fallbacks"]) == 1
    assert "FAIL an operator ran on the CPU" in text
    assert "aten::addmm" in text


@pytest.mark.slow
def test_a_device_that_breaks_fails_it_with_a_report(small_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    status, text, report = verify(
        small_checkpoint, tmp_path / "r.json", "--quick", FAKE_NPU_BREAK=str(tmp_path / "broken")
    )
    assert status == 1
    assert report["error"].startswith("npu:1 has failed: ")
    assert f"Send back {tmp_path / 'r.json'}" in text


def test_an_absent_device_fails_it_in_one_line(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "r.json"
    assert main(["--device", "npu:0", "--model-path", str(small_checkpoint), "--report", str(report)]) == 1
    assert capsys.readouterr().out.startswith("FAIL device npu:0 is not there; this machine has cpu\n")


def test_a_difference_above_the_bar_does_not_hold() -> None:
    case = next(iter(cases()))
    target = case.requests[0].target
    expected = np.random.default_rng(0).normal(0, 1, (9, *target.shape)) + target.mean(axis=1)[:, None]
    for error, holds in ((0.9e-4, True), (1.1e-4, False)):
        off = expected.copy()
        off[6, 1, 3] += error * target[1].std()
        differences, cosine, correlation = compare(case, [off], [expected], float32=False)
        assert np.flatnonzero(np.array(differences) > 0.5e-4).tolist() == [6]
        assert Comparison("case", differences, cosine, correlation, 1.0, 1.0).holds is holds


def test_answers_of_another_shape_of_curve_do_not_hold() -> None:
    case = next(iter(cases()))
    expected = np.random.default_rng(0).normal(0, 1e-5, (9, *case.requests[0].target.shape))
    expected += case.requests[0].target.mean(axis=1)[:, None]
    differences, cosine, _ = compare(case, [expected[:, :, ::-1]], [expected], float32=False)
    assert max(differences) <= 1e-4
    assert cosine < 0.9


def test_a_float32_reference_is_allowed_its_last_digit() -> None:
    case = Case("level", (next(iter(cases())).requests[0],))
    target = case.requests[0].target
    expected = np.full((9, *target.shape), 1e6) + np.random.default_rng(0).normal(0, 1, (9, *target.shape))
    rounded = expected.astype(np.float32).astype(np.float64)
    assert max(compare(case, [expected], [rounded], float32=True)[0]) <= 1e-4
    assert max(compare(case, [expected], [rounded], float32=False)[0]) > 1e-3


def test_what_is_written_below_python_is_caught_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with stderr_lines() as lines:
        subprocess.run(["sh", "-c", "echo CAUTION: The operator x >&2"], check=True)
    assert lines == ["CAUTION: The operator x"]
    assert "CAUTION" in capfd.readouterr().err


def test_published_cases_are_those_that_the_published_package_answers_alike() -> None:
    for case in cases():
        if case.published:
            (request,) = case.requests
            assert request.target.shape[1] % 32 == 0
            assert np.isfinite(request.target[:, -32:]).all()
            assert (request.target == request.target.astype(np.float32)).sum() == np.isfinite(request.target).sum()


def test_the_patch_only_adds_lines_and_has_no_context() -> None:
    lines = PATCH.read_text().splitlines()
    body = [line for line in lines if not line.startswith(("--- ", "+++ ", "@@ "))]
    assert body
    assert all(line.startswith("+") for line in body)
    assert sum(line.startswith("@@ ") for line in lines) == 2


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package laid out as the published one is where the patch touches it, with imports from GluonTS."""
    toto2 = tmp_path / "toto2"
    toto2.mkdir()
    header = "# one\n# two\n# three\n# four\n# five\n"
    (toto2 / "__init__.py").write_text(header + "from .model import Model, Predictor\n")
    (toto2 / "model.py").write_text(
        "from gluonts.model.forecast_generator import Generator\n"
        "from gluonts.torch import Predictor\n"
        "from gluonts.transform import Chain, Transformation\n"
        "from gluonts.transform.feature import Feature\n"
        "from gluonts.transform.split import Splitter\n"
        "class Model(Transformation): pass\n"
        "def chain(steps: Chain[int]) -> None: ...\n"
    )
    return tmp_path


def test_the_patch_lets_the_package_be_imported_without_gluonts(package: Path) -> None:
    if importlib.util.find_spec("gluonts") is not None:
        pytest.skip("GluonTS is installed")
    check = [sys.executable, "-P", "-c", "import toto2; print(toto2.Model.__name__); toto2.Predictor()"]
    environment = {"PYTHONPATH": str(package)}
    before = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    assert "No module named 'gluonts'" in before.stderr
    subprocess.run(["patch", "-p1", "-i", str(PATCH)], cwd=package, check=True, capture_output=True)
    after = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    assert after.stdout == "Model\n"
    assert after.stderr.splitlines()[-1] == "RuntimeError: Predictor needs GluonTS, which is not installed here"


def test_git_applies_the_patch_too(package: Path) -> None:
    subprocess.run(["git", "apply", "--unidiff-zero", str(PATCH)], cwd=package, check=True)
    lines = (package / "toto2" / "__init__.py").read_text().splitlines()
    assert lines[4] == "# five"
    assert lines[5].startswith("from . import _gluonts_stand_ins")
    assert lines[6].startswith("from .model")


@pytest.mark.slow
def test_the_published_package_is_compared_with_as_published(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"  # this project's own class in its place, whose blocks inherit nothing
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    arguments = ["--device", "cpu", "--model-path", str(small_checkpoint), "--report", str(tmp_path / "r.json")]
    status = main([*arguments, "--repeats", "0", "--reference", "upstream", "--upstream-python", str(python)])
    assert status == 0, capsys.readouterr().out


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """An interpreter whose `toto2` answers zeros: what the comparison asks of the published package."""
    site = tmp_path / "site" / "toto2"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text(
        "import torch\n"
        "class Toto2Model(torch.nn.Module):\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, directory): return cls()\n"
        "    def forecast(self, inputs, horizon, decode_block_size, has_missing_values,\n"
        "                 scaler_fallback_min_obs, quantile_real_cap_k):\n"
        "        assert inputs['target'].shape == inputs['target_mask'].shape\n"
        "        assert inputs['series_ids'].shape == inputs['target'].shape[:2]\n"
        "        return torch.zeros(9, *inputs['target'].shape[:2], horizon)\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.slow
def test_the_published_package_is_asked_in_a_process_of_its_own(
    upstream: Path, small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "r.json"
    arguments = ["--device", "cpu", "--model-path", str(small_checkpoint), "--report", str(report), "--repeats", "0"]
    status = main([*arguments, "--reference", "upstream", "--upstream-python", str(upstream)])
    assert status == 1  # zeros are not what the model answers
    found = json.loads(report.read_text())
    assert {case["case"] for case in found["cases"]} == {case.name for case in cases() if case.published}
    assert not any(case["holds"] for case in found["cases"])
    assert "against upstream" in capsys.readouterr().out


def test_a_published_package_that_is_not_there_is_said_in_one_line(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named toto2' >&2\nexit 1\n")
    python.chmod(0o755)
    arguments = ["--device", "cpu", "--model-path", str(small_checkpoint), "--report", str(tmp_path / "r.json")]
    status = main([*arguments, "--quick", "--reference", "upstream", "--upstream-python", str(python)])
    assert status == 1
    line = capsys.readouterr().out.splitlines()[-2]
    assert "cannot forecast with the published package (ModuleNotFoundError" in line
    assert "patches/README.md" in line
