"""Containers hold what the service needs and no more, and an Ascend container gets its device and driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
IMAGES = ("Dockerfile", "Dockerfile.ascend")
RUN = DEPLOY / "run-ascend.sh"


def tool(name: str) -> str:
    """A linter beside the interpreter or on PATH; the test is skipped where there is none."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def instructions(image: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / image).read_text(), flags=re.MULTILINE).replace("\\\n", "")
    lines = [line for line in text.splitlines() if line.strip()]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def settings(image: str) -> dict[str, str]:
    pairs = [pair for name, text in instructions(image) if name == "ENV" for pair in text.split()]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing(image: str) -> None:
    done = subprocess.run([tool("hadolint"), str(DEPLOY / image)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run([tool("shellcheck"), str(RUN)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("image", IMAGES)
def test_every_line_is_an_instruction_and_what_is_copied_exists(image: str) -> None:
    known = {"FROM", "ARG", "SHELL", "ENV", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "VOLUME", "STOPSIGNAL"}
    known |= {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions(image)} <= known
    ignored = (DEPLOY / f"{image}.dockerignore").read_text().splitlines()
    for name, text in instructions(image):
        if name == "COPY":
            for source in text.split()[:-1]:
                assert f"!{source}" in ignored or (source.endswith(".py") and "!*.py" in ignored), source
                if source != "test_server.py":
                    assert (ROOT / source).exists(), source


@pytest.mark.parametrize("image", IMAGES)
def test_the_image_holds_every_package_the_service_imports(image: str) -> None:
    copied = {source for name, text in instructions(image) if name == "COPY" for source in text.split()[:-1]}
    code = "import sys, server, inference, verify_npu_vs_cpu; from files import command; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    own = {name.split(".")[0] for name in done.stdout.split()} & {path.stem for path in ROOT.iterdir()}
    assert own >= {"toto2", "serving", "server"}
    assert {name if (ROOT / name).is_dir() else f"{name}.py" for name in own} <= copied


@pytest.mark.parametrize("image", IMAGES)
def test_the_service_runs_as_another_user_than_root(image: str) -> None:
    users = [text for name, text in instructions(image) if name == "USER"]
    assert users == ["10001"]


@pytest.mark.parametrize("image", IMAGES)
def test_weights_are_mounted_and_keys_are_asked_for(image: str) -> None:
    assert ("VOLUME", '["/srv/toto/models"]') in instructions(image)
    assert settings(image)["HOST"] == "0.0.0.0"
    assert settings(image)["API_KEYS_FILE"] == "/run/keys/keys.txt"
    assert "models" not in {source for name, text in instructions(image) if name == "COPY" for source in text.split()}


@pytest.mark.parametrize("image", IMAGES)
def test_health_checks_ask_the_service(image: str) -> None:
    (text,) = (text for name, text in instructions(image) if name == "HEALTHCHECK")
    command = json.loads(text.split("CMD", 1)[1])
    compile(command[2], "healthcheck", "exec")
    assert "/health" in command[2]


def test_torch_npu_is_not_loaded_while_the_image_is_built() -> None:
    lines = instructions("Dockerfile.ascend")
    assert lines[1] == ("FROM", "quay.io/ascend/cann:${CANN}")
    assert lines[0] == ("ARG", "CANN=8.5.1-910b-ubuntu22.04-py3.11")
    assert ("ARG", "TORCH_DEVICE_BACKEND_AUTOLOAD=0") in lines  # an ARG: the running service does load it
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in settings("Dockerfile.ascend")


def test_the_entry_point_reads_the_toolkits_paths_and_runs_the_command() -> None:
    (text,) = (text for name, text in instructions("Dockerfile.ascend") if name == "ENTRYPOINT")
    done = subprocess.run([*json.loads(text), "echo", "a b", "c"], capture_output=True, text=True, check=True)
    assert "set_env.sh" in text
    assert done.stdout == "a b c\n"


def _dry_run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "DRY_RUN": "1"} | environment
    return subprocess.run([str(RUN), *arguments], env=variables, capture_output=True, text=True, check=False)


def test_the_container_gets_its_chip_and_the_driver() -> None:
    words = _dry_run("3", "8041").stdout.split()
    devices = [words[i + 1] for i, word in enumerate(words) if word == "--device"]
    assert devices == ["/dev/davinci3", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    mounts = {words[i + 1].split(":")[0] for i, word in enumerate(words) if word == "--volume"}
    assert mounts >= {
        "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/version.info", "/etc/ascend_install.info",
    }  # fmt: skip
    assert words[words.index("--publish") + 1] == "127.0.0.1:8041:8040"
    assert words[-1] == "toto-serve-ascend"


def test_settings_and_another_command_reach_the_container() -> None:
    words = _dry_run("0", "8040", "python3", "verify_npu_vs_cpu.py", ATTENTION="composite", IMAGE="mine").stdout.split()
    assert words[words.index("--env") + 1] == "ATTENTION=composite"
    assert words[-3:] == ["mine", "python3", "verify_npu_vs_cpu.py"]


@pytest.mark.parametrize(("chip", "port"), [("x", "8040"), ("0", "0"), ("0", "99999"), ("0", "http")])
def test_arguments_that_are_none_are_refused_in_one_line(chip: str, port: str) -> None:
    done = _dry_run(chip, port)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_ascend_pins_are_the_others_but_for_torch_and_what_torch_npu_needs() -> None:
    def pins(name: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in (ROOT / name).read_text().splitlines():
            if line and not line.startswith(("#", "--")):
                requirement = Requirement(line)
                assert re.fullmatch(r"==[\w.+]+", str(requirement.specifier)), line
                found.setdefault(requirement.name, set()).add(str(requirement.specifier))
        return found

    ascend, plain = pins("requirements-ascend.txt"), pins("requirements.txt")
    assert ascend["torch"] == {"==2.9.0", "==2.9.0+cpu"}
    assert ascend["torch-npu"] == {"==2.9.0"}
    shared = {name: pin for name, pin in plain.items() if name != "torch"}
    assert shared.items() <= ascend.items()
