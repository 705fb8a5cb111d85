"""The service and the command line on the stand-in NPU: answers, out of memory, and a device that fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npu_process import ROOT, command, environment, run_on_npu

from inference import Engine, ForecastRequest

pytestmark = pytest.mark.slow  # each test starts a process or two

SOON = 60
MEMORY = 400_000  # bytes of the largest tensor: above every weight of the small checkpoint, below eight requests


class Service:
    """`server.py` on npu:1, ready."""

    def __init__(self, checkpoint: Path, **variables: str) -> None:
        arguments = command(ROOT / "server.py", "--port", "0", "--device", "npu:1", "--model-path", checkpoint)
        self.child = subprocess.Popen(
            arguments, cwd=ROOT, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        self.port = 0
        for line in self.child.stdout:
            event = json.loads(line)
            self.port = event.get("port", self.port)
            if event["event"] == "ready":
                return
        raise AssertionError(f"the service did not start: {self.child.communicate()[1]}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=SOON) as answer:
            return str(answer.read().decode())

    def out_of_memory(self) -> float:
        lines = self.get("/metrics").splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("toto_out_of_memory_total ")))

    def forecast(self, series: Any, horizon: int = 96, block: int | None = 768) -> tuple[int, dict[str, Any]]:
        body = {"series": np.asarray(series).tolist(), "prediction_length": horizon, "decode_block_size": block}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/forecast",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=SOON) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@contextlib.contextmanager
def serving(checkpoint: Path, **variables: str) -> Iterator[Service]:
    service = Service(checkpoint, **variables)
    try:
        yield service
    finally:
        service.child.kill()
        service.child.communicate()


@pytest.fixture(scope="module")
def small_memory(small_checkpoint: Path) -> Iterator[Service]:
    with serving(small_checkpoint, FAKE_NPU_LARGEST=str(MEMORY), FAKE_NPU_WORDS="cann") as service:
        yield service


@pytest.fixture(scope="module")
def host(small_checkpoint: Path) -> Engine:
    return Engine.load(small_checkpoint, "cpu", threads=1)


def series(seed: int, variates: int = 3, steps: int = 512) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (variates, steps)).cumsum(axis=1)


def assert_as_on_the_cpu(answer: dict[str, Any], host: Engine, request: ForecastRequest) -> None:
    found = np.array(list(answer["quantiles"].values()))
    scale = request.target.std(axis=1)[:, None]
    assert (np.abs(found - host.forecast([request])[0].quantiles) / scale).max() <= 1e-4


def test_the_service_answers_on_an_npu_as_on_the_cpu(small_memory: Service, host: Engine) -> None:
    model = json.loads(small_memory.get("/v1/models"))["data"][0]
    assert model["device"] == "npu:1"
    for horizon, block in ((96, 768), (200, 64)):
        status, answer = small_memory.forecast(series(0), horizon, block)
        assert status == 200
        assert_as_on_the_cpu(answer, host, ForecastRequest(series(0), horizon, block))


def test_a_batch_that_does_not_fit_is_halved_and_answered(small_memory: Service, host: Engine) -> None:
    before = small_memory.out_of_memory()
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda seed: small_memory.forecast(series(seed)), range(24)))
    assert {status for status, _ in answers} == {200}
    for seed, (_, answer) in enumerate(answers):
        assert_as_on_the_cpu(answer, host, ForecastRequest(series(seed), 96))
    assert small_memory.out_of_memory() > before


def test_a_request_that_cannot_fit_is_refused_alone(small_memory: Service) -> None:
    status, problem = small_memory.forecast(series(0, 40, 512))
    assert status == 413
    assert "memory" in problem["detail"][0]["msg"]
    assert small_memory.forecast(series(1))[0] == 200


def test_a_device_that_fails_takes_the_service_down(small_checkpoint: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    with serving(small_checkpoint, FAKE_NPU_BREAK=str(broken)) as service:
        assert service.forecast(series(0))[0] == 200
        broken.touch()
        status, problem = service.forecast(series(0))
        assert status == 503
        assert "device" in problem["detail"][0]["msg"]
        _, errors = service.child.communicate(timeout=SOON)
        assert service.child.returncode == 1
        assert errors.startswith("server.py: npu:1 has failed: ")
        assert len(errors.splitlines()) == 1


def test_an_absent_npu_is_refused_in_one_line(small_checkpoint: Path) -> None:
    done = run_on_npu("server.py", "--port", "0", "--device", "npu:7", "--model-path", small_checkpoint)
    assert done.returncode != 0
    assert done.stderr == "server.py: device npu:7 is not there; this machine has cpu, npu:0, npu:1\n"


def test_a_910a_is_refused_for_float32_with_the_reason(small_checkpoint: Path) -> None:
    arguments = ("server.py", "--port", "0", "--device", "npu:1", "--model-path", small_checkpoint)
    done = run_on_npu(*arguments, FAKE_NPU_CHIP="Ascend910A")
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert "Ascend910A" in done.stderr
    assert "multiplies float32 as float16" in done.stderr


def test_the_command_line_forecasts_on_an_npu(small_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "series.csv"
    file.write_text("a,b\n" + "\n".join(f"{x:.6f},{y:.6f}" for x, y in series(3, 2, 200).T) + "\n")
    texts = {}
    for device in ("npu:1", "cpu"):
        done = run_on_npu(
            "inference.py", "--device", device, "--model", small_checkpoint, "--input", file,
            "--prediction-length", "70", "--decode-block-size", "32", "--threads", "1",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f" on {device}," in done.stderr
        texts[device] = [line.split(",") for line in done.stdout.splitlines()]
    assert texts["npu:1"][0] == texts["cpu"][0]
    assert len(texts["npu:1"]) == len(texts["cpu"]) > 70


DROPPED = """
import sys
from pathlib import Path
import numpy as np
from inference import Engine, ForecastRequest
from tests import fake_npu
from toto2.errors import DeviceFailure

engine = Engine.load(Path(sys.argv[1]), "npu:1", threads=1)
request = ForecastRequest(np.arange(64.0)[None], 32)
engine.forecast([request])
fake_npu.FAULTS.broken = True
try:
    engine.forecast([request])
except DeviceFailure as error:
    print(error)
"""


def test_a_device_that_drops_operators_in_silence_is_found_out(small_checkpoint: Path, tmp_path: Path) -> None:
    script = tmp_path / "dropped.py"
    script.write_text(DROPPED)
    done = run_on_npu(script, small_checkpoint)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("npu:1 has failed: twice [")
