"""What is known of the published files before any hub is asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from toto2.configuration import PUBLISHED

OWNER = "Datadog"
SIZES = tuple(PUBLISHED)


class VerificationError(ValueError):
    """A file that is not the published one: one line with file, expected, actual and bytes."""


@dataclass(frozen=True)
class Known:
    """A published file's size in bytes and its sha256, or as much of them as is known."""

    size: int | None = None
    sha256_start: str = ""
    sha256_end: str = ""

    @property
    def is_full(self) -> bool:
        return len(self.sha256_start) == 64

    def check(self, file: str | Path, size: int, sha256: str | None) -> None:
        """Raise ``VerificationError`` where ``size`` or ``sha256`` is not the published file's."""
        if self.size is not None and size != self.size:
            raise VerificationError(f"{file}: expected {self.size} bytes, found {size} bytes")
        if sha256 and not (sha256.startswith(self.sha256_start) and sha256.endswith(self.sha256_end)):
            expected = self.sha256_start if self.is_full else f"{self.sha256_start}…{self.sha256_end}"
            raise VerificationError(f"{file}: expected sha256 {expected}, found {sha256} ({size} bytes)")


NOTHING = Known()

MANIFEST: dict[str, dict[str, Known]] = {
    "4m": {
        "config.json": Known(592, "7a926d130e401ab0c5fdb3564f46c8d917bd05c7b3ae26b9c22d2da2ef01d2d8"),
        "model.safetensors": Known(16_582_848, "316660d5afb47943e531f39242e0b02ca0b8bb73be5709dfe07ca80dfce9805e"),
    },
    "22m": {
        "config.json": Known(593, "abeaf0fcd54aaac66757fde69ec3ddb4d3bfdcf96e0c8f767aefd03ab4c9e8d9"),
        "model.safetensors": Known(87_669_368, "9cd503d82df3aa71747862688f47a31c1d0a4b80f898df6e046189016eaa21dd"),
    },
    "313m": {"model.safetensors": Known(1_250_763_568, "5ee60664", "aa2f9")},
}


def known(size: str, file: str) -> Known:
    """What is known of ``file`` of a published size."""
    return MANIFEST.get(size, {}).get(file, NOTHING)


def model_name(size: str) -> str:
    """The published name, which is also the directory's: ``Toto-2.0-313m``."""
    return f"Toto-2.0-{size}"


def repository(size: str) -> str:
    """Owner and name on both hubs."""
    return f"{OWNER}/{model_name(size)}"
