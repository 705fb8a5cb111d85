"""The doctor finds what is wrong with a host, on samples of what Ascend hosts say of themselves."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.ascend_host import (
    Chip,
    ChipProcess,
    cann_version,
    driver_version,
    parse_npu_smi,
    parse_version,
    parse_visible,
)
from serving.doctor import Host, main

ROOT = Path(__file__).resolve().parent.parent

SMI_910B = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 94.9        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 92.0        39                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          59356/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       0                 | 1712733       | python3.11               | 56201                   |
+===========================+===============+====================================================+
"""
SMI_910C = """
| npu-smi 25.2.0                   Version: 25.2.0                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
| 0     Ascend910           | OK            | 160.2       37                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3156 / 65536         |
| 0     Ascend910           | Alarm         | -           36                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          2886 / 65536         |
| NPU     Chip              | Process id    | Process name       | Process memory(MB)    | Process id in container |
| 0       1                 | 77            | forecast           | 48954                 | NA                      |
"""
SMI_910A = """
| npu-smi 23.0.0                   Version: 23.0.0                                               |
| 0     910A                | OK            | 67.4        40                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           1583 / 15137      0    / 32768         |
"""
INSTALL_INFO = "package_name=Ascend-cann-toolkit\nversion=8.5.1\ninnerversion=V100R001C25\narch=aarch64\nos=linux\n"
VERSION_CFG = (
    "# version: 1.0\nruntime_running_version=[7.7.0.1.231:8.2.RC2]\ntoolkit_installed_version=[8.2.0.2.220:8.2.RC2]\n"
)
RUNTIME_INFO = "Version=8.5.1\nversion_dir=8.5.1\ntimestamp=20260101_000000000\n"
DRIVER_INFO = "Version=25.2.0\nascendhal_version=7.35.23\naicpu_version=1.0\npackage_version=25.2.0\n"


def test_npu_smi_of_a_910b_is_read() -> None:
    info = parse_npu_smi(SMI_910B)
    assert info.version == "24.1.rc2"
    assert info.chips == (Chip(0, 0, "910B3", "OK", 3161, 65536), Chip(1, 0, "910B3", "OK", 59356, 65536))
    assert info.processes == (ChipProcess(1, 0, 1712733, "python3.11", 56201),)


def test_npu_smi_of_a_910c_has_two_chips_a_card() -> None:
    info = parse_npu_smi(SMI_910C)
    assert [(chip.npu, chip.chip, chip.health) for chip in info.chips] == [(0, 0, "OK"), (0, 1, "Alarm")]
    assert info.processes == (ChipProcess(0, 1, 77, "forecast", 48954),)


def test_npu_smi_of_a_910a_gives_the_memory_of_the_chip() -> None:
    assert parse_npu_smi(SMI_910A).chips == (Chip(0, 0, "910A", "OK", 0, 32768),)


@pytest.mark.parametrize("text", ["", "dcmi module initialize failed. ret is -8005", "| 0 | 1 |\n" * 3])
def test_what_is_no_table_has_no_chip(text: str) -> None:
    assert parse_npu_smi(text).chips == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (INSTALL_INFO, "8.5.1"), (VERSION_CFG, "8.2.RC2"), (RUNTIME_INFO, "8.5.1"), (DRIVER_INFO, "25.2.0"),
        ('version="8.5.1"\r\n', "8.5.1"), (" Version = 8.1.RC1 \n", "8.1.RC1"), ("", ""), ("nothing\n", ""),
    ],
)  # fmt: skip
def test_a_version_file_of_any_form_is_read(text: str, version: str) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", INSTALL_INFO, "8.5.1"),
        ("ascend-toolkit/latest/version.cfg", VERSION_CFG, "8.2.RC2"),
        ("ascend-toolkit/latest/runtime/version.info", RUNTIME_INFO, "8.5.1"),
        ("cann/aarch64-linux/ascend_toolkit_install.info", INSTALL_INFO, "8.5.1"),
    ],
)
def test_cann_is_found_wherever_it_is_installed(file: str, text: str, version: str, tmp_path: Path) -> None:
    _write(tmp_path / "usr/local/Ascend" / file, text)
    assert cann_version(tmp_path, {}, "aarch64") == version


def test_the_environments_cann_comes_first(tmp_path: Path) -> None:
    _write(tmp_path / "usr/local/Ascend/cann/version.cfg", VERSION_CFG)
    _write(tmp_path / "mine/runtime/version.info", RUNTIME_INFO)
    assert cann_version(tmp_path, {"ASCEND_HOME_PATH": str(tmp_path / "mine")}, "aarch64") == "8.5.1"
    assert driver_version(tmp_path) == ""


@pytest.mark.parametrize(
    ("text", "devices", "wrong"),
    [("0,1,3", [0, 1, 3], ""), (" 2 ", [2], ""), ("1,0", [], "must rise (0,1)"), ("1,1", [], "must rise (1)"),
     ("npu:1", [], "must be numbers"), ("", [], "must be numbers")],
)  # fmt: skip
def test_visible_devices_must_rise(text: str, devices: list[int], wrong: str) -> None:
    found, said = parse_visible(text)
    assert found == devices
    assert wrong in said
    assert bool(said) is bool(wrong)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


