"""``python -m training.sweep``: short runs over learning rates at several widths: the best one is to stay put."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from training.environment import keep_memory

WIDTHS = (32, 64, 128)
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the default learning rates, both optimisers together


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the held-out loss by width and learning rate, as a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m training.sweep", description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    import torch

    from training.batches import PATCH
    from training.schedule import Schedule
    from training.trainer import Settings, Trainer, held_out_loss

    torch.set_num_threads(args.threads)
    base = Settings(num_layers=4, patches_per_batch=1024)
    points = args.steps * base.patches_per_batch * PATCH
    print("| width | " + " | ".join(f"rate x{ratio:g}" for ratio in args.ratios) + " |")
    print("|" + "---|" * (len(args.ratios) + 1))
    for width in args.widths:
        losses = []
        for ratio in args.ratios:
            settings = replace(
                base, d_model=width, num_heads=max(width // 32, 1), d_ff=2 * width,
                muon_lr=base.muon_lr * ratio, adam_lr=base.adam_lr * ratio,
            )  # fmt: skip
            with tempfile.TemporaryDirectory() as state:
                trainer = Trainer(settings, Path(state), compiled=False)
                trainer.train(Schedule(points, points // 20, points * 3 // 10), None, 2 * points, lambda line: None)
                losses.append(held_out_loss(trainer.model))
        print(f"| {width} | " + " | ".join(f"{loss:.4f}" for loss in losses) + " |", flush=True)
    return 0


if __name__ == "__main__":
    keep_memory("training.sweep")
    raise SystemExit(main())
