"""The command line over the engine: a demo, a file, or many files in batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from files.forecast import draw, to_csv, to_json
from files.table import Table, TableError, read_table
from inference import MAX_CONTEXT, PATCH, Engine, Forecast, ForecastRequest, UnusableRequest
from make_test_data import NAMES, demo_series

MAX_HORIZON = 4096
BATCH_TOKENS = 4096  # rows × patches forecast at once from many files

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def forecast(
    input: Annotated[
        list[Path] | None,
        typer.Option(help="CSV file: a header, a column a variate, blanks missing, a column of times if you like. "
                     "Repeat it for more files, which are forecast in batches. Without it, a demo series."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the forecast (.json or .csv), or a folder for those of several inputs. "
                     "Without it, CSV of an input goes to standard output."),
    ] = None,
    format: Annotated[str, typer.Option(help="csv or json; taken from --output's ending where it has one.")] = "csv",
    plot: Annotated[Path | None, typer.Option(help="PNG of context, median and bands (one input).")] = None,
    prediction_length: Annotated[int, typer.Option(min=1, max=MAX_HORIZON, help="Steps to forecast.")] = 96,
    decode_block_size: Annotated[
        int, typer.Option(help="Steps decoded in one pass, a multiple of 32; 0 decodes all in one.")
    ] = 768,
    model: Annotated[
        Path | None,
        typer.Option(help="Checkpoint folder; models/Toto-2.0-313m where present, else models/toto2-nano."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, npu:N or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 (accelerators) or int8 (CPU).")] = "float32",
    attention: Annotated[str, typer.Option(help="auto, fused or composite.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all that the process may use.")] = None,
    max_context: Annotated[int, typer.Option(min=PATCH, help="Steps of context used, the last ones.")] = MAX_CONTEXT,
    num_variates: Annotated[int, typer.Option(min=1, help="Variates of the demo series.")] = 3,
    time_steps: Annotated[int, typer.Option(min=1, help="Steps of the demo series.")] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the demo series.")] = 0,
) -> None:  # fmt: skip
    """Forecast series: nine quantiles of what comes next."""
    inputs = input or []
    suffix = _suffix(output, format)
    if decode_block_size < 0 or decode_block_size % PATCH:
        _fail(f"--decode-block-size must be a multiple of {PATCH}, or 0, found {decode_block_size}")
    if len(inputs) > 1 and plot:
        _fail(f"--plot draws one input, found {len(inputs)}")
    if plot and plot.suffix.lower() != ".png":
        _fail(f"--plot must end in .png, found {str(plot)!r}")
    targets = _targets(inputs, output, suffix)
    tables = [_table(path) for path in inputs] or [_demo(num_variates, time_steps, seed)]
    block = decode_block_size or None
    requests = [ForecastRequest(table.values, prediction_length, block) for table in tables]
    engine = _load(model, device, dtype, max_context, threads, attention)
    start = time.perf_counter()
    forecasts = _forecast(engine, requests, inputs)
    variates = _count(sum(len(table.names) for table in tables), "variate")
    _say(f"{variates}, {_count(prediction_length, 'step')} each, in {time.perf_counter() - start:.3f} s")
    about = {"model": engine.info.name, "device": engine.info.device, "dtype": engine.info.dtype}
    texts = [
        to_csv(table, answer) if suffix == "csv" else to_json(table, answer, dict(about))
        for table, answer in zip(tables, forecasts, strict=True)
    ]
    try:
        if plot:
            draw(tables[0], forecasts[0], plot)
        _write(texts, targets, to_standard_output=bool(inputs))
    except OSError as error:
        _fail(f"{error.filename}: cannot be written: {error.strerror}")
    if output is None and not inputs:
        _summary(tables[0], forecasts[0])


def _suffix(output: Path | None, format: str) -> str:
    """csv or json: what --output's ending says, else --format."""
    if format.lower() not in ("csv", "json"):
        _fail(f"--format must be csv or json, found {format!r}")
    ending = output.suffix[1:].lower() if output and not output.is_dir() else ""
    if ending and ending not in ("csv", "json"):
        _fail(f"--output must end in .csv or .json, or be a folder, found {str(output)!r}")
    return ending or format.lower()


