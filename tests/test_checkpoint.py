"""A checkpoint loads strictly and whole, or is refused in one line that says what is wrong."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from toto2 import Toto2Model
from toto2.checkpoint import (
    CheckpointError,
    published_size,
    read_config,
    read_state_dict,
    save,
    weights_sha256,
)
from toto2.configuration import PUBLISHED, Toto2ModelConfig, state_dict_shapes

CONFIG = Toto2ModelConfig(d_model=16, num_heads=2, num_layers=2)
SHAPES = state_dict_shapes(CONFIG)


def state_dict() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save(tmp_path, CONFIG, state_dict())
    return tmp_path


def load(directory: Path) -> dict[str, torch.Tensor]:
    return read_state_dict(directory, state_dict_shapes(read_config(directory)))


def shard(directory: Path) -> list[Path]:
    """Replace the weights in ``directory`` by two shards and their index."""
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    files = [directory / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    for file, part in zip(files, parts, strict=True):
        save_file({name: tensors[name] for name in part}, file)
    weight_map = {name: file.name for file, part in zip(files, parts, strict=True) for name in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "model.safetensors").unlink()
    return files


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(path)), path)


# What is right


def test_what_was_saved_comes_back_equal_in_memory_of_its_own(checkpoint: Path) -> None:
    loaded = load(checkpoint)
    (checkpoint / "model.safetensors").write_bytes(b"")  # a mapping of the file would die with it

    assert read_config(checkpoint) == CONFIG
    assert loaded.keys() == SHAPES.keys()
    for name, tensor in state_dict().items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].dtype == torch.float32


def test_the_saved_file_is_what_the_safetensors_library_reads(checkpoint: Path) -> None:
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        assert torch.equal(tensor, state_dict()[name])


def test_saving_leaves_nothing_but_the_two_files(checkpoint: Path) -> None:
    assert sorted(path.name for path in checkpoint.iterdir()) == ["config.json", "model.safetensors"]


def test_a_state_dict_of_another_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the state dict is not of that configuration: 22 tensors are missing"):
        save(tmp_path, PUBLISHED["4m"], state_dict())
    assert not list(tmp_path.iterdir())


def test_saving_over_a_checkpoint_that_fails_midway_leaves_the_old_one(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (checkpoint / "model.safetensors").read_bytes()

    def disk_full(_: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("toto2.checkpoint.save_file", disk_full)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoint, CONFIG, {name: tensor + 1 for name, tensor in state_dict().items()})

    assert (checkpoint / "model.safetensors").read_bytes() == before
    assert len(list(checkpoint.iterdir())) == 2


def test_shards_with_their_index_load_as_the_single_file_does(checkpoint: Path) -> None:
    whole = load(checkpoint)
    shard(checkpoint)

    sharded = load(checkpoint)
    assert all(torch.equal(sharded[name], tensor) for name, tensor in whole.items())


def test_a_scalar_stored_with_one_dimension_takes_the_shape_that_was_asked_for(checkpoint: Path) -> None:
    rewrite(
        checkpoint / "model.safetensors",
        lambda tensors: {name: t.reshape(1) if t.ndim == 0 else t for name, t in tensors.items()},
    )
    assert load(checkpoint)["transformer.layers.0.attn_tau"].shape == ()


def test_files_that_are_links_into_a_cache_load(checkpoint: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in ("config.json", "model.safetensors"):
        (linked / name).symlink_to(checkpoint / name)
    assert load(linked).keys() == SHAPES.keys()


def test_the_digest_of_a_single_file_is_its_sha256(checkpoint: Path) -> None:
    expected = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    assert weights_sha256(checkpoint) == expected


def test_the_digest_of_shards_is_that_of_what_sha256sum_prints(checkpoint: Path) -> None:
    files = shard(checkpoint)
    printed = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    assert weights_sha256(checkpoint) == hashlib.sha256(printed.encode()).hexdigest()


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"attn_bias": True, "mlp_bias": True},
        {"norm_include_weight": True},
        {"qk_norm": True, "qk_norm_include_weight": True},
        {"qk_norm": True, "norm_include_weight": True},
        {"per_dim_scale": False, "use_xpos": False},
        {"num_groups": 1, "qk_dim": 12, "v_dim": 20, "d_ff": 24},
        {"patch_size": 16},
    ],
)
def test_the_expected_names_and_shapes_are_those_of_the_model(switches: dict[str, object]) -> None:
    config = Toto2ModelConfig.from_dict({"d_model": 16, "num_heads": 2, "num_layers": 2, **switches})
    with torch.device("meta"):
        model = Toto2Model(config)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == state_dict_shapes(config)


# What is wrong: how the checkpoint is broken, and what the one line says


def lfs_pointer(directory: Path) -> None:
    (directory / "model.safetensors").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1250763568\n"
    )


def cut_by_one_byte(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def one_byte_more(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")


def header_of_2_to_the_63(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + path.read_bytes()[8:])


def missing_shard(directory: Path) -> None:
    shard(directory)[1].unlink()


def doubled_tensor(directory: Path) -> None:
    first, second = shard(directory)
    save_file(load_file(first) | load_file(second), second)


def shard_outside(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"patch_proj.linear1.weight": "../../secret.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def index_without_map(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text("{}")


def another_size(directory: Path) -> None:
    shapes = state_dict_shapes(PUBLISHED["4m"])
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, directory / "model.safetensors")


def header(directory: Path, entries: object, data: bytes = b"") -> None:
    text = json.dumps(entries).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(start: int, end: int, shape: list[object], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def as_type(dtype: torch.dtype) -> Callable[[Path], None]:
    return lambda directory: rewrite(
        directory / "model.safetensors",
        lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()},
    )


def weights(content: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / "model.safetensors").write_bytes(content)


def config(content: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "config.json").write_text(content)


def config_with(**change: object) -> Callable[[Path], object]:
    return config(json.dumps(CONFIG.to_dict() | change))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "a Git LFS pointer": (lfs_pointer, r"is a Git LFS pointer to 1250763568 bytes.*git lfs pull"),
    "a web page": (weights(b"\n <!DOCTYPE html><html>Log in</html>"), r"is a web page"),
    "an empty file": (weights(b""), r"is empty: 0 bytes"),
    "seven bytes": (weights(b"1234567"), r"no whole safetensors file.* in a file of 7 bytes"),
    "a PyTorch pickle": (weights(b"PK\x03\x04" + bytes(99)), r"is a zip archive"),
    "cut by one byte": (cut_by_one_byte, r"is cut short: \d+ bytes, expected \d+"),
    "one byte more": (one_byte_more, r"is longer than its header says: \d+ bytes, expected \d+"),
    "a header of 2^63": (header_of_2_to_the_63, r"a header of 9223372036854775808 bytes in a file of \d+"),
    "a header that is no JSON": (weights(b"\x04" + bytes(7) + b"{{{{"), r"holds no valid JSON"),
    "a header that nests deeply": (
        weights((100_000).to_bytes(8, "little") + b'{"a":' * 20_000),
        r"holds no valid JSON",
    ),
    "a header that is a list": (lambda d: header(d, []), r"expected a JSON object, found \[\]"),
    "a header without tensors": (lambda d: header(d, {"__metadata__": {}}), r"holds no tensors"),
    "an entry that is no object": (lambda d: header(d, {"a": 1}), r"gives tensor a as 1"),
    "a shape below zero": (lambda d: header(d, {"a": entry(0, 4, [-1, -1])}, bytes(4)), r"gives tensor a"),
    "a shape of petabytes": (
        lambda d: header(d, {"a": entry(0, 4, [2**50])}, bytes(4)),
        r"gives tensor a",
    ),
    "offsets backwards": (lambda d: header(d, {"a": entry(4, 0, [1])}, bytes(4)), r"gives tensor a"),
    "an unknown type": (lambda d: header(d, {"a": entry(0, 4, [1], "F7")}, bytes(4)), r"gives tensor a"),
    "a gap": (lambda d: header(d, {"a": entry(4, 8, [1])}, bytes(8)), r"starts at byte \d+, expected \d+"),
    "an overlap": (
        lambda d: header(d, {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, bytes(12)),
        r"tensor b starts at byte \d+, expected \d+",
    ),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), r"holds no model.safetensors"),
    "a missing shard": (missing_shard, r"of 2 shards 1 are missing, first model-00002-of-00002"),
    "a tensor in two shards": (doubled_tensor, r"is also in model-00001-of-00002"),
    "a shard elsewhere": (shard_outside, r"names '../../secret.safetensors', expected the name of a file"),
    "an index without a map": (index_without_map, r"holds no weight_map object"),
    "an extra tensor": (
        lambda d: rewrite(d / "model.safetensors", lambda t: t | {"extra.weight": torch.zeros(3)}),
        r"1 tensors are not part of the model, first extra.weight \[3\]",
    ),
    "a missing tensor": (
        lambda d: rewrite(d / "model.safetensors", lambda t: {k: v for k, v in t.items() if "fc2" not in k}),
        r"2 tensors are missing, first transformer.layers.0.ffn.fc2.weight \[16, 48\]",
    ),
    "another size's weights": (another_size, r"these weights are those of Toto-2.0-4m"),
    "float16 weights": (as_type(torch.float16), r"is of type F16, expected F32"),
    "bfloat16 weights": (as_type(torch.bfloat16), r"is of type BF16, expected F32"),
    "no config.json": (
        lambda d: (d / "config.json").unlink(),
        r"config.json is missing; the weights beside it are of no published size; copy",
    ),
    "an empty configuration": (config("{}"), r"missing keys d_model, num_heads, num_layers"),
    "a configuration that is a list": (config("[]"), r"expected a JSON object, found \[\]"),
    "a configuration that is cut": (config('{"d_model": 1'), r"holds no valid JSON"),
    "a number of 9999 digits": (
        config(f'{{"d_model": {"9" * 9999}}}'),
        r"holds no valid JSON",
    ),
    "an unknown key": (config_with(rope_theta=1), r"unknown keys rope_theta"),
    "a patch size of 16": (
        config_with(patch_size=16),
        r"tensor patch_proj.linear1.weight has shape \[64, 64\], expected \[64, 32\]",
    ),
    "layers by the thousand": (config_with(num_layers=4000, layer_group_size=4000), r"tensors are missing"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_refused_in_one_line_that_names_the_path_and_the_remedy(
    case: str, checkpoint: Path
) -> None:
    break_it, message = BROKEN[case]
    break_it(checkpoint)

    with pytest.raises(CheckpointError, match=message) as error:
        load(checkpoint)

    text = str(error.value)
    assert text.startswith(str(checkpoint))
    assert "; " in text
    assert "\n" not in text
    assert len(text) < 600


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: no such directory; it needs config.json and"):
        read_config(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file: expected a directory, found a file"):
        read_state_dict(tmp_path / "file", SHAPES)


def test_an_empty_directory_is_told_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds neither config.json nor model.safetensors; it needs"):
        read_config(tmp_path)


def test_weights_alone_are_told_which_published_size_they_seem_to_be(tmp_path: Path) -> None:
    another_size(tmp_path)

    assert published_size(tmp_path) == "4m"
    with pytest.raises(CheckpointError, match=r"config.json is missing; .* seem to be those of Toto-2.0-4m"):
        read_config(tmp_path)


def test_a_file_that_the_system_will_not_read_is_named_with_the_reason(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model.safetensors: cannot be read: Is a directory"):
        read_state_dict(checkpoint, SHAPES)


def test_a_line_break_in_a_path_does_not_break_the_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        read_config(tmp_path / "two\nlines")
    assert "\n" not in str(error.value)


def test_nothing_is_allocated_for_a_checkpoint_that_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*_: object, **__: object) -> None:
        raise AssertionError("a refused checkpoint was read")

    monkeypatch.setattr("toto2.checkpoint.torch.empty", allocate)
    as_type(torch.float16)(checkpoint)
    with pytest.raises(CheckpointError, match="F16"):
        load(checkpoint)


def test_what_fetches_and_checks_weights_imports_without_torch() -> None:
    code = "import sys, toto2.checkpoint_files; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
