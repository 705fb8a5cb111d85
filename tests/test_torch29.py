"""The service's code uses nothing that PyTorch 2.9, which Ascend hosts have, does not.

The names are those that 2.13.0 has and the wheel of 2.9.0 lacks in the modules the code uses, and operators' arguments
alike. Where the tests themselves run on 2.9, they say more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("toto2", "dd_unit_scaling", "serving")
SOURCES = [file for part in PACKAGES for file in sorted((ROOT / part).rglob("*.py"))]
SOURCES += [ROOT / name for name in ("inference.py", "server.py", "verify_npu_vs_cpu.py")]
NEWER_NAMES = {
    "torch.miopen_ctc_loss", "torch.thread_safe_generator", "torch.nn.LinearCrossEntropyLoss",
    "torch.nn.LinearCrossEntropyOptions", "torch.nn.functional.ScalingType", "torch.nn.functional.SwizzleType",
    "torch.nn.functional.grouped_mm", "torch.nn.functional.linear_cross_entropy",
    "torch.nn.functional.scaled_grouped_mm", "torch.nn.functional.scaled_mm", "torch.backends.python_native",
    "torch.optim.swap_in_optimizer_params_and_state", "torch.accelerator.Graph", "torch.accelerator.cache",
    "torch.accelerator.empty_host_cache", "torch.accelerator.get_device_capability",
    "torch.accelerator.get_memory_info", "torch.accelerator.graphs", "torch.cpu.get_capabilities",
}  # fmt: skip
NEWER_METHODS = {"const_data_ptr", "grad_dtype"}
NEWER_ARGUMENTS = {(name, "generator") for name in ("rand_like", "randn_like", "randint_like")}
MODULES = (
    "torch", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.backends", "torch.ops", "torch.optim",
    "torch.cpu",
)  # fmt: skip


def newer(source: str) -> list[str]:
    """What in a module's source is not in PyTorch 2.9."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    found = [name for name in aliases.values() if name in NEWER_NAMES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = _dotted(node, aliases)
            if name in NEWER_NAMES or node.attr in NEWER_METHODS:
                found.append(name or node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found += [f"{node.func.attr}({k.arg})" for k in node.keywords if (node.func.attr, k.arg) in NEWER_ARGUMENTS]
    return found


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Local names of what is imported from torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "torch":
                    yield (name.asname, name.name) if name.asname else ("torch", "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """torch.nn.functional.silu for F.silu; empty for what is not torch's."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return ""
    return ".".join([aliases[node.id], *reversed(parts)])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_newer_than_pytorch_2_9_is_used(path: Path) -> None:
    assert newer(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.accelerator.get_memory_info()",
        "import torch.nn.functional as F\nF.grouped_mm(a, b)",
        "from torch.nn.functional import scaled_mm",
        "import torch\ntorch.randn_like(x, generator=g)",
        "x.const_data_ptr()",
        "import torch\ntorch.cpu.get_capabilities()",
    ],
)
def test_what_is_newer_is_found(source: str) -> None:
    assert newer(source)


def test_only_modules_whose_names_were_compared_are_used() -> None:
    used = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        aliases = dict(_aliases(tree))
        names = {_dotted(node, aliases) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {name for name in names | set(aliases.values()) if name.startswith("torch.")}
    unknown = {name for name in used if not name.startswith(MODULES)}
    assert unknown == set()
    modules = {name for name in used if type(_value(name)) is type(torch) and not name.startswith("torch.ops")}
    assert modules <= {*MODULES, "torch.backends.mkldnn"}


def _value(name: str) -> object:
    value: object = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def test_private_operators_are_named_in_one_module_alone() -> None:
    users = {path.name for path in SOURCES if "torch.ops." in path.read_text()}
    assert users == {"products.py"}
