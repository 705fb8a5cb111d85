"""``python -m training.train --out models/toto2-nano``: train the embedded checkpoint on synthetic series."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from training.environment import keep_memory

DEFAULT_POINTS = 3_440_000_000  # what the committed checkpoint has seen


def parser() -> argparse.ArgumentParser:
    """The command line. Needs no torch."""
    made = argparse.ArgumentParser(prog="python -m training.train", description=__doc__)
    made.add_argument("--out", type=Path, default=Path("models/toto2-nano"), help="where the checkpoint goes")
    made.add_argument("--state", type=Path, default=Path("runs/nano"), help="state and log; a run goes on from there")
    made.add_argument("--base", type=Path, help="a checkpoint of the same shape that a new run begins with")
    made.add_argument("--points", type=int, default=DEFAULT_POINTS, help="points of series to train on, in all")
    made.add_argument("--decay-from", type=int, help="points at which the decay begins (default: 30 %% of --points)")
    made.add_argument("--minutes", type=float, help="end here at the latest, fully decayed (then not repeatable)")
    made.add_argument("--log-every", type=int, default=40_000_000, help="points between two lines of the log")
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--eager", action="store_true", help="float32 without compilation: slower, no compiler needed")
    made.add_argument("--evaluate", action="store_true", help="held-out loss of the checkpoint in --out; no training")
    for name, kind in (("seed", int), ("d-model", int), ("num-heads", int), ("num-layers", int), ("d-ff", int),
                       ("patches-per-batch", int), ("muon-lr", float), ("adam-lr", float)):  # fmt: skip
        made.add_argument(f"--{name}", type=kind, help="see training.trainer.Settings")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Train or evaluate; 0 where the run is complete, 3 where it was stopped and can go on."""
    args = parser().parse_args(arguments)
    import torch

    from toto2 import Toto2Model
    from toto2.checkpoint import save
    from training.schedule import Schedule
    from training.trainer import Settings, Trainer, held_out_loss

    torch.set_num_threads(args.threads)
    if args.evaluate:
        print(f"{args.out}: held-out loss {held_out_loss(Toto2Model.from_pretrained(args.out)):.5f}")
        return 0
    given = {field.name: getattr(args, field.name, None) for field in fields(Settings)}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    decay_from = args.points * 3 // 10 if args.decay_from is None else args.decay_from
    schedule = Schedule(args.points, min(args.points // 50, decay_from), decay_from)
    trainer = Trainer(settings, args.state, compiled=not args.eager, base=args.base)
    seconds = None if args.minutes is None else 60 * args.minutes
    complete = trainer.train(schedule, seconds, args.log_every, lambda line: print(line, flush=True))
    if not complete:
        print(f"stopped at {trainer.progress.points:,} points; the same command goes on from {args.state}")
        return 3
    save(args.out, trainer.model.config, trainer.model.state_dict())
    print(f"{args.out}: {trainer.progress.points:,} points in {trainer.progress.seconds / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    keep_memory("training.train")
    raise SystemExit(main())
