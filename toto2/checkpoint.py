"""Checkpoints on disk: ``config.json`` and ``model.safetensors``, or shards with their index.

Headers are checked against the files' sizes and the expected names and shapes before anything is allocated;
then every tensor is read straight into its own memory, so that loading costs one copy of the weights and
about what reading the file costs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import torch
from safetensors.torch import save_file

from toto2.checkpoint_files import (
    CONFIG_NAME,
    INDEX_NAME,
    WEIGHTS_NAME,
    difference,
    published_size,
    published_size_of,
    read_config,
    read_entries,
    weights_sha256,
)
from toto2.configuration import Toto2ModelConfig, state_dict_shapes
from toto2.safetensors_header import CheckpointError, Entry, Shape, opened

_READERS = 4  # reads at once: one thread's copying and page faults are slower than a disk

__all__ = [
    "CONFIG_NAME",
    "INDEX_NAME",
    "WEIGHTS_NAME",
    "CheckpointError",
    "published_size",
    "read_config",
    "read_state_dict",
    "save",
    "weights_sha256",
]


def read_state_dict(directory: str | Path, shapes: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    """Every tensor named in ``shapes``: float32, on the CPU.

    The checkpoint must hold exactly these names with these shapes as float32; a scalar may be stored with
    shape ``()`` or ``(1,)``. Raises ``CheckpointError``, where the checkpoint is wrong before anything is
    allocated.
    """
    entries = read_entries(directory)
    found = {name: entry.shape for name, entry in entries.items()}
    if wrong := difference(found, shapes):
        size = published_size_of(found)
        seems = f" (these weights are those of Toto-2.0-{size})" if size else ""
        path = next(iter(entries.values())).file
        raise CheckpointError(path, wrong + seems, f"put weights and the {CONFIG_NAME} that belong together there")
    for name, entry in entries.items():
        if entry.dtype != "F32":
            wrong = f"tensor {name} is of type {entry.dtype}, expected F32"
            raise CheckpointError(entry.file, wrong, "use the published float32 weights")
    return _read_tensors(entries, shapes)


def save(directory: str | Path, config: Toto2ModelConfig, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint that ``read_config`` and ``read_state_dict`` accept, float32.

    Each file takes its name only once it is whole on the disk. Raises ``ValueError`` where names or shapes
    are not those of ``config``.
    """
    found = {name: tuple(tensor.shape) for name, tensor in state_dict.items()}
    if wrong := difference(found, state_dict_shapes(config)):
        raise ValueError(f"the state dict is not of that configuration: {wrong}")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in state_dict.items()}
    with _replacing(directory / WEIGHTS_NAME) as temporary:
        save_file(tensors, temporary)
    with _replacing(directory / CONFIG_NAME) as temporary:
        temporary.write_text(config.to_json(), encoding="utf-8")


def _read_tensors(entries: Mapping[str, Entry], shapes: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    tensors = {name: torch.empty(shapes[name], dtype=torch.float32) for name in entries}
    with ThreadPoolExecutor(_READERS) as pool:
        for file, part in groupby(entries.items(), key=lambda item: item[1].file):
            with opened(file) as stream:
                reads = [pool.submit(_read_tensor, stream.fileno(), entry, tensors[name]) for name, entry in part]
                for read in reads:
                    read.result()
    return tensors


def _read_tensor(descriptor: int, entry: Entry, tensor: torch.Tensor) -> None:
    buffer = tensor.view(-1).numpy().data.cast("B")
    done = 0
    while done < len(buffer):  # a system call gives at most 2 GiB
        count = os.preadv(descriptor, [buffer[done:]], entry.start + done)
        if count == 0:
            raise CheckpointError(entry.file, f"ends {len(buffer) - done} bytes early", "it changed while it was read")
        done += count


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place once what was written there is on the disk."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
