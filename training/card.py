"""``python -m training.card``: write MODEL_CARD.md and its pictures from the logs of its stages and the scores.

Order: train, then ``python -m bench.accuracy --model DIR --json DIR/accuracy.json --plot DIR/real.png``, then this.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.accuracy import SCORES

LOG = "training.jsonl"
MORE_STAGES = """ A stage begins with the weights of the one before, and its held-out series follow the generator
and the masks of its time: its first row is the weights it began with."""

Stages = Sequence[Sequence[dict[str, Any]]]  # The log of each run that led to the weights, in order.


def main(arguments: Sequence[str] | None = None) -> int:
    """Refresh the card of a checkpoint directory."""
    parser = argparse.ArgumentParser(prog="python -m training.card", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("models/toto2-nano"), help="checkpoint directory")
    parser.add_argument(
        "--state",
        type=Path,
        nargs="+",
        help="take the logs of these runs, each the base of the next (default: those beside the model)",
    )
    args = parser.parse_args(arguments)
    from bench.shapes import draw_examples
    from inference import Engine
    from training.state import LOG_NAME, read_log

    if args.state is not None:
        entries = [
            {"stage": number} | entry
            for number, state in enumerate(args.state, start=1)
            for entry in read_log(state / LOG_NAME)
        ]
        (args.model / LOG).write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    entries = [json.loads(line) for line in (args.model / LOG).read_text(encoding="utf-8").splitlines()]
    stages = [list(group) for _, group in groupby(entries, itemgetter("stage"))]
    scores = json.loads((args.model / SCORES).read_text(encoding="utf-8"))
    engine = Engine.load(args.model, device="cpu")
    if engine.info.sha256 != scores["sha256"]:
        raise SystemExit(
            f"{SCORES} is of weights {scores['sha256'][:12]}, found {engine.info.sha256[:12]}: score them first"
        )
    draw_loss(stages, args.model / "loss.png")
    draw_examples(engine, args.model / "shapes.png")
    card = card_text(stages, scores, json.loads((args.model / "config.json").read_text(encoding="utf-8")))
    (args.model / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    print(f"{args.model / 'MODEL_CARD.md'}: written")
    return 0


def draw_loss(stages: Stages, path: Path) -> None:
    """Held-out and training loss over points seen in all, with the learning rate's course, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.6))
    rate = axis.twinx()
    before = 0.0
    for entries in stages:
        for values, key, style in (
            (axis, "train_loss", {"color": "0.7", "linewidth": 0.9, "label": "training"}),
            (axis, "held_out_loss", {"color": "C0", "label": "held out"}),
            (rate, "factor", {"color": "C1", "linewidth": 0.8, "linestyle": "--"}),
        ):
            logged = [entry for entry in entries if key in entry]
            points = [before + entry["points"] / 1e6 for entry in logged]
            values.plot(points, [entry[key] for entry in logged], **style)
        before += entries[-1]["points"] / 1e6
        if len(stages) > 1:
            axis.axvline(before, color="0.8", linewidth=0.6)
    axis.set(xlabel="million points", ylabel="mean pinball loss (asinh space)", yscale="log")
    rate.set(ylabel="learning rate, share of peak", ylim=(0, 1.05))
    lines, names = axis.get_legend_handles_labels()
    axis.legend(lines[:2], names[:2])
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def card_text(stages: Stages, scores: dict[str, Any], config: dict[str, Any]) -> str:
    """The card, Markdown."""
    ends, core, every = [entries[-1] for entries in stages], scores["means"]["core"], scores["means"]["all"]
    points, minutes = sum(end["points"] for end in ends) / 1e9, sum(end["seconds"] for end in ends) / 60
    steps = sum(end["step"] for end in ends)
    losses = [
        f"| {number} | {entry['points'] / 1e6:.0f} | {entry['seconds'] / 60:.0f} "
        f"| {_loss(entry, 'train_loss')} | {_loss(entry, 'held_out_loss')} |"
        for number, entries in enumerate(stages, start=1)
        for entry in [*entries[: -1 : max(len(entries) // 10, 1)], entries[-1]]
    ]
    means = [
        f"| {name} | {core[f'mase / {name}']:.3f} | {core[f'pinball / {name}']:.3f} | {every[f'mase / {name}']:.3f} |"
        for name in ("last value", "seasonal naive", "AutoETS")
        if f"mase / {name}" in core
    ]
    size = (
        f"{config['num_layers']} layers (the last over variates), width {config['d_model']}, {config['num_heads']} "
        f"heads, feed-forward {config['d_ff']}, patches of {config['patch_size']} steps"
    )
    shapes = " | ".join(f"{error:.3f}" for error in scores["shapes"].values())
    return f"""# toto2-nano

A small checkpoint of the Toto 2.0 architecture, trained from nothing in this repository on synthetic series alone, so
that a machine without network forecasts for real. It is not a published checkpoint, and no match for one.

| | |
|---|---|
| architecture | {size} |
| parameters | {scores["parameters"]:,} (float32, {scores["parameters"] * 4 / 1e6:.1f} MB) |
| weights' sha256 | `{scores["sha256"]}` |
| answers | quantiles 0.1 to 0.9 of each step |

## Data

Synthetic series only, made during training by `training/generator.py` from a seed: level, trend and season, added or
multiplied; load curves of days, weekends and holidays; clean cycles; exponential smoothing; random walks,
autoregressions and coloured noise; Gaussian processes of composed kernels; regimes, shifts and spikes; quasi-cycles;
counts and intermittent demand; lines and constants; filtered steps. Two rows in five share a signal with others of
their block, with lags; a third are bent, rounded, clipped or held; some have gaps. No real series was trained on, and
nothing was chosen by the scores below.

## Recipe

Contiguous patch masking (a share drawn from U(0, 0.4), spans of 1 to 16 patches, most of them short), the next patch
as target at every position, mean pinball loss over the nine quantiles in asinh space, batches of 131,072 points in
series of 32, 64 or 128 patches. u-μP throughout: Muon for the hidden matrices, AdamW for the rest; a warm-up, a stable
part and a linear decay to zero. `torch.compile`; bfloat16 where the processor has it, but for the embedding and the
head.

{points:.2f} billion points, {steps:,} steps, {minutes:.0f} minutes on two CPU cores.
Held-out loss {ends[-1]["held_out_loss"]:.4f}.{MORE_STAGES if len(ends) > 1 else ""}

![loss](loss.png)

| stage | million points | minutes | training loss | held-out loss |
|---|---|---|---|---|
{chr(10).join(losses)}

Again, with as many points (the decay then follows them and not the clock, so the weights differ):

    python -m training.train --out models/toto2-nano
    python -m bench.accuracy --json models/toto2-nano/accuracy.json --plot models/toto2-nano/real.png
    python -m training.card --state runs/nano

## Scores

Rolling origin on real series, up to ten windows each (`bench/accuracy.py`): geometric means of ratios, below one is
better than the other method.

| against | MASE | pinball loss | MASE with lynx and nile |
|---|---|---|---|
{chr(10).join(means)}

Coverage of the band from 0.1 to 0.9: {core["coverage"]:.2f}.

{_set_table(scores["rows"])}

![real series](real.png)

Error of the median on noise-free series, in deviations of the context:

| {" | ".join(scores["shapes"])} |
|{"---|" * len(scores["shapes"])}
| {shapes} |

![shapes](shapes.png)

## Limits

- A context under eight values is answered, but was never trained on.
- Periods past about 700 steps, and contexts past 4,096, were not seen in training.
- Trained on synthetic series: what real ones have and the generator has not, it does not know. Use a published
  checkpoint where one can be had.
"""


def _loss(entry: dict[str, Any], key: str) -> str:
    return f"{entry[key]:.4f}" if key in entry else ""


def _set_table(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0]["scores"])
    head = ["set", "horizon", "windows", *(f"MASE {name}" for name in names), "WQL", "coverage"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row["set"], str(row["horizon"]), str(row["windows"])]
        cells += [f"{row['scores'][name]['mase']:.2f}" for name in names]
        cells += [f"{row['scores']['model']['wql']:.4f}", f"{row['scores']['model']['coverage']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
