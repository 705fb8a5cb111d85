"""Whether a directory holds a published model, whole and unchanged; reads and never writes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from toto2.checkpoint_files import (
    CONFIG_NAME,
    file_sha256,
    published_size,
    read_config,
    weight_files,
)
from toto2.configuration import PUBLISHED
from toto2.safetensors_header import CheckpointError
from weights.hubs import RemoteFile
from weights.manifest import NOTHING, VerificationError, known, model_name


@dataclass(frozen=True)
class VerifiedFile:
    """A file whose bytes were read: its size, sha256, and what that agrees with."""

    path: Path
    size: int
    sha256: str
    agrees_with: str


def verify(directory: Path, size: str | None = None) -> tuple[str | None, list[VerifiedFile]]:
    """The published size in ``directory`` (None: a model of another size) and its files, every byte read.

    Raises ``CheckpointError`` where the directory is no loadable checkpoint, ``VerificationError`` where a
    digest, or the size that was asked for, is not the one found.
    """
    found = identify(directory, size)
    paths = [directory / CONFIG_NAME, *weight_files(directory)]
    return found, [_verified(path, found) for path in paths]


def identify(directory: Path, size: str | None = None) -> str | None:
    """The published size in ``directory`` by its configuration and tensors; raises as ``verify`` does."""
    config, found = read_config(directory), published_size(directory)
    if size is not None and found != size:
        named = model_name(found) if found else "a model of no published size"
        raise VerificationError(f"{directory}: expected {model_name(size)}, found the tensors of {named}")
    if found is not None and config != PUBLISHED[found]:
        named = f"the configuration of {model_name(found)}, whose tensors lie beside it"
        raise VerificationError(f"{directory / CONFIG_NAME}: expected {named}, found another one")
    return found


def check_remote(size: str, file: RemoteFile) -> None:
    """Whether what the hub lists is what is known. Raises ``VerificationError``."""
    expected = known(size, file.name)
    expected.check(f"{file.name} on the hub", file.size, file.sha256)
    if not expected.is_full and not (file.sha256 or file.git_sha1):
        raise VerificationError(
            f"{file.name}: expected a digest from the hub, since the published one is not known in full, found none"
        )


def check_download(path: Path, size: str, file: RemoteFile) -> str:
    """The sha256 of a downloaded file that is what is known and what the hub lists, or ``VerificationError``."""
    found_size, sha256 = path.stat().st_size, file_sha256(path)
    known(size, file.name).check(file.name, found_size, sha256)
    if found_size != file.size:
        raise VerificationError(f"{file.name}: expected {file.size} bytes, found {found_size} bytes")
    if file.sha256 and sha256 != file.sha256:
        raise VerificationError(f"{file.name}: expected sha256 {file.sha256}, found {sha256} ({found_size} bytes)")
    if file.git_sha1 and _git_sha1(path) != file.git_sha1:
        raise VerificationError(
            f"{file.name}: expected git blob {file.git_sha1}, found {_git_sha1(path)} ({found_size} bytes)"
        )
    return sha256


def record_path(path: Path) -> Path:
    """Where the digest of a downloaded file is recorded, in the form that ``sha256sum -c`` reads."""
    return path.with_name(f"{path.name}.sha256")


def _verified(path: Path, size: str | None) -> VerifiedFile:
    found_size, sha256 = path.stat().st_size, file_sha256(path)
    expected = known(size, path.name) if size else NOTHING
    expected.check(path, found_size, sha256)
    recorded = _recorded(path)
    if recorded and recorded != sha256:
        raise VerificationError(
            f"{path}: expected sha256 {recorded} as recorded when it was downloaded, "
            f"found {sha256} ({found_size} bytes)"
        )
    agrees = ["the published digest"] if expected.is_full else []
    agrees += ["the part of the published digest that is known"] if 0 < len(expected.sha256_start) < 64 else []
    agrees += ["the digest recorded when it was downloaded"] if recorded else []
    agrees += ["the published configuration"] if size and path.name == CONFIG_NAME and not agrees else []
    return VerifiedFile(path, found_size, sha256, " and ".join(agrees) or "nothing: no digest of it is known")


def _recorded(path: Path) -> str:
    record = record_path(path)
    if not record.exists():
        return ""
    try:
        return record.read_text(encoding="ascii").split()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise CheckpointError(record, f"cannot be read as a digest ({error})", "delete it") from None


def _git_sha1(path: Path) -> str:
    """The name git gives a file; hubs list it for small files, so it is read whole."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
