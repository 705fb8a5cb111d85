"""What a run needs to go on exactly where it stopped, and its log."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

STATE_NAME = "state.pt"
LOG_NAME = "log.jsonl"


@dataclass
class Progress:
    """How far a run is: batches drawn (which name the next one), points of series seen, seconds of training."""

    step: int = 0
    points: int = 0
    seconds: float = 0.0


def save_state(directory: Path, progress: Progress, settings: dict[str, Any], model: Any, optimisers: Any) -> None:
    """Write the state; the file under its name is always whole."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f"{STATE_NAME}.{os.getpid()}"
    torch.save(
        {
            "progress": asdict(progress),
            "settings": settings,
            "model": model.state_dict(),
            "optimisers": optimisers.state_dict(),
        },
        temporary,
    )
    temporary.replace(directory / STATE_NAME)


def load_state(directory: Path) -> dict[str, Any] | None:
    """The state last saved, or None where there is none."""
    path = directory / STATE_NAME
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def append_log(directory: Path, entry: dict[str, Any]) -> None:
    """One line of JSON."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOG_NAME).open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log, without those that a restart from an earlier state did again."""
    entries: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        while entries and entries[-1]["points"] >= entry["points"]:
            entries.pop()
        entries.append(entry)
    return entries
