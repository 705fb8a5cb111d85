"""Where published files come from: ModelScope, Hugging Face, or a directory on this machine.

Each hub is its own package's client, imported when it is used. Both keep a partial file under
``NAME.incomplete`` beside where it will lie, so that what one has fetched the other goes on with.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlparse

from toto2.checkpoint_files import CONFIG_NAME, file_sha256, weight_files

if TYPE_CHECKING:
    from modelscope_hub import HubApi


class HubError(RuntimeError):
    """A hub did not give what was asked. ``permanent``: asking again will not help."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(" ".join(message.split())[:500])
        self.permanent = permanent


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub lists it: size in bytes, and the digest that the hub gives."""

    name: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None  # of the git blob: what Hugging Face gives for small files


class Hub(Protocol):
    """A place that lists and sends files."""

    name: str

    def files(self, repository: str) -> list[RemoteFile]:
        """What the repository holds. Raises ``HubError``."""

    def fetch(self, repository: str, file: RemoteFile, directory: Path) -> None:
        """Put the file under its name into ``directory``, from a partial one if any. Raises ``HubError``."""


class ModelScope:
    """ModelScope by its own client; the endpoint is ``MODELSCOPE_ENDPOINT`` or ``MODELSCOPE_DOMAIN``.

    The ``modelscope`` package delegates to ``modelscope_hub``, which is used directly: importing
    ``modelscope`` would import torch, which must not be needed (nor a device's runtime) to fetch files.
    """

    name = "ModelScope"

    def files(self, repository: str) -> list[RemoteFile]:
        with _modelscope_errors(repository):
            listed = self._api(repository).list_repo_files(repository, "model")
        return [RemoteFile(file.path, file.size, file.sha256) for file in listed if not file.is_dir]

    def fetch(self, repository: str, file: RemoteFile, directory: Path) -> None:
        with _modelscope_errors(file.name):
            self._api(repository).download_file(
                repository,
                "model",
                file.name,
                local_dir=directory,
                cache_dir=directory,  # for its locks: the user's cache may be read-only
                file_size=file.size,
            )

    def _api(self, repository: str) -> HubApi:
        from modelscope_hub import HubApi
        from modelscope_hub.config import HubConfig

        endpoint = HubApi(HubConfig()).resolve_endpoint_for_read(repository)
        return HubApi(HubConfig(endpoint=endpoint))


class HuggingFace:
    """Hugging Face by its own client; the endpoint is ``HF_ENDPOINT``."""

    name = "Hugging Face"

    def __init__(self) -> None:
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
        self._revision: str | None = None  # all files of one download are of one commit

    def files(self, repository: str) -> list[RemoteFile]:
        from huggingface_hub import HfApi

        with _huggingface_errors(repository):
            info = HfApi(endpoint=self._endpoint).model_info(repository, files_metadata=True)
        self._revision = info.sha
        return [
            RemoteFile(file.rfilename, file.size or 0, sha256=file.lfs.sha256)
            if file.lfs
            else RemoteFile(file.rfilename, file.size or 0, git_sha1=file.blob_id)
            for file in info.siblings or []
        ]

    def fetch(self, repository: str, file: RemoteFile, directory: Path) -> None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented there

        partial = directory / f"{file.name}.incomplete"
        with _huggingface_errors(file.name):
            url = hf_hub_url(repository, file.name, revision=self._revision, endpoint=self._endpoint)
            location = get_hf_file_metadata(url, endpoint=self._endpoint).location
            headers = build_hf_headers()
            if urlparse(location).netloc != urlparse(url).netloc:
                headers.pop("authorization", None)  # a token is for the hub, not for where it points
            # The client's own hf_hub_download starts again after a kill: its partial files have random names.
            with partial.open("ab") as stream:
                if stream.tell() > file.size:
                    stream.truncate(0)
                http_get(
                    location,
                    stream,
                    resume_size=stream.seek(0, os.SEEK_END),
                    headers=headers,
                    expected_size=file.size,
                    displayed_filename=file.name,
                )
        partial.replace(directory / file.name)


class LocalCopy:
    """A directory on this machine that holds the files, such as a hub client's cache; only read."""

    def __init__(self, directory: Path) -> None:
        self.name = str(directory)
        self._directory = directory

    def files(self, repository: str) -> list[RemoteFile]:
        paths = [self._directory / CONFIG_NAME, *weight_files(self._directory)]
        return [RemoteFile(path.name, path.stat().st_size, file_sha256(path)) for path in paths]

    def fetch(self, repository: str, file: RemoteFile, directory: Path) -> None:
        try:
            shutil.copyfile(self._directory / file.name, directory / file.name)
        except OSError as error:
            raise HubError(f"{self._directory / file.name}: {error.strerror}", permanent=True) from None


@contextmanager
def _modelscope_errors(what: str) -> Iterator[None]:
    from modelscope_hub import errors

    refusals = (errors.NotExistError, errors.AuthenticationError, errors.PermissionDeniedError)
    try:
        yield
    except (errors.HubError, OSError, ValueError) as error:
        raise _hub_error(ModelScope.name, what, error, isinstance(error, refusals)) from error


@contextmanager
def _huggingface_errors(what: str) -> Iterator[None]:
    from httpx2 import HTTPError
    from huggingface_hub import errors

    refusals = (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.RemoteEntryNotFoundError,
        errors.OfflineModeIsEnabled,
    )
    try:
        yield
    except (HTTPError, OSError, ValueError) as error:
        raise _hub_error(HuggingFace.name, what, error, isinstance(error, refusals)) from error


def _hub_error(hub: str, what: str, error: Exception, permanent: bool) -> HubError:
    local = isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EROFS,
        errno.EACCES,
        errno.EDQUOT,
    )
    text = str(error).strip() or type(error).__name__
    return HubError(f"{hub}: {what}: {text.splitlines()[0]}", permanent=permanent or local)
