#!/usr/bin/env python3
"""Download the published Toto 2.0 weights, or verify the ones that are there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from toto2.safetensors_header import CheckpointError
from weights.download import download, take_local
from weights.hubs import Hub, HubError, HuggingFace, ModelScope
from weights.manifest import SIZES, VerificationError, model_name
from weights.verification import VerifiedFile, verify

MODELS = Path(__file__).resolve().parent / "models"
HUBS: dict[str, Callable[[], Hub]] = {"modelscope": ModelScope, "huggingface": HuggingFace}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 where the model is there, whole and verified."""
    options = _parser().parse_args(arguments)
    size = options.model or "313m"
    directory = options.dir or MODELS / model_name(size)
    try:
        if options.verify:
            asked = options.model if options.dir else size
            found, files = verify(directory, asked)
            _print_table(directory, model_name(found) if found else "a model of no published size", files)
        elif options.offline:
            _print_table(directory, model_name(size), take_local(size, directory, _say))
        else:
            hub = HUBS[options.source]()
            _print_table(directory, model_name(size), download(size, directory, hub, options.attempts, _say))
    except (CheckpointError, HubError, VerificationError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or directory}: {error.strerror or error}")
    except ModuleNotFoundError as error:
        return _fail(f"the package {error.name} is missing; run .venv/bin/python, or pip install -r requirements.txt")
    except KeyboardInterrupt:
        return _fail("stopped; the same command goes on from here")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Environment: MODELSCOPE_ENDPOINT and HF_ENDPOINT name a mirror, MODELSCOPE_CACHE a cache whose "
        "copies are used, HTTPS_PROXY a proxy.",
    )
    parser.add_argument("--model", choices=SIZES, help="published size (default: 313m)")
    parser.add_argument("--source", choices=HUBS, default="modelscope", help="hub (default: modelscope)")
    parser.add_argument("--dir", type=_directory, help="where to put it (default: models/Toto-2.0-SIZE)")
    parser.add_argument("--attempts", type=_positive, default=5, help="tries of each step (default: 5)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--verify", action="store_true", help="only check what is there; opens no connection")
    mode.add_argument("--offline", action="store_true", help="open no connection; use what this machine has")
    return parser


def _directory(text: str) -> Path:
    return Path(text).expanduser()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return int(text)


def _print_table(directory: Path, name: str, files: list[VerifiedFile]) -> None:
    print(f"{directory}: {name}, complete")
    for file in files:
        print(f"  {file.path.name}  {file.size:,} bytes  sha256 {file.sha256}  agrees with {file.agrees_with}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _fail(line: str) -> int:
    _say(f"download_model.py: {line}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
