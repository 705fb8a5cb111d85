"""The command line: one shot, files, batches of files, pictures and errors."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from files.command import app
from make_test_data import demo_series, write_demo

ROOT = Path(__file__).resolve().parent.parent


def run(checkpoint: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["--model", str(checkpoint), "--device", "cpu", *map(str, arguments)])


def write(path: Path, steps: int = 80, name: str = "x") -> Path:
    path.write_text(f"{name},y\n" + "".join(f"{np.sin(i / 3)},{i % 7}\n" for i in range(steps)))
    return path


def test_help_needs_no_torch() -> None:
    code = "import sys, inference\ntry: inference.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--prediction-length" in result.stdout


def test_a_demo_series_is_forecast_and_says_with_what(small_checkpoint: Path) -> None:
    result = run(small_checkpoint, "--num-variates", 4, "--time-steps", 100, "--prediction-length", 33)
    assert result.exit_code == 0, result.output
    assert "small" in result.stderr
    assert "on cpu" in result.stderr
    assert "variate_3" in result.stdout


def test_an_input_becomes_csv_on_standard_output(small_checkpoint: Path, tmp_path: Path) -> None:
    result = run(small_checkpoint, "--input", write(tmp_path / "a.csv"), "--prediction-length", 5)
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 10
    assert rows[0]["variate"] == "x"
    quantiles = [float(rows[0][f"{tenths / 10:.1f}"]) for tenths in range(1, 10)]
    assert quantiles == sorted(quantiles)


def test_json_holds_what_the_service_answers(small_checkpoint: Path, tmp_path: Path) -> None:
    table, _ = write_demo(tmp_path, 200, seed=0)
    out = tmp_path / "out.json"
    result = run(small_checkpoint, "--input", table, "--output", out, "--prediction-length", 7)
    assert result.exit_code == 0, result.output
    answer = json.loads(out.read_text())
    assert list(answer["quantiles"]) == [f"{tenths / 10:.1f}" for tenths in range(1, 10)]
    assert answer["median"] == answer["quantiles"]["0.5"]
    assert np.shape(answer["median"]) == (3, 7)
    assert answer["times"][0] == "2026-03-10T08:00:00+00:00"
    assert answer["model"] == "small"


def test_many_files_are_each_answered_as_alone(small_checkpoint: Path, tmp_path: Path) -> None:
    inputs = [write(tmp_path / f"{name}.csv", steps, name) for name, steps in (("a", 50), ("b", 3000), ("c", 70))]
    flags = [word for path in inputs for word in ("--input", path)]
    out = tmp_path / "out"
    result = run(small_checkpoint, *flags, "--output", out, "--format", "json", "--prediction-length", 40)
    assert result.exit_code == 0, result.output
    for path in inputs:
        single = tmp_path / "single.json"
        run(small_checkpoint, "--input", path, "--output", single, "--prediction-length", 40)
        got = json.loads((out / f"{path.stem}.forecast.json").read_text())
        np.testing.assert_allclose(got["median"], json.loads(single.read_text())["median"], atol=1e-3)


def test_uneven_times_are_said_to_be_lost(small_checkpoint: Path, tmp_path: Path) -> None:
    table = tmp_path / "uneven.csv"
    table.write_text("time,x\n1700000000,1\n1700000060,2\n1700100000,3\n")
    result = run(small_checkpoint, "--input", table, "--prediction-length", 3)
    assert result.exit_code == 0, result.output
    assert "not evenly spaced" in result.stderr
    assert result.stdout.startswith("step,variate,")


def test_a_plot_is_a_png(small_checkpoint: Path, tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    result = run(small_checkpoint, "--input", write(tmp_path / "a.csv"), "--plot", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--input", "none.csv"], 2, "no such file"),
        (["--decode-block-size", "33"], 2, "multiple of 32"),
        (["--prediction-length", "0"], 2, "prediction-length"),
        (["--prediction-length", "4097"], 2, "prediction-length"),
        (["--format", "xml"], 2, "csv or json"),
        (["--device", "npu:7"], 1, "npu:7 is not there"),
        (["--device", "tpu"], 1, "cuda:N"),
        (["--model", "nowhere"], 1, "nowhere"),
        (["--dtype", "float12"], 1, "float32"),
        (["--input", "a.csv", "--input", "b.csv"], 2, "folder"),
        (["--input", "a.csv", "--output", "a.csv"], 2, "overwrite the input"),
        (["--input", "a.csv", "--input", "./a.csv", "--output", "out"], 2, "different names"),
        (["--input", "a.csv", "--output", "a.xml"], 2, ".csv or .json"),
        (["--plot", "p.pdf"], 2, ".png"),
        (["--time-steps", "40", "--output", "no/such/folder/x.csv"], 2, "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    small_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv")
    result = run(small_checkpoint, *arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_demo_data_are_the_same_for_a_seed_and_have_gaps_and_a_spike(tmp_path: Path) -> None:
    table, body = write_demo(tmp_path / "one", 600, seed=4)
    again, _ = write_demo(tmp_path / "two", 600, seed=4)
    assert table.read_bytes() == again.read_bytes()
    series = json.loads(body.read_text())["series"]
    assert None in series[0]
    values = demo_series(3, 600, 4)
    assert np.nanmax(values[2]) > 4 * np.nanmedian(values[2])
    assert demo_series(7, 50).shape == (7, 50)
