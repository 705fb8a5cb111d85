"""Bring a published model into a directory: whole, verified, or not at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from toto2.checkpoint_files import CONFIG_NAME, INDEX_NAME, WEIGHTS_NAME
from toto2.safetensors_header import CheckpointError
from weights.hubs import Hub, HubError, LocalCopy, RemoteFile
from weights.manifest import VerificationError, model_name, repository
from weights.verification import VerifiedFile, check_download, check_remote, identify, record_path, verify

STAGING = ".download"  # in the model's directory, so that taking the final name is a rename
_LOCK = ".download.lock"
_LONGEST_WAIT_S = 60

T = TypeVar("T")
Say = Callable[[str], None]


def download(size: str, directory: Path, hub: Hub, attempts: int, say: Say) -> list[VerifiedFile]:
    """The files of a published size, verified in ``directory``: those there, or fetched from ``hub``.

    A complete directory is verified without any connection. Each step is tried ``attempts`` times. Raises
    ``HubError``, ``VerificationError`` or ``CheckpointError`` in one line; then nothing unverified has its
    final name, and what was fetched waits in the staging folder for the next call.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with _alone_in(directory, say):
        try:
            return verify(directory, size)[1]
        except (CheckpointError, VerificationError) as error:
            if any((directory / name).exists() for name in (CONFIG_NAME, WEIGHTS_NAME, INDEX_NAME)):
                say(f"not complete yet: {error}")
        _fetch_all(size, directory, hub, attempts, say)
        return verify(directory, size)[1]


def take_local(size: str, directory: Path, say: Say) -> list[VerifiedFile]:
    """As ``download``, with no connection: from the directory itself or a ModelScope cache on this machine."""
    try:
        return verify(directory, size)[1]
    except (CheckpointError, VerificationError) as error:
        problem = str(error)
    for cached in modelscope_caches(size):
        try:
            return download(size, directory, LocalCopy(cached), 1, say)
        except (CheckpointError, VerificationError, HubError) as error:
            say(f"passing over the copy in {cached}: {error}")
    name = model_name(size)
    remedy = (
        f"on a host with a network run `python download_model.py --model {size}` and copy its models/{name} "
        f"to {directory}"
    )
    raise CheckpointError(directory, f"no complete {name} here ({problem})", remedy)


def modelscope_caches(size: str) -> list[Path]:
    """Where ModelScope's client, in its layouts so far, would have put this model on this machine."""
    base = Path(os.environ.get("MODELSCOPE_CACHE") or Path.home() / ".cache" / "modelscope").expanduser()
    owner, name = repository(size).split("/")
    dotless = name.replace(".", "___")
    layouts = [
        *base.glob(f"models/{owner}--{name}/snapshots/*"),
        *(base / part / owner / dotless for part in ("models", "hub/models", "hub", ".")),
        *(base / part / owner / name for part in ("models", "hub/models", "hub", ".")),
    ]
    return [path for path in layouts if (path / CONFIG_NAME).is_file()]


def _fetch_all(size: str, directory: Path, hub: Hub, attempts: int, say: Say) -> None:
    listed = _retrying(lambda: hub.files(repository(size)), attempts, say)
    files = _needed(size, hub, listed)
    for file in files:
        check_remote(size, file)
    staging = directory / STAGING
    staging.mkdir(exist_ok=True)
    _check_space(staging, files)
    digests = {file.name: _obtain(size, file, staging, hub, attempts, say) for file in files}
    identify(staging, size)
    # The configuration last: a directory without it is told apart from a complete one at a glance.
    for name in sorted(digests, key=lambda name: name == CONFIG_NAME):
        record_path(directory / name).write_text(f"{digests[name]}  {name}\n", encoding="ascii")
        with (staging / name).open("rb") as stream:
            os.fsync(stream.fileno())
        (staging / name).replace(directory / name)
    shutil.rmtree(staging)


def _needed(size: str, hub: Hub, listed: list[RemoteFile]) -> list[RemoteFile]:
    """Of all files on the hub: the configuration, and the weights as one file or as shards with their index."""
    by_name = {file.name: file for file in listed}
    wanted = [CONFIG_NAME, WEIGHTS_NAME]
    if WEIGHTS_NAME not in by_name and INDEX_NAME in by_name:
        shards = (name for name in by_name if name.startswith("model-") and name.endswith(".safetensors"))
        wanted = [CONFIG_NAME, INDEX_NAME, *sorted(shards)]
    if missing := [name for name in wanted if name not in by_name]:
        found = ", ".join(sorted(by_name)[:10]) or "no file"
        raise HubError(
            f"{hub.name}: {repository(size)}: expected {' and '.join(missing)}, found {found}", permanent=True
        )
    return [by_name[name] for name in wanted]


def _obtain(size: str, file: RemoteFile, staging: Path, hub: Hub, attempts: int, say: Say) -> str:
    """The verified sha256 of ``file`` in the staging folder: there already, from a cache, or from the hub."""
    target = staging / file.name

    def once(source: Hub) -> str:
        if not target.exists():
            say(f"{file.name}: {file.size:,} bytes from {source.name}")
            source.fetch(repository(size), file, staging)
        try:
            return check_download(target, size, file)
        except VerificationError:
            target.unlink()  # begin again, not from these bytes
            raise

    for place in [staging.parent, *modelscope_caches(size)]:  # the model's own directory may lack only the other file
        copy = place / file.name
        if not target.exists() and copy.is_file() and copy.stat().st_size == file.size:
            try:
                return once(LocalCopy(place))
            except (HubError, VerificationError) as error:
                say(f"passing over the copy in {place}: {error}")
    return _retrying(lambda: once(hub), attempts, say)


def _retrying(step: Callable[[], T], attempts: int, say: Say) -> T:
    for attempt in range(1, attempts + 1):
        try:
            return step()
        except (HubError, VerificationError) as error:
            if attempt == attempts or getattr(error, "permanent", False):
                raise
            wait = min(2**attempt, _LONGEST_WAIT_S)
            say(f"attempt {attempt} of {attempts}: {error}; again in {wait} s")
            time.sleep(wait)
    raise ValueError(f"attempts must be at least 1, found {attempts}")


def _check_space(staging: Path, files: list[RemoteFile]) -> None:
    there = sum(path.stat().st_size for path in staging.iterdir() if path.is_file())
    needed = sum(file.size for file in files) - there
    free = shutil.disk_usage(staging).free
    if needed > free:
        raise CheckpointError(staging, f"needs {needed} bytes, {free} are free", "make room or use --dir")


@contextmanager
def _alone_in(directory: Path, say: Say) -> Iterator[None]:
    """One download at a time in a directory; the system frees the lock of a process that was killed."""
    from filelock import FileLock, Timeout  # here, so that verifying needs no installed package

    lock = FileLock(directory / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another download is at work in {directory}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