Doctor = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture
def doctor(tmp_path: Path, small_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The doctor on a host with which nothing is wrong but what is given; findings by check."""
    for name in ("davinci_manager", "devmm_svm", "hisi_hdc"):
        _write(tmp_path / "dev" / name, "")
    ascend = tmp_path / "usr/local/Ascend"
    _write(ascend / "driver/version.info", DRIVER_INFO)
    _write(ascend / "ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", INSTALL_INFO)

    def run(
        *arguments: str,
        smi: str = SMI_910B,
        packages: dict[str, str] | None = None,
        machine: str = "aarch64",
        without: str = "",
        **environment: str,
    ) -> tuple[int, dict[str, dict[str, str]]]:
        if without:
            (tmp_path / without).unlink()
        found = {"torch": "2.9.0", "torch-npu": "2.9.0"} | (packages or {})
        home = str(ascend / "ascend-toolkit/latest")
        variables = {"ASCEND_HOME_PATH": home, "HOME": str(tmp_path)} | environment
        host = Host(tmp_path, variables, lambda: smi, lambda name: found.get(name, ""), machine)
        flags = ["--json", "--device", "npu:0", "--port", "0", "--model-path", str(small_checkpoint)]
        status = main([*flags, *arguments], host)
        findings = json.loads(capsys.readouterr().out)["findings"]
        return status, {finding["check"]: finding for finding in findings}

    return run


def test_nothing_is_wrong_with_the_baseline(doctor: Doctor) -> None:
    status, found = doctor()
    assert status == 0
    assert {finding["status"] for finding in found.values()} == {"ok"}
    assert found["torch-npu"]["text"] == "2.9.0 with torch 2.9.0"
    assert found["CANN"]["text"] == "version 8.5.1"
    assert found["chip"]["text"] == "npu:0 is a 910B3: float32, fused attention"


@pytest.mark.parametrize(
    ("given", "check", "says"),
    [
        ({"packages": {"torch-npu": ""}}, "torch-npu", "requirements-ascend.txt"),
        ({"packages": {"torch": "2.13.0"}}, "torch-npu", "torch-npu 2.9.0 needs torch 2.9.0, found 2.13.0"),
        ({"machine": "x86_64"}, "torch-npu", "take torch 2.9.0+cpu"),
        ({"packages": {"torch-npu": "2.9.0.post2"}}, "CANN", "torch-npu 2.9.0.post2 is built for 9.0"),
        ({"without": "usr/local/Ascend/driver/version.info"}, "driver", "install the driver"),
        ({"without": "dev/devmm_svm"}, "device files", "/dev/devmm_svm is missing"),
        (
            {"without": "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info"},
            "CANN", "install CANN 8.5",
        ),
        ({"ASCEND_HOME_PATH": ""}, "environment", "set_env.sh"),
        ({"TASK_QUEUE_ENABLE": "2"}, "environment", "leave it at 1"),
        ({"HOME": "/nowhere"}, "home", "not writable"),
        ({"smi": "dcmi module initialize failed"}, "npu-smi", "lists no chip"),
        ({"smi": SMI_910A}, "chip", "multiplies float32 as float16"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,0"}, "visible devices", "must rise (0,1)"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "5"}, "visible devices", "npu:0 is not there"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_what_to_do(given: dict[str, Any], check: str, says: str, doctor: Doctor) -> None:
    status, found = doctor(**given)
    assert status == 1
    assert found[check]["status"] == "FAIL"
    assert says in found[check]["text"]


def test_a_chip_that_is_not_there_is_named_with_those_that_are(doctor: Doctor) -> None:
    _, found = doctor("--device", "npu:2")
    assert found["visible devices"]["text"] == "npu:2 is not there; there is npu:0, npu:1"


def test_a_full_chip_and_who_fills_it_are_found(doctor: Doctor) -> None:
    status, found = doctor("--device", "npu:1", smi=SMI_910B.replace("59356/", "65000/"))
    assert status == 1
    assert found["memory"]["text"].startswith("536 of 65536 MB free, ")
    assert "python3.11 (pid 1712733, 56201 MB)" in found["processes"]["text"]


def test_visible_devices_are_numbered_anew(doctor: Doctor) -> None:
    _, found = doctor(ASCEND_RT_VISIBLE_DEVICES="1")
    assert found["visible devices"]["text"] == "npu:0 is chip 1 of this host"
    assert "pid 1712733" in found["processes"]["text"]


def test_an_unhealthy_chip_of_a_910c_is_found(doctor: Doctor) -> None:
    status, found = doctor("--device", "npu:1", smi=SMI_910C)
    assert status == 1
    assert "Alarm" in found["health"]["text"]
    assert "composite attention" in found["chip"]["text"]


def test_a_port_in_use_is_found(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, found = doctor("--port", port)
    assert status == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in found["port"]["text"]


def test_weights_that_cannot_be_loaded_are_found(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    status, found = doctor("--model-path", str(tmp_path / "model"))
    assert status == 1
    assert "config.json" in found["weights"]["text"]


def test_more_threads_than_cpus_are_a_warning(doctor: Doctor) -> None:
    status, found = doctor(OMP_NUM_THREADS="4096")
    assert status == 0
    assert found["threads"]["status"] == "warn"


def test_a_cpu_host_needs_nothing_of_ascend(doctor: Doctor) -> None:
    status, found = doctor("--device", "cpu", packages={"torch-npu": ""}, smi="")
    assert status == 0
    assert set(found) == {"python", "port", "weights", "disk", "threads"}


def test_plain_lines_end_with_the_verdict_and_import_no_torch(small_checkpoint: Path) -> None:
    code = """
import sys
from serving.doctor import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(status)
"""
    arguments = ["--device", "npu:0", "--port", "0", "--model-path", str(small_checkpoint)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert "checks failed" in lines[-2]
    assert "send back what `python -m serving.doctor --json` prints" in lines[-1]
    assert any(line.startswith("FAIL torch-npu: ") for line in lines)
    assert any(line.startswith("ok   weights: ") for line in lines)


def test_a_setting_that_is_none_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "99999"]) == 1
    assert capsys.readouterr().out.startswith("FAIL settings: PORT: ")
