"""Checkpoints on disk: ``config.json`` and ``model.safetensors``, or shards with their index.

Headers are checked against the files' sizes and the expected names and shapes before anything is allocated;
then every tensor is read straight into its own memory, so that loading costs one copy of the weights and
about what reading the file costs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from toto2.configuration import PUBLISHED, Toto2ModelConfig, state_dict_shapes
from toto2.safetensors_header import (
    CheckpointError,
    Entry,
    Shape,
    opened,
    read_header,
    read_json_object,
)

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

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_COMPLETE = f"it needs {CONFIG_NAME} and {WEIGHTS_NAME}: copy both there or run download_model.py"


def read_config(directory: str | Path) -> Toto2ModelConfig:
    """The configuration in ``directory``. Raises ``CheckpointError``."""
    path = _existing(directory) / CONFIG_NAME
    if not path.is_file():
        raise _missing_config(path.parent)
    values = read_json_object(path, "copy the config.json that belongs to these weights there")
    try:
        return Toto2ModelConfig.from_dict(values)
    except ValueError as error:
        raise CheckpointError(path, str(error), "use the config.json that belongs to these weights") from None


def read_state_dict(directory: str | Path, shapes: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    """Every tensor named in ``shapes``: float32, on the CPU.

    The checkpoint must hold exactly these names with these shapes as float32; a scalar may be stored with
    shape ``()`` or ``(1,)``. Raises ``CheckpointError``, where the checkpoint is wrong before anything is
    allocated.
    """
    entries = _read_entries(_existing(directory))
    found = {name: entry.shape for name, entry in entries.items()}
    if difference := _difference(found, shapes):
        size = _published_size(found)
        seems = f" (these weights are those of Toto-2.0-{size})" if size else ""
        path = next(iter(entries.values())).file
        raise CheckpointError(
            path, difference + seems, f"use the weights that belong to {CONFIG_NAME}, and their {CONFIG_NAME}"
        )
    for name, entry in entries.items():
        if entry.dtype != "F32":
            wrong = f"tensor {name} is of type {entry.dtype}, expected F32"
            raise CheckpointError(entry.file, wrong, "use the published float32 weights")
    return _read_tensors(entries, shapes)


def published_size(directory: str | Path) -> str | None:
    """The published size (``"4m"`` to ``"2.5B"``) whose tensors ``directory`` holds; None for another model.

    Raises ``CheckpointError`` where the weights cannot be read.
    """
    return _published_size({name: entry.shape for name, entry in _read_entries(_existing(directory)).items()})


def save(directory: str | Path, config: Toto2ModelConfig, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint that ``read_config`` and ``read_state_dict`` accept, float32.

    Each file takes its name only once it is whole on the disk. Raises ``ValueError`` where names or shapes
    are not those of ``config``.
    """
    found = {name: tuple(tensor.shape) for name, tensor in state_dict.items()}
    if difference := _difference(found, state_dict_shapes(config)):
        raise ValueError(f"this state dict is not of that configuration: {difference}")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in state_dict.items()
    }
    with _replacing(directory / WEIGHTS_NAME) as temporary:
        save_file(tensors, temporary)
    with _replacing(directory / CONFIG_NAME) as temporary:
        temporary.write_text(config.to_json(), encoding="utf-8")


def weights_sha256(directory: str | Path) -> str:
    """Hex digest of the weights: that of ``model.safetensors``; of shards, that of ``sha256sum``'s lines."""
    files = _weight_files(_existing(directory))
    if [file.name for file in files] == [WEIGHTS_NAME]:
        return _file_sha256(files[0])
    lines = "".join(f"{_file_sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def _existing(directory: str | Path) -> Path:
    directory = Path(directory)
    if directory.is_dir():
        return directory
    wrong = "expected a directory, found a file" if directory.exists() else "no such directory"
    raise CheckpointError(directory, wrong, _COMPLETE)


def _missing_config(directory: Path) -> CheckpointError:
    if not (directory / WEIGHTS_NAME).exists() and not (directory / INDEX_NAME).exists():
        return CheckpointError(directory, f"holds neither {CONFIG_NAME} nor {WEIGHTS_NAME}", _COMPLETE)
    size = published_size(directory)
    seems = f"seem to be those of Toto-2.0-{size}" if size else "are of no published size"
    wrong = f"{CONFIG_NAME} is missing; the weights beside it {seems}"
    return CheckpointError(directory, wrong, f"copy the {CONFIG_NAME} that belongs to these weights there")


def _weight_files(directory: Path) -> list[Path]:
    """The single file where there is one, else the index's shards by name."""
    if (directory / WEIGHTS_NAME).exists():
        return [directory / WEIGHTS_NAME]
    if (directory / INDEX_NAME).exists():
        return sorted({directory / shard for shard in _read_index(directory / INDEX_NAME).values()})
    raise CheckpointError(directory, f"holds no {WEIGHTS_NAME}", _COMPLETE)


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name to shard file name."""
    remedy = "copy the index and all its shards there"
    weight_map = read_json_object(path, remedy).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(path, "holds no weight_map object", remedy)
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:  # a shard lies beside its index
            raise CheckpointError(path, f"names {shard!r:.80}, expected the name of a file beside it", remedy)
    missing = sorted({shard for shard in weight_map.values() if not (path.parent / shard).is_file()})
    if missing:
        found = len(set(weight_map.values())) - len(missing)
        wrong = f"of {found + len(missing)} shards {len(missing)} are missing, first {missing[0]}"
        raise CheckpointError(path, wrong, "copy the missing shards there or run download_model.py")
    return weight_map


def _read_entries(directory: Path) -> dict[str, Entry]:
    """Header entries of all weights, in the order in which they lie on the disk."""
    files = _weight_files(directory)
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if name in entries:
                wrong = f"tensor {name} is also in {entries[name].file.name}"
                raise CheckpointError(file, wrong, "copy the index and all its shards there again")
            entries[name] = entry
    return entries


def _read_tensors(entries: Mapping[str, Entry], shapes: Mapping[str, Shape]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in dict.fromkeys(entry.file for entry in entries.values()):
        with opened(file) as stream:
            for name, entry in entries.items():
                if entry.file != file:
                    continue
                tensors[name] = torch.empty(shapes[name], dtype=torch.float32)
                stream.seek(entry.start)
                buffer = tensors[name].view(-1).numpy().data.cast("B")
                if stream.readinto(buffer) != entry.end - entry.start:
                    raise CheckpointError(file, f"ended within tensor {name}", "it changed while it was read")
    return tensors


def _difference(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> str:
    """The first difference between two sets of tensors in words; empty where there is none."""
    if missing := sorted(expected.keys() - found.keys()):
        return f"{len(missing)} tensors are missing, first {missing[0]} {list(expected[missing[0]])}"
    if extra := sorted(found.keys() - expected.keys()):
        return f"{len(extra)} tensors are not part of the model, first {extra[0]:.80} {list(found[extra[0]])}"
    for name, shape in expected.items():
        scalar = shape in ((), (1,)) and found[name] in ((), (1,))
        if found[name] != shape and not scalar:
            return f"tensor {name} has shape {list(found[name])}, expected {list(shape)}"
    return ""


def _published_size(found: Mapping[str, Shape]) -> str | None:
    for size, config in PUBLISHED.items():
        if not _difference(found, state_dict_shapes(config)):
            return size
    return None


def _file_sha256(path: Path) -> str:
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that takes its place once what was written there is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
