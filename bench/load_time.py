"""How long a checkpoint takes to load, against reading its file, and how much memory that takes.

    python bench/load_time.py                      # 313m with random weights, written to a temporary directory
    python bench/load_time.py --directory models/toto2-nano --rounds 9

Each measurement is a process of its own, and the kinds take turns, so that a drift of the machine falls on all:
`read` reads the weights' file into memory, `load` is `Toto2Model.from_pretrained`, `fold` is that and the folding
that the engine does. Cold rounds drop the file from the page cache first. On a busy machine go by the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("read", "load", "fold")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="checkpoint (default: random weights of --size)")
    parser.add_argument("--size", default="313m", help="published size (default: 313m)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="from the disk, not from the page cache")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.directory)))
    elif options.directory:
        compare(options.directory, options.rounds, options.cold)
    else:
        with tempfile.TemporaryDirectory() as directory:
            write_random(Path(directory), options.size)
            compare(Path(directory), options.rounds, options.cold)


def write_random(directory: Path, size: str) -> None:
    """A checkpoint of a published size with random weights."""
    sys.path.insert(0, str(ROOT))
    import torch

    from toto2 import Toto2Model
    from toto2.checkpoint import save
    from toto2.configuration import PUBLISHED, state_dict_shapes

    config = PUBLISHED[size]
    with torch.device("meta"):
        layers = Toto2Model(config).transformer.layers
    state = {name: torch.randn(shape) for name, shape in state_dict_shapes(config).items()}
    for index, layer in enumerate(layers):
        for name, tau in zip(("attn_tau", "mlp_tau"), layer.taus, strict=True):  # type: ignore[arg-type]
            state[f"transformer.layers.{index}.{name}"] = torch.tensor(tau)
    save(directory, config, state)


def compare(directory: Path, rounds: int, cold: bool) -> None:
    weights = directory / "model.safetensors"
    results: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            if cold:
                drop_from_cache(weights)
            command = [sys.executable, __file__, "--measure", kind, "--directory", str(directory)]
            results[kind].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    size = weights.stat().st_size
    print(f"{weights.name}: {size:,} bytes, {rounds} rounds, {'cold' if cold else 'warm'}; (times reading)")
    medians = {
        kind: {name: statistics.median(result[name] for result in measured) for name in measured[0]}
        for kind, measured in results.items()
    }
    for kind, median in medians.items():
        wall, cpu = (f"{median[unit]:.3f} s ({median[unit] / medians['read'][unit]:.2f})" for unit in ("wall", "cpu"))
        print(f"{kind}: {wall}, CPU {cpu}, peak {median['peak_bytes'] / size:.2f} copies")


def drop_from_cache(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())  # only clean pages are dropped
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(kind: str, directory: Path) -> dict[str, float]:
    """Seconds by the clock and of the CPU, and the peak of resident memory in bytes above what the imports took."""
    sys.path.insert(0, str(ROOT))
    from toto2 import Toto2Model
    from toto2.device import Device
    from toto2.folding import fold

    placement = Device("cpu").placement("float32")
    before = resident_bytes()
    start, cpu_start = time.perf_counter(), time.process_time()
    if kind == "read":
        held: object = (directory / "model.safetensors").read_bytes()
    else:
        held = model = Toto2Model.from_pretrained(directory)
        if kind == "fold":
            held = fold(model, placement)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    del held
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall": wall, "cpu": cpu, "peak_bytes": peak - before}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
