"""What is wrong with this host, before a model is loaded: `python -m serving.doctor --device npu:1`.

Takes the service's settings from the same environment variables. A line a check: ok, warn or FAIL. Exit status 1
where one fails, else 0. Imports neither torch nor torch_npu: they are among what may be broken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from inference import default_model_path
from toto2.checkpoint_files import read_config, read_entries, weight_files
from toto2.chips import NO_FLOAT32, generation
from toto2.configuration import state_dict_shapes
from toto2.cpus import usable_cpus
from toto2.safetensors_header import CheckpointError

from .ascend_host import INSTALLED, SmiInfo, cann_version, driver_version, parse_npu_smi, parse_visible
from .settings import Settings

MIB = 1024 * 1024
FREE_DISK = 2048 * MIB
WORKING_MB = 2048  # beside the weights: activations of the largest batch, and the allocator's blocks
# torch-npu's release: the CANN it is built for.
CANN_FOR = {"2.9.0": "8.5", "2.9.0.post1": "8.5", "2.9.0.post2": "9.0", "2.9.0.post6": "9.1"}
DEVICE_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")


@dataclass(frozen=True)
class Finding:
    """One check's result."""

    check: str
    status: Literal["ok", "warn", "FAIL"]
    text: str


def _npu_smi() -> str:
    command = shutil.which("npu-smi") or "/usr/local/bin/npu-smi"
    return subprocess.run([command, "info"], capture_output=True, text=True, timeout=60, check=True).stdout


