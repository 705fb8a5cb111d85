from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from live import Answer, forecast, head, read_answer
from mock_engine import KILLER

import toto2.device
from inference import Engine
from server import load_engine
from serving.settings import read

ROOT = Path(__file__).resolve().parent.parent
MOCK = ROOT / "tests" / "mock_engine.py"
QUIET = {name: value for name, value in os.environ.items() if name not in ("PORT", "HOST", "DEVICE", "MODEL_PATH")}
SOON = 30


def run(*arguments: str, script: Path = MOCK, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs to the end, as a start that fails does."""
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(
        command, env=QUIET | environment, cwd=ROOT, capture_output=True, text=True, timeout=SOON, check=False
    )


class Process:
    """The service in a process of its own, ready, on a free port."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, str(MOCK), "--port", "0", *arguments]
        self.child = subprocess.Popen(
            command, env=QUIET | environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        while not self.lines or self.lines[-1]["event"] != "ready":
            self.lines.append(json.loads(self._stdout.readline()))
        self.port = next(line["port"] for line in self.lines if line["event"] == "listening")

    @property
    def _stdout(self) -> Any:
        return self.child.stdout

    def send(self, raw: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SOON)
        connection.sendall(raw)
        return connection

    def ask(self, body: object) -> Answer:
        raw = json.dumps(body).encode()
        with self.send(head(len(raw)) + raw) as connection:
            return read_answer(connection)

    def until_logged(self, event: str) -> None:
        """Reads the log up to a line of that event."""
        while not self.lines or self.lines[-1]["event"] != event:
            self.lines.append(json.loads(self._stdout.readline()))

    def wait(self) -> tuple[int, str]:
        """Exit status, and what stands on stderr; `lines` holds the whole log then."""
        out, errors = self.child.communicate(timeout=SOON)
        self.lines += [json.loads(line) for line in out.splitlines()]
        return self.child.returncode, errors


@contextlib.contextmanager
def started(*arguments: str, **environment: str) -> Iterator[Process]:
    process = Process(*arguments, **environment)
    try:
        yield process
    finally:
        process.child.kill()
        process.child.communicate()


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode not in (0, None)
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


# ---- starting


@pytest.mark.parametrize("module", ["torch", "fastapi"])
def test_help_needs_neither_torch_nor_the_web_framework(module: str) -> None:
    code = (
        f"import sys, runpy; sys.modules[{module!r}] = None; sys.argv = ['server.py', '--help']; "
        "runpy.run_path('server.py', run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SOON)
    assert result.returncode == 0
    assert "--max-request-tokens" in result.stdout


def test_flags_of_either_spelling_count_more_than_the_environment() -> None:
    with started("--MAX_CONCURRENT_REQUESTS", "7", "--max_batch_tokens=99", MAX_BATCH_TOKENS="5") as process:
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=SOON)
        connection.request("GET", "/v1/models")
        limits = json.loads(connection.getresponse().read())["data"][0]["limits"]
        connection.close()
        assert (limits["max_concurrent_requests"], limits["max_batch_tokens"]) == (7, 99)


def test_published_bands_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("", True), ("false", False)):
        monkeypatch.setenv("PROPAGATE_UNCERTAINTY", text)
        engine = load_engine(read(["--model-path", "models/toto2-nano", "--device", "cpu"]))
        assert isinstance(engine, Engine)
        assert engine.propagate_uncertainty is expected


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"PORT": "seventy"}, "PORT"),
        ({"REQUEST_TIMEOUT_S": "nan"}, "REQUEST_TIMEOUT_S"),
        ({"LOG_FORMAT": "xml"}, "LOG_FORMAT"),
        ({"MAX_SEQ_LENGTH": "0"}, "MAX_SEQ_LENGTH"),
        ({"DTYPE": "float64"}, "DTYPE: Input should be 'float32', 'bfloat16', 'float16' or 'int8'"),
        ({"DEVICE": "gpu"}, "auto, cpu, npu:N or cuda:N"),
        ({"DEVICE": "npu:x"}, "auto, cpu, npu:N or cuda:N"),
        ({"MAX_BODY_BYTES": "16MiB"}, "in bytes"),
        ({"THREADS": "99999"}, "THREADS: Input should be less than or equal to 1024"),
        ({"THREADS": "0"}, "THREADS: Input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(environment: dict[str, str], says: str) -> None:
    result = run(script=MOCK, **environment)
    assert result.returncode == 2
    assert says in one_line(result)


@pytest.mark.parametrize("name", toto2.device.DTYPES)
def test_types_and_devices_have_no_case(name: str) -> None:
    settings = read(["--dtype", name.upper(), "--device", "NPU:3"])
    assert (settings.dtype, settings.device) == (name, "npu:3")


def test_a_port_in_use_is_found_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--port", str(port), MOCK="absent")
    assert f"port {port}: Address already in use" in one_line(result)
    assert result.stdout == ""


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_cannot_be_had_is_one_line(host: str) -> None:
    assert host in one_line(run("--host", host, "--port", "0", ALLOW_UNAUTHENTICATED="true"))


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("absent", "npu:0 is not there; found cpu"),
        ("broken", "a library is missing"),
        ("threadless", "can't start new thread"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line_and_ends_the_process(mode: str, says: str) -> None:
    result = run("--port", "0", MOCK=mode)
    assert says in one_line(result)
    assert result.returncode == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert says in last["reason"]


def test_a_checkpoint_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = run("--port", "0", "--device", "cpu", "--model-path", str(tmp_path / "none"), script=ROOT / "server.py")
    assert str(tmp_path / "none") in one_line(result)
    assert "Traceback" not in result.stdout


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_than_loopback_need_keys_or_a_word(host: str) -> None:
    assert "API_KEYS_FILE" in one_line(run("--host", host, "--port", "0"))


def test_all_addresses_are_served_where_everyone_may_ask() -> None:
    with started("--host", "0.0.0.0", ALLOW_UNAUTHENTICATED="true") as process:
        assert process.ask(forecast([1.0, 2.0])).status == 200


def test_a_key_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    assert "No such file" in one_line(run("--port", "0", API_KEYS_FILE=str(tmp_path / "none")))


def test_a_second_start_after_a_kill_takes_the_same_port() -> None:
    with started() as first:
        assert first.ask(forecast([1.0, 2.0])).status == 200
        first.child.kill()
        first.child.wait()
        with started("--port", str(first.port)) as second:
            assert second.ask(forecast([1.0, 2.0])).status == 200


# ---- ending


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_half_sent_bodies_and_idle_connections_do_not_hold_up_the_end(how: signal.Signals) -> None:
    with started("--drain-timeout-s", "20") as process, contextlib.ExitStack() as stack:
        idle = stack.enter_context(process.send(head(0, path="/health", method="GET")))
        assert read_answer(idle).status == 200
        half = stack.enter_context(process.send(head(1000) + b'{"series":[1,'))
        stack.enter_context(process.send(b"POST /v1/forec"))
        stack.enter_context(process.send(b""))
        assert process.ask(forecast([1.0, 2.0])).status == 200
        start = time.monotonic()
        process.child.send_signal(how)
        assert read_answer(half).status == 503
        assert process.wait() == (0, "")
        assert time.monotonic() - start < 10  # half the drain time, which nothing here needs
    assert process.lines[-1]["event"] == "stopped"


def test_admitted_requests_are_answered_and_new_ones_refused_while_draining() -> None:
    with started(MOCK="slow0.7") as process, ThreadPoolExecutor(4) as pool, process.send(b"") as kept:
        asked = [pool.submit(process.ask, forecast([1.0, 2.0])) for _ in range(4)]
        while b"toto_admitted_requests 4.0" not in read_metrics(process):
            pass
        process.child.send_signal(signal.SIGTERM)
        process.until_logged("draining")
        body = json.dumps(forecast([1.0])).encode()
        kept.sendall(head(len(body)) + body)
        refused = read_answer(kept)
        assert refused.status == 503
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) >= 1
        assert {answer.result().status for answer in asked} == {200}
        assert process.wait()[0] == 0
    assert process.lines[-1]["reason"] == "drained"


def read_metrics(process: Process) -> bytes:
    with process.send(head(0, path="/metrics", method="GET")) as connection:
        return read_answer(connection).raw


def test_a_device_that_does_not_come_back_does_not_hold_up_the_end() -> None:
    with started("--drain-timeout-s", "4", MOCK="stuck") as process, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(process.ask, forecast([1.0, 2.0]))
        while b"toto_admitted_requests 1.0" not in read_metrics(process):
            pass
        start = time.monotonic()
        process.child.send_signal(signal.SIGTERM)
        answer = asked.result()
        assert answer.status == 503
        assert "the service ended" in answer.text
        assert process.wait()[0] == 0
        assert time.monotonic() - start < 10  # it would be for ever
    cut = next(line for line in process.lines if line["event"] == "requests cut short")
    assert cut["waited_s"] == 3.0
    assert process.lines[-1]["reason"] == "cut: DRAIN_TIMEOUT_S was over with 1 unanswered"


def test_a_second_signal_ends_the_process_at_once() -> None:
    with started(MOCK="stuck") as process, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(process.ask, forecast([1.0, 2.0]))
        while b"toto_admitted_requests 1.0" not in read_metrics(process):
            pass
        process.child.send_signal(signal.SIGTERM)
        process.until_logged("draining")
        process.child.send_signal(signal.SIGTERM)
        assert process.wait()[0] == 1
        assert isinstance(asked.exception(), (OSError, http.client.HTTPException))


def test_a_device_failure_refuses_requests_and_ends_the_process_with_the_reason() -> None:
    with started() as process:
        answer = process.ask(forecast([KILLER, 1.0]))
        assert answer.status == 503
        status, errors = process.wait()
        assert status == 1
        assert "error 107002" in errors
        assert "Traceback" not in errors
        assert "error 107002" in process.lines[-1]["reason"]


# ---- logs


def test_logs_tell_shapes_and_durations_and_never_values() -> None:
    with started("--log-level", "debug") as process:
        raw = json.dumps(forecast([[123456.789] * 40, [None, -98765.4321] * 20]) | {"secret_field": 1}).encode()
        for body in (raw, raw.replace(b', "secret_field": 1', b""), raw[:-40], b'{"series": "123456.789"}'):
            with process.send(head(len(body), "X-Request-ID: my-id\r\n") + body) as connection:
                read_answer(connection)
        process.child.send_signal(signal.SIGTERM)
        process.wait()
    text = json.dumps(process.lines)
    assert not any(part in text for part in ("123456", "98765", "secret"))
    line = next(line for line in process.lines if line.get("status") == 200)
    assert (line["id"], line["variates"], line["context"], line["horizon"]) == ("my-id", 2, 40, 8)
    assert line["ms"] > 0


def test_console_logs_are_lines_of_text() -> None:
    result = run("--port", "0", "--log-format", "console", MOCK="absent")
    assert "npu:0 is not there" in result.stdout
    assert "{" not in result.stdout


def test_a_closed_log_does_not_fail_requests() -> None:
    with started() as process:
        process._stdout.close()
        assert [process.ask(forecast([1.0, 2.0])).status for _ in range(3)] == [200] * 3
        process.child.stdout = None