def _targets(inputs: Sequence[Path], output: Path | None, suffix: str) -> list[Path]:
    """The files to write: none for standard output; no two alike, and none of them an input."""
    if output is None:
        if len(inputs) > 1:
            _fail(f"--output must name a folder for {len(inputs)} inputs")
        return []
    if len(inputs) > 1 and (output.is_file() or output.suffix):
        _fail(f"--output must be a folder for {len(inputs)} inputs, found {str(output)!r}")
    if output.suffix or (len(inputs) <= 1 and not output.is_dir()):
        targets = [output]
    else:
        targets = [output / f"{path.stem}.forecast.{suffix}" for path in inputs or [Path("demo")]]
    for path, target in zip(inputs, targets, strict=False):
        if targets.count(target) > 1:
            _fail(f"{path}: another input's forecast would also be {target}; give the files different names")
        if any(target.exists() and target.samefile(other) for other in inputs if other.exists()):
            _fail(f"--output would overwrite the input {target}")
    return targets


def _table(path: Path) -> Table:
    try:
        table = read_table(path)
    except TableError as error:
        _fail(str(error))
    if table.times is not None and table.step is None:
        _say(f"{path}: its times are not evenly spaced; they are taken as consecutive steps, and the forecast has none")
    return table


def _demo(variates: int, steps: int, seed: int) -> Table:
    names = [*NAMES[:variates], *(f"variate_{index}" for index in range(len(NAMES), variates))]
    return Table(names, demo_series(variates, steps, seed))


def _load(model: Path | None, device: str, dtype: str, max_context: int, threads: int | None, attention: str) -> Engine:
    from toto2.checkpoint import CheckpointError
    from toto2.device import DeviceAbsent

    try:
        engine = Engine.load(model, device, dtype, max_context, threads, attention)
    except (CheckpointError, DeviceAbsent, ValueError) as error:
        _fail(str(error), code=1)
    info = engine.info
    _say(f"{info.name} ({info.parameters:,} parameters, {info.dtype}) on {info.device}, "
         f"{_count(info.threads, 'thread')}, loaded in {info.load_seconds:.2f} s")  # fmt: skip
    return engine


def _forecast(engine: Engine, requests: Sequence[ForecastRequest], paths: Sequence[Path]) -> list[Forecast]:
    answers: list[Forecast] = []
    batch: list[ForecastRequest] = []
    for request in requests:
        if batch and sum(r.tokens(engine.info.max_context) for r in [*batch, request]) > BATCH_TOKENS:
            answers += _run(engine, batch, paths[len(answers) :])
            batch = []
        batch.append(request)
    return answers + _run(engine, batch, paths[len(answers) :])


def _run(engine: Engine, batch: list[ForecastRequest], paths: Sequence[Path]) -> list[Forecast]:
    try:
        return engine.forecast(batch)
    except UnusableRequest as error:
        _fail(f"{', '.join(map(str, paths[: len(batch)]))}: {error}")


def _write(texts: Sequence[str], targets: Sequence[Path], to_standard_output: bool) -> None:
    if not targets and to_standard_output:
        sys.stdout.write(texts[0])
    for target, text in zip(targets, texts, strict=False):
        if len(targets) > 1:
            target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        _say(f"wrote {target}")


def _summary(table: Table, answer: Forecast) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    steps = answer.quantiles.shape[2]
    shown = RichTable(title="steps from the end of the context: median [0.1 quantile, 0.9 quantile]")
    chosen = sorted({1, max(steps // 4, 1), max(steps // 2, 1), steps})
    for heading in ("variate", *(str(step) for step in chosen)):
        shown.add_column(heading)
    for index, name in enumerate(table.names):
        low, median, high = (answer.quantiles[level, index] for level in (0, 4, 8))
        shown.add_row(name, *(f"{median[s - 1]:.4g} [{low[s - 1]:.4g}, {high[s - 1]:.4g}]" for s in chosen))
    Console().print(shown)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _fail(text: str, code: int = 2) -> NoReturn:
    _say(f"error: {text}")
    raise typer.Exit(code)