def _package(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Host:
    """Where the doctor looks. npu_smi raises `OSError` or `subprocess.SubprocessError` where it cannot be had."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    npu_smi: Callable[[], str] = _npu_smi
    package: Callable[[str], str] = _package
    machine: str = field(default_factory=platform.machine)


def examine(settings: Settings, host: Host) -> Iterator[Finding]:
    """Every check that concerns the device of the settings."""
    npu = settings.device.startswith("npu") or (
        settings.device == "auto" and ((host.root / "dev/davinci_manager").exists() or bool(host.package("torch-npu")))
    )
    yield from _python(host)
    if npu:
        yield from _packages(host)
        yield from _driver(host)
        yield from _cann(host)
        yield from _environment(host)
        yield from _chip(settings, host)
    yield from _port(settings)
    yield from _weights(settings)
    yield from _disk(host)
    yield from _threads(host)


def _python(host: Host) -> Iterator[Finding]:
    found = f"Python {platform.python_version()} on {host.machine}, torch {host.package('torch') or 'absent'}"
    yield Finding("python", "ok" if host.package("torch") else "FAIL", found)


def _packages(host: Host) -> Iterator[Finding]:
    torch, torch_npu = host.package("torch"), host.package("torch-npu")
    if not torch_npu:
        yield Finding("torch-npu", "FAIL", "torch-npu is not installed; pip install -r requirements-ascend.txt")
        return
    wanted = re.sub(r"\.post\d+$", "", torch_npu)
    release, _, build = torch.partition("+")
    if release != wanted:
        yield Finding("torch-npu", "FAIL", f"torch-npu {torch_npu} needs torch {wanted}, found {torch or 'none'}")
    elif host.machine == "x86_64" and build != "cpu":
        text = (
            f"torch {torch} is a CUDA build, beside which torch-npu refuses to load; on x86_64 take torch {wanted}+cpu"
        )
        yield Finding("torch-npu", "FAIL", text)
    elif torch_npu not in CANN_FOR:
        yield Finding("torch-npu", "warn", f"{torch_npu} is not among those known here ({', '.join(CANN_FOR)})")
    else:
        yield Finding("torch-npu", "ok", f"{torch_npu} with torch {torch}")


def _driver(host: Host) -> Iterator[Finding]:
    version = driver_version(host.root)
    where = "/" + str(INSTALLED / "driver")
    if version:
        yield Finding("driver", "ok", f"version {version}")
    else:
        yield Finding("driver", "FAIL", f"no version in {where}/version.info; install the driver, or mount it")
    missing = [name for name in DEVICE_FILES if not (host.root / "dev" / name).exists()]
    closed = [name for name in DEVICE_FILES if not os.access(host.root / "dev" / name, os.R_OK | os.W_OK)]
    if missing:
        text = f"/dev/{missing[0]} is missing; load the driver, or give the container its devices"
        yield Finding("device files", "FAIL", text)
    elif closed:
        text = f"/dev/{closed[0]} cannot be opened by uid {os.getuid()}; join the group that owns it (HwHiAiUser)"
        yield Finding("device files", "FAIL", text)
    else:
        yield Finding("device files", "ok", ", ".join(f"/dev/{name}" for name in DEVICE_FILES))


def _cann(host: Host) -> Iterator[Finding]:
    version = cann_version(host.root, host.environment, host.machine)
    torch_npu = host.package("torch-npu")
    expected = CANN_FOR.get(torch_npu, "")
    if not version:
        yield Finding("CANN", "FAIL", f"no toolkit found under /{INSTALLED}; install CANN {expected or '8.5.1'}")
    elif expected and not re.match(re.escape(expected) + r"\b", version):
        text = f"version {version}, and torch-npu {torch_npu} is built for {expected}; install the one for the other"
        yield Finding("CANN", "FAIL", text)
    else:
        yield Finding("CANN", "ok", f"version {version}")


def _environment(host: Host) -> Iterator[Finding]:
    if not host.environment.get("ASCEND_HOME_PATH"):
        text = "ASCEND_HOME_PATH is not set: source /usr/local/Ascend/ascend-toolkit/set_env.sh"
        yield Finding("environment", "FAIL", text)
    elif host.environment.get("TASK_QUEUE_ENABLE") == "2":
        text = "TASK_QUEUE_ENABLE=2 turns out of memory into a failure of the device; leave it at 1"
        yield Finding("environment", "FAIL", text)
    else:
        yield Finding("environment", "ok", f"ASCEND_HOME_PATH={host.environment['ASCEND_HOME_PATH']}")
    home = Path(host.environment.get("HOME") or "/")
    if not os.access(home, os.W_OK):
        yield Finding("home", "FAIL", f"HOME {home} is not writable: CANN keeps its logs there")


def _chip(settings: Settings, host: Host) -> Iterator[Finding]:
    try:
        info = parse_npu_smi(host.npu_smi())
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("npu-smi", "FAIL", f"npu-smi info cannot be run ({error}); mount it, or install the driver")
        return
    if not info.chips:
        yield Finding("npu-smi", "FAIL", f"npu-smi {info.version} lists no chip")
        return
    names = ", ".join(dict.fromkeys(chip.name for chip in info.chips))
    yield Finding("npu-smi", "ok", f"version {info.version}, {len(info.chips)} chips: {names}")
    visible, wrong = list(range(len(info.chips))), ""
    if text := host.environment.get("ASCEND_RT_VISIBLE_DEVICES"):
        visible, wrong = parse_visible(text)
    if wrong:
        yield Finding("visible devices", "FAIL", f"{wrong}: no device would be found")
        return
    index = int(settings.device.partition(":")[2] or 0)
    if index >= len(visible) or visible[index] >= len(info.chips):
        there = ", ".join(f"npu:{number}" for number in range(len(visible)))
        yield Finding("visible devices", "FAIL", f"npu:{index} is not there; there is {there or 'none'}")
        return
    yield Finding("visible devices", "ok", f"npu:{index} is chip {visible[index]} of this host")
    yield from _one_chip(settings, info, visible[index], f"npu:{index}")


def _one_chip(settings: Settings, info: SmiInfo, number: int, name: str) -> Iterator[Finding]:
    chip = info.chips[number]
    kind = generation(chip.name)
    if kind == "910A" and settings.dtype == "float32":
        yield Finding("chip", "FAIL", f"{name} is a {chip.name}, {NO_FLOAT32}")
    elif kind is None:
        yield Finding("chip", "warn", f"{name} is a {chip.name}, which is not known here; run verify_npu_vs_cpu.py")
    else:
        attention = "fused attention" if kind == "910B" else "composite attention (ATTENTION=fused to try the other)"
        yield Finding("chip", "ok", f"{name} is a {chip.name}: float32, {attention}")
    if chip.health not in ("OK", "Warning"):
        yield Finding("health", "FAIL", f"{name} reports {chip.health}, expected OK; see npu-smi info -t health")
    need = _weights_mb(settings) + WORKING_MB
    free = chip.total_mb - chip.used_mb
    if chip.total_mb:
        text = f"{free} of {chip.total_mb} MB free, {need} needed"
        yield Finding("memory", "FAIL" if free < need else "ok", text)
    others = [process for process in info.processes if (process.npu, process.chip) == (chip.npu, chip.chip)]
    if others:
        listed = ", ".join(f"{other.name} (pid {other.pid}, {other.used_mb} MB)" for other in others)
        yield Finding("processes", "warn", f"others use the chip: {listed}")
    else:
        yield Finding("processes", "ok", "none on the chip")


def _weights_mb(settings: Settings) -> int:
    try:
        files = weight_files(settings.model_path or default_model_path())
        return sum(file.stat().st_size for file in files) // MIB
    except (CheckpointError, OSError):  # said by the check of the weights
        return 0


def _port(settings: Settings) -> Iterator[Finding]:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        text = f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; stop what does, or set PORT"
        yield Finding("port", "FAIL", text)
    else:
        yield Finding("port", "ok", f"{settings.host} port {settings.port} is free")


def _weights(settings: Settings) -> Iterator[Finding]:
    path = settings.model_path or default_model_path()
    try:
        shapes = state_dict_shapes(read_config(path))
        if len(read_entries(path)) != len(shapes):
            raise CheckpointError(path, f"expected {len(shapes)} tensors", "run download_model.py")
        size = sum(file.stat().st_size for file in weight_files(path))
    except (CheckpointError, OSError) as error:
        yield Finding("weights", "FAIL", str(error))
    else:
        yield Finding("weights", "ok", f"{path}: {size / MIB:.0f} MB")


def _disk(host: Host) -> Iterator[Finding]:
    home = Path(host.environment.get("HOME") or "/")
    free = shutil.disk_usage(home if home.is_dir() else "/").free
    text = f"{free / MIB:.0f} MB free for logs under {home}"
    yield Finding("disk", "ok" if free >= FREE_DISK else "warn", text)


def _threads(host: Host) -> Iterator[Finding]:
    usable, wanted = usable_cpus(), host.environment.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > usable:
        yield Finding("threads", "warn", f"OMP_NUM_THREADS={wanted}, and the process may use {usable} CPUs")
    else:
        yield Finding("threads", "ok", f"the process may use {usable} CPUs")


def main(arguments: list[str] | None = None, host: Host | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m serving.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="auto, cpu, npu:N or cuda:N (DEVICE)")
    parser.add_argument("--host", help="address to listen on (HOST)")
    parser.add_argument("--port", type=int, help="port to listen on (PORT)")
    parser.add_argument("--model-path", type=Path, help="checkpoint directory (MODEL_PATH)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    try:
        settings = Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            print(f"FAIL settings: {'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}")
        return 1
    findings = list(examine(settings, host or Host()))
    failed = [finding for finding in findings if finding.status == "FAIL"]
    if as_json:
        print(json.dumps({"failed": len(failed), "findings": [asdict(finding) for finding in findings]}, indent=1))
        return 1 if failed else 0
    for finding in findings:
        print(f"{finding.status:4} {finding.check}: {finding.text}")
    print(f"{len(failed)} of {len(findings)} checks failed" if failed else "nothing is wrong with this host")
    if failed:
        print("where the advice does not help, send back what `python -m serving.doctor --json` prints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
