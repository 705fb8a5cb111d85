"""Published weights arrive whole or not at all, through each hub's own client."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_stand_in import PIECE, HubStandIn
from safetensors.torch import load, save

import download_model
from toto2.configuration import Toto2ModelConfig, state_dict_shapes
from weights import manifest

ROOT = Path(__file__).resolve().parent.parent
# A megabyte under the name of the published 4m: what is tested is how it arrives.
STAND_FOR_4M = Toto2ModelConfig(d_model=96, num_heads=4, num_layers=2)
GENERATOR = torch.Generator().manual_seed(0)
WEIGHTS = save(
    {name: torch.rand(shape, generator=GENERATOR) for name, shape in state_dict_shapes(STAND_FOR_4M).items()}
)
CONFIG = STAND_FOR_4M.to_json().encode()
FILES = {"README.md": b"not wanted", "config.json": CONFIG, "model.safetensors": WEIGHTS}
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
KNOWN = {
    "config.json": manifest.Known(len(CONFIG), hashlib.sha256(CONFIG).hexdigest()),
    "model.safetensors": manifest.Known(len(WEIGHTS), DIGEST),
}
PATCHES: dict[str, object] = {
    "toto2.checkpoint_files.PUBLISHED": {"4m": STAND_FOR_4M},
    "weights.verification.PUBLISHED": {"4m": STAND_FOR_4M},
    "weights.download.time.sleep": lambda _: None,
    "modelscope_hub._download.DOWNLOAD_CHUNK_SIZE": PIECE,
    "modelscope_hub._download.DOWNLOAD_RETRY_TIMES": 1,
    "modelscope_hub._download.DOWNLOAD_INTEGRITY_RETRY_BACKOFF": 0,
    "huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE": PIECE,
}


@pytest.fixture(autouse=True)
def _on_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No user's cache, no proxy, no waits, and the stand-in's weights as the published 4m."""
    for name in ("HOME", "MODELSCOPE_HOME", "MODELSCOPE_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(manifest.MANIFEST, "4m", KNOWN)
    for target, value in PATCHES.items():
        monkeypatch.setattr(target, value)
    for name in ("modelscope_hub", "huggingface_hub"):  # their handlers hold another test's captured stream
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    with HubStandIn(dict(FILES)) as stand_in:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", stand_in.url)
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        yield stand_in


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that give up on a silent connection at once; a busy machine may make them do so once more."""
    monkeypatch.setattr("modelscope_hub._legacy_api.DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)


@pytest.fixture(params=["modelscope", "huggingface"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(directory: Path, *arguments: str) -> int:
    return download_model.main(["--model", "4m", "--dir", str(directory), *arguments])


def holds_the_model(directory: Path) -> bool:
    return all((directory / name).read_bytes() == FILES[name] for name in KNOWN)


def final_names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".download", ".download.lock"}


def put_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in KNOWN:
        (directory / name).write_bytes(FILES[name])
    return directory


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_a_good_hub_gives_the_verified_files_and_their_digests(
    hub: HubStandIn, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "model"

    assert run(directory, "--source", source) == 0
    assert holds_the_model(directory)
    assert final_names(directory) == {*KNOWN, "config.json.sha256", "model.safetensors.sha256"}
    assert not (directory / ".download").exists()
    assert (directory / "model.safetensors.sha256").read_text() == f"{DIGEST}  model.safetensors\n"
    assert f"sha256 {DIGEST}  agrees with the published digest" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["flip", "empty", "page", "busy", "slow"])
def test_what_a_bad_network_does_once_is_made_good(fault: str, hub: HubStandIn, source: str, tmp_path: Path) -> None:
    hub.faults["model.safetensors"] = [fault]

    assert run(tmp_path / "model", "--source", source) == 0
    assert holds_the_model(tmp_path / "model")
    assert hub.faults["model.safetensors"] == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_connection_that_breaks_is_gone_on_with_from_where_it_broke(
    fault: str, hub: HubStandIn, source: str, tmp_path: Path
) -> None:
    hub.faults["model.safetensors"] = [fault]

    assert run(tmp_path / "model", "--source", source) == 0
    assert holds_the_model(tmp_path / "model")
    first, second, *_ = hub.ranges("model.safetensors")
    assert first is None
    assert second is not None
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 12 * PIECE


def test_a_killed_download_goes_on_where_it_was(hub: HubStandIn, source: str, tmp_path: Path) -> None:
    hub.faults["model.safetensors"] = ["stall"]
    arguments = [str(tmp_path / "model"), "--source", source]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, __file__, *arguments], env=environment) as process:
        assert hub.broken_off.wait(60)
        wait_for_bytes(tmp_path / "model" / ".download" / "model.safetensors.incomplete", 10 * PIECE)
        process.kill()
    assert final_names(tmp_path / "model") == set()

    assert run(tmp_path / "model", "--source", source) == 0
    assert holds_the_model(tmp_path / "model")
    assert hub.ranges("model.safetensors")[-1] is not None


def wait_for_bytes(path: Path, size: int) -> None:
    pause = threading.Event()
    while not (path.exists() and path.stat().st_size >= size):
        pause.wait(0.01)


def test_two_downloads_into_one_directory_fetch_it_once(hub: HubStandIn, source: str, tmp_path: Path) -> None:
    hub.faults["model.safetensors"] = ["slow"]
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(run(tmp_path / "model", "--source", source))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert codes == [0, 0]
    assert holds_the_model(tmp_path / "model")
    assert len(hub.ranges("model.safetensors")) == 1


@pytest.mark.parametrize("fault", ["gone", "flip", "empty", "page", "busy"])
def test_a_hub_that_never_gets_it_right_ends_in_one_line_and_no_file(
    fault: str, hub: HubStandIn, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults["model.safetensors"] = [fault] * 100

    assert run(tmp_path / "model", "--source", source, "--attempts", "2") == 1
    assert final_names(tmp_path / "model") == set()
    line = last_line(capsys)
    assert "model.safetensors" in line
    if fault == "flip":
        assert f"expected sha256 {DIGEST}, found " in line
        assert f"({len(WEIGHTS)} bytes)" in line


def test_a_wrong_file_under_the_final_name_stays_until_a_verified_one_replaces_it(
    hub: HubStandIn, source: str, tmp_path: Path
) -> None:
    directory = put_model(tmp_path / "model")
    (directory / "model.safetensors").write_bytes(WEIGHTS[:-1])
    hub.faults["model.safetensors"] = ["flip"] * 100

    assert run(directory, "--source", source, "--attempts", "2") == 1
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS[:-1]

    hub.faults.clear()
    assert run(directory, "--source", source) == 0
    assert holds_the_model(directory)


def test_a_file_that_is_there_already_is_not_fetched_again(hub: HubStandIn, source: str, tmp_path: Path) -> None:
    (put_model(tmp_path / "model") / "config.json").unlink()

    assert run(tmp_path / "model", "--source", source) == 0
    assert holds_the_model(tmp_path / "model")
    assert hub.ranges("model.safetensors") == []


def test_a_partial_file_of_other_bytes_is_thrown_away(hub: HubStandIn, source: str, tmp_path: Path) -> None:
    (tmp_path / "model" / ".download").mkdir(parents=True)
    (tmp_path / "model" / ".download" / "model.safetensors.incomplete").write_bytes(b"other" * 999)

    assert run(tmp_path / "model", "--source", source) == 0
    assert holds_the_model(tmp_path / "model")
    assert hub.ranges("model.safetensors") == ["bytes=4995-", None]


def test_a_file_that_the_hub_lists_with_another_digest_is_not_even_fetched(
    hub: HubStandIn, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.listed_sha256["model.safetensors"] = "0" * 64

    assert run(tmp_path / "model", "--source", source) == 1
    assert hub.ranges("model.safetensors") == []
    expected = f"model.safetensors on the hub: expected sha256 {DIGEST}, found {'0' * 64} ({len(WEIGHTS)} bytes)"
    assert last_line(capsys).endswith(expected)


def test_a_file_that_is_known_in_part_must_agree_with_that_part(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = manifest.Known(len(WEIGHTS), DIGEST[:8], DIGEST[-5:])
    monkeypatch.setitem(manifest.MANIFEST, "4m", {"model.safetensors": part})
    assert run(tmp_path / "model", "--source", source) == 0
    assert "the part of the published digest that is known" in capsys.readouterr().out

    monkeypatch.setitem(manifest.MANIFEST, "4m", {"model.safetensors": manifest.Known(None, DIGEST[:8], "xxxxx")})
    assert run(tmp_path / "other", "--source", source) == 1
    assert f"expected sha256 {DIGEST[:8]}…xxxxx, found {DIGEST}" in last_line(capsys)


def test_a_file_that_is_not_known_must_agree_with_the_hub(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(manifest.MANIFEST, "4m", {})
    hub.listed_sha256["model.safetensors"] = "0" * 64
    assert run(tmp_path / "model", "--source", source, "--attempts", "1") == 1
    assert f"model.safetensors: expected sha256 {'0' * 64}, found {DIGEST}" in last_line(capsys)

    hub.listed_sha256.clear()
    assert run(tmp_path / "model", "--source", source) == 0


def test_a_hub_without_digests_serves_for_what_is_known_in_full_and_for_nothing_else(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.lists_digests = False
    assert run(tmp_path / "model", "--source", source) == 0

    monkeypatch.setitem(manifest.MANIFEST, "4m", {})
    assert run(tmp_path / "other", "--source", source) == 1
    assert "expected a digest from the hub" in last_line(capsys)


def test_weights_of_another_size_under_this_ones_name_are_refused(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(manifest.MANIFEST, "22m", {})
    assert download_model.main(["--model", "22m", "--dir", str(tmp_path / "model"), "--source", source]) == 1
    assert final_names(tmp_path / "model") == set()
    assert "expected Toto-2.0-22m, found the tensors of Toto-2.0-4m" in last_line(capsys)


def test_shards_with_their_index_arrive_together(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(manifest.MANIFEST, "4m", {})
    tensors = load(WEIGHTS)
    names = {"model-1.safetensors": sorted(tensors)[:9], "model-2.safetensors": sorted(tensors)[9:]}
    del hub.files["model.safetensors"]
    for file, part in names.items():
        hub.files[file] = save({name: tensors[name] for name in part})
    index = {"weight_map": {name: file for file, part in names.items() for name in part}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()

    assert run(tmp_path / "model", "--source", source) == 0
    assert final_names(tmp_path / "model") >= {*names, "config.json", "model.safetensors.index.json"}


def test_a_hub_without_the_model_says_what_it_lacks_at_once(
    hub: HubStandIn, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del hub.files["model.safetensors"]
    assert run(tmp_path / "model", "--source", source) == 1
    assert "expected model.safetensors, found README.md, config.json" in last_line(capsys)


def test_a_hub_that_is_not_there_is_named_after_the_last_attempt(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "model", "--source", source, "--attempts", "2") == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line for line in lines if line.startswith("attempt 1 of 2: ")]
    assert lines[-1].startswith("download_model.py: ")
    assert "Datadog/Toto-2.0-4m" in lines[-1]


def test_a_full_disk_is_found_before_anything_is_fetched(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("weights.download.shutil.disk_usage", lambda _: usage(0, 0, 1000))
    assert run(tmp_path / "model") == 1
    assert hub.ranges("model.safetensors") == []
    assert f"needs {len(WEIGHTS) + len(CONFIG)} bytes, 1000 are free" in last_line(capsys)


def test_a_place_that_cannot_be_written_is_named(
    hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file" / "model") == 1
    assert "file/model: Not a directory" in last_line(capsys)


@pytest.mark.parametrize("mode", [(), ("--verify",), ("--offline",)])
def test_a_complete_directory_needs_no_connection(
    mode: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(put_model(tmp_path / "model"), *mode) == 0  # no hub is running
    assert f"{tmp_path / 'model'}: Toto-2.0-4m, complete" in capsys.readouterr().out


def test_verify_recognises_the_size_of_a_copied_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert download_model.main(["--verify", "--dir", str(put_model(tmp_path / "copied"))]) == 0
    assert "Toto-2.0-4m, complete" in capsys.readouterr().out


def test_verify_tells_weights_alone_what_is_missing_and_which_size_they_seem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (put_model(tmp_path / "model") / "config.json").unlink()
    assert download_model.main(["--verify", "--dir", str(tmp_path / "model")]) == 1
    assert "config.json is missing; the weights beside it seem to be those of Toto-2.0-4m" in last_line(capsys)


def test_verify_finds_a_change_after_the_download(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(manifest.MANIFEST, "4m", {})  # nothing is known but what was recorded
    assert run(tmp_path / "model", "--source", source) == 0
    changed = WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])
    (tmp_path / "model" / "model.safetensors").write_bytes(changed)

    assert run(tmp_path / "model", "--verify") == 1
    line = last_line(capsys)
    assert f"expected sha256 {DIGEST} as recorded when it was downloaded" in line
    assert f"found {hashlib.sha256(changed).hexdigest()} ({len(WEIGHTS)} bytes)" in line


def test_verify_refuses_the_configuration_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(manifest.MANIFEST, "4m", {})
    (put_model(tmp_path / "model") / "config.json").write_text(
        STAND_FOR_4M.to_json().replace('"norm_eps": 5e-05', '"norm_eps": 0.1')
    )
    assert run(tmp_path / "model", "--verify") == 1
    assert "expected the configuration of Toto-2.0-4m" in last_line(capsys)


def test_offline_with_nothing_there_says_what_to_copy_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "model"
    assert run(directory, "--offline") == 1
    line = last_line(capsys)
    assert "on a host with a network run `python download_model.py --model 4m`" in line
    assert line.endswith(f"copy its models/Toto-2.0-4m to {directory}")
    assert not directory.exists()


@pytest.mark.parametrize(
    "layout",
    [
        "models/Datadog/Toto-2___0-4m",
        "hub/models/Datadog/Toto-2___0-4m",
        "hub/Datadog/Toto-2___0-4m",
        "Datadog/Toto-2___0-4m",
        "models/Datadog--Toto-2.0-4m/snapshots/master",
    ],
)
def test_a_copy_in_a_modelscope_cache_is_used_and_left_alone(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "a cache"
    put_model(cache / layout)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MODELSCOPE_CACHE", "~/a cache")
    before = sorted((path, path.stat().st_mtime_ns) for path in cache.rglob("*"))

    assert run(tmp_path / "model", "--offline") == 0
    assert holds_the_model(tmp_path / "model")
    assert sorted((path, path.stat().st_mtime_ns) for path in cache.rglob("*")) == before


def test_a_damaged_copy_in_a_cache_is_passed_over(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = put_model(tmp_path / "cache" / "models" / "Datadog" / "Toto-2___0-4m")
    (cached / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"\0")
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))

    assert run(tmp_path / "offline", "--offline") == 1
    assert "passing over the copy in" in capsys.readouterr().err
    assert run(tmp_path / "model", "--source", source) == 0
    assert holds_the_model(tmp_path / "model")
    assert len(hub.ranges("model.safetensors")) == 1


def test_a_cache_that_cannot_be_written_is_no_hindrance(
    hub: HubStandIn, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no directory").touch()  # not even the superuser writes below a file
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "no directory" / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "no directory" / "home"))
    assert run(tmp_path / "model", "--source", source) == 0


def test_help_and_verification_import_neither_torch_nor_a_hub() -> None:
    code = (
        "import sys, download_model; assert download_model.main(['--verify', '--dir', 'nowhere']) == 1;"
        "sys.exit(bool({'torch', 'modelscope_hub', 'huggingface_hub', 'filelock'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("arguments", [["--model", "314m"], ["--attempts", "0"], ["--verify", "--offline"]])
def test_an_argument_that_cannot_be_meant_exits_with_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        download_model.main(arguments)


def test_the_manifest_pins_what_is_known_of_the_published_files() -> None:
    assert manifest.known("22m", "model.safetensors").size == 87_669_368
    assert manifest.known("313m", "model.safetensors") == manifest.Known(1_250_763_568, "5ee60664", "aa2f9")
    assert manifest.known("1B", "model.safetensors") == manifest.NOTHING
    assert manifest.repository("2.5B") == "Datadog/Toto-2.0-2.5B"


if __name__ == "__main__":  # the download that a test kills
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(manifest.MANIFEST, "4m", KNOWN)
        for target, value in PATCHES.items():
            patch.setattr(target, value)
        sys.exit(run(Path(sys.argv[1]), *sys.argv[2:]))
