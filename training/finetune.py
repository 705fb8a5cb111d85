"""``python -m training.finetune --data FILE.csv --base models/toto2-nano --out DIR``: adapt a checkpoint to a table.

The end of the table is kept back: one part says when to stop, the last one whether the result is better than the base.
Where it is not, nothing is written. The service serves the result with ``MODEL_PATH=DIR``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from training.environment import keep_memory


def parser() -> argparse.ArgumentParser:
    """The command line. Needs no torch."""
    made = argparse.ArgumentParser(prog="python -m training.finetune", description=(__doc__ or "").split("\n")[0])
    made.add_argument(
        "--data", type=Path, required=True, help="CSV: a header, an optional time column, a column a variate"
    )
    made.add_argument("--base", type=Path, default=Path("models/toto2-nano"), help="checkpoint to start from")
    made.add_argument("--out", type=Path, required=True, help="where the tuned checkpoint goes")
    made.add_argument("--horizon", type=int, default=96, help="steps ahead that it is judged by")
    made.add_argument("--max-steps", type=int, default=400)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--seed", type=int, default=0)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the result beats the base and is written; 1 where it does not; 2 where table or base can't be used."""
    args = parser().parse_args(arguments)
    import torch

    from files.table import TableError, read_table
    from toto2 import Toto2Model
    from toto2.checkpoint import CheckpointError, save, weights_sha256
    from training.tuning import split, tune

    torch.set_num_threads(args.threads)
    try:
        parts = split(read_table(args.data).values, args.horizon)
        loaded = Toto2Model.from_pretrained(args.base)
    except (TableError, CheckpointError, ValueError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    # A loaded model's tensors are the file's; one made anew has the u-μP kinds of its parameters, which training needs.
    model = Toto2Model(loaded.config)
    model.load_state_dict(loaded.state_dict())
    verdict = tune(model, parts, args.horizon, args.max_steps, args.seed, lambda line: print(line, flush=True))
    last = parts.values.shape[1] - parts.stop
    losses = f"loss on the last {last} steps {verdict.tuned_loss:.4f}, base {verdict.base_loss:.4f}"
    if not verdict.better:
        print(f"refused: {losses}; nothing written", file=sys.stderr)
        return 1
    save(args.out, model.config, model.state_dict())
    about = {"base": str(args.base), "base_sha256": weights_sha256(args.base), **vars(verdict), "horizon": args.horizon}
    (args.out / "finetuned.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"{args.out}: {losses}, after {verdict.steps} steps")
    return 0


if __name__ == "__main__":
    keep_memory("training.finetune")
    raise SystemExit(main())
