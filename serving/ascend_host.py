"""What an Ascend host says of itself: `npu-smi info`, version files, and the environment. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INSTALLED = Path("usr/local/Ascend")
DRIVER = INSTALLED / "driver" / "version.info"
TOOLKITS = ("ascend-toolkit/latest", "cann", "nnae/latest", "latest")
MACHINES = ("aarch64", "x86_64")

_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_VERSION = re.compile(r"^\s*(?:version|toolkit_installed_version|runtime_installed_version)\s*=\s*(\S+)", re.I | re.M)


@dataclass(frozen=True)
class Chip:
    """One chip, in the order of its device number. Memory in MB, of the whole chip."""

    npu: int
    chip: int
    name: str
    health: str
    used_mb: int
    total_mb: int


@dataclass(frozen=True)
class ChipProcess:
    """A process on a chip."""

    npu: int
    chip: int
    pid: int
    name: str
    used_mb: int


@dataclass(frozen=True)
class SmiInfo:
    """What `npu-smi info` prints."""

    version: str
    chips: tuple[Chip, ...]
    processes: tuple[ChipProcess, ...]


def parse_npu_smi(text: str) -> SmiInfo:
    """The table of `npu-smi info`: two rows a chip (name and health; bus and memory), then rows of processes.

    A 910C repeats its NPU's number and numbers its two chips; the chip's row may hold a second, physical number.
    """
    version = re.search(r"npu-smi\s+(\S+)", text)
    chips: list[Chip] = []
    processes: list[ChipProcess] = []
    head: tuple[int, str, str] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 4 and re.fullmatch(r"\d+\s+\d+", cells[0]) and cells[1].isdecimal():
            npu, chip = map(int, cells[0].split())
            processes.append(ChipProcess(npu, chip, int(cells[1]), cells[2], int(cells[3].split()[0])))
        elif len(cells) == 3 and (first := re.fullmatch(r"(\d+)\s+([A-Za-z\d]*[A-Za-z][\w.-]*)", cells[0])):
            head = int(first[1]), first[2], cells[1]
        elif len(cells) == 3 and head and re.fullmatch(r"\d+(\s+\d+)?", cells[0]):
            usage = _USAGE.findall(cells[2])
            used, total = map(int, usage[-1]) if usage else (0, 0)
            chips.append(Chip(head[0], int(cells[0].split()[0]), head[1], head[2], used, total))
            head = None
    return SmiInfo(version[1] if version else "", tuple(chips), tuple(processes))


def parse_version(text: str) -> str:
    """The version in a version file; empty where there is none.

    Forms: `version=8.5.1` or `Version=8.5.1`, bare or among others, and
    `toolkit_installed_version=[8.2.0.2.220:8.2.RC2]`, whose part after the colon is the release.
    """
    found = _VERSION.search(text)
    return found[1].strip("\"'[]").split(":")[-1] if found else ""


def driver_version(root: Path) -> str:
    """Of the driver under `root` (/); empty where there is none."""
    return _first_version([root / DRIVER])


def cann_version(root: Path, environment: Mapping[str, str], machine: str) -> str:
    """Of the CANN toolkit that the environment names, else of the one installed under `root`; empty where none is."""
    named = environment.get("ASCEND_HOME_PATH") or environment.get("ASCEND_TOOLKIT_HOME")
    homes = [Path(named)] if named else [root / INSTALLED / toolkit for toolkit in TOOLKITS]
    files: list[Path] = []
    for home in homes:
        machines = [home / f"{name}-linux" / "ascend_toolkit_install.info" for name in (machine, *MACHINES)]
        files += [home / "ascend_toolkit_install.info", *machines, home / "version.cfg"]
        files += [home / "runtime" / "version.info", home / "compiler" / "version.info"]
    return _first_version(files)


def parse_visible(text: str) -> tuple[list[int], str]:
    """(device numbers, what is wrong with them) of ASCEND_RT_VISIBLE_DEVICES."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        return [], f"ASCEND_RT_VISIBLE_DEVICES must be numbers with commas, found {text!r}"
    devices = [int(word) for word in words]
    if devices != sorted(set(devices)):
        return [], f"ASCEND_RT_VISIBLE_DEVICES must rise ({','.join(map(str, sorted(set(devices))))}), found {text!r}"
    return devices, ""


def _first_version(files: list[Path]) -> str:
    for file in files:
        try:
            version = parse_version(file.read_text(errors="replace"))
        except OSError:
            continue
        if version:
            return version
    return ""
