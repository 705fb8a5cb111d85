"""What lies in a checkpoint's directory: its configuration, its weight files and their headers.

Free of torch, so that a host that only fetches or checks weights needs none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from toto2.configuration import PUBLISHED, Toto2ModelConfig, state_dict_shapes
from toto2.safetensors_header import CheckpointError, Entry, Shape, opened, read_header, read_json_object

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


def published_size(directory: str | Path) -> str | None:
    """The published size (``"4m"`` to ``"2.5B"``) whose tensors ``directory`` holds; None for another model.

    Raises ``CheckpointError`` where the weights cannot be read.
    """
    return published_size_of({name: entry.shape for name, entry in read_entries(directory).items()})


def weights_sha256(directory: str | Path) -> str:
    """Hex digest of the weights: that of ``model.safetensors``; of shards, that of ``sha256sum``'s lines."""
    files = weight_files(directory)
    if [file.name for file in files] == [WEIGHTS_NAME]:
        return file_sha256(files[0])
    lines = "".join(f"{file_sha256(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def weight_files(directory: str | Path) -> list[Path]:
    """The single file where there is one, else the index's shards by name. Raises ``CheckpointError``."""
    directory = _existing(directory)
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


def read_entries(directory: str | Path) -> dict[str, Entry]:
    """Header entries of all weights, file by file in the order of the data. Raises ``CheckpointError``."""
    entries: dict[str, Entry] = {}
    for file in weight_files(directory):
        for name, entry in read_header(file).items():
            if name in entries:
                wrong = f"tensor {name} is also in {entries[name].file.name}"
                raise CheckpointError(file, wrong, "copy the index and all its shards there again")
            entries[name] = entry
    return entries


def difference(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> str:
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


def published_size_of(found: Mapping[str, Shape]) -> str | None:
    """The published size with exactly these tensors."""
    for size, config in PUBLISHED.items():
        if not difference(found, state_dict_shapes(config)):
            return size
    return None


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


def file_sha256(path: Path) -> str:
    """Hex digest of a file of any size. Raises ``CheckpointError``."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
