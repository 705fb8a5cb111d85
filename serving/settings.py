"""Settings: environment variables, and flags of the same names. Imports neither torch nor a web framework."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

MIB = 1024 * 1024


class Settings(BaseSettings):
    """Forecasts over HTTP. Every flag is an environment variable too: --max-body-bytes is MAX_BODY_BYTES."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="ignore", frozen=True, hide_input_in_errors=True)

    model_path: Path | None = Field(
        None, description="checkpoint directory; models/Toto-2.0-313m where present, else models/toto2-nano"
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|(npu|cuda)(:\d{1,4})?)$", description="auto, cpu, npu:N or cuda:N")
    dtype: Literal["float32", "bfloat16", "float16", "int8"] = Field(
        "float32", description="type of weights and activations"
    )
    attention: Literal["auto", "fused", "composite"] = Field(
        "auto", description="one kernel, or products and a softmax; auto chooses by device and chip"
    )
    propagate_uncertainty: bool = Field(
        True, description="later blocks inherit the spread of earlier ones; false decodes as the published package does"
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="threads that compute on a CPU; all usable CPUs, fewer where others use them too",
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8040, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    api_keys_file: Path | None = Field(None, description="file of lines 'name key' or 'name sha256:HEX'")
    allow_unauthenticated: bool = Field(False, description="listen on other addresses than loopback without keys")
    max_seq_length: int = Field(32768, ge=32, description="steps of context used; longer ones lose their front")
    max_request_tokens: int = Field(
        8192, ge=2, description="most work of a request: variates x patches of 32 steps, context and horizon"
    )
    max_body_bytes: int = Field(16 * MIB, ge=1, description="largest body, in bytes, also once decompressed")
    max_concurrent_requests: int = Field(64, ge=1, description="requests admitted at once; more get 429")
    request_timeout_s: float = Field(60.0, gt=0, allow_inf_nan=False, description="seconds a request may wait")
    max_batch_tokens: int | None = Field(
        None, ge=2, description="most tokens in a batch of several requests; 2048 on a CPU, 32768 elsewhere"
    )
    batching: bool = Field(True, description="false runs one request at a time")
    drain_timeout_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="seconds between SIGTERM and the exit, at most"
    )
    stall_timeout_s: float = Field(
        600.0, gt=0, allow_inf_nan=False, description="seconds without progress after which /health is 503"
    )
    log_format: Literal["json", "console"] = Field("json", description="form of the log lines")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe level logged")

    @field_validator("device", "dtype", "attention", "log_format", "log_level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @property
    def loopback(self) -> bool:
        """Whether `host` can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read(arguments: Sequence[str]) -> Settings:
    """The settings, flags over environment. Exits with 2 and a line a problem where they are wrong."""
    flags = [_flag(word) for word in arguments]
    try:
        source = CliSettingsSource[object](
            Settings,
            cli_prog_name="server.py",
            cli_parse_args=flags,
            cli_kebab_case=True,
            cli_avoid_json=True,
            cli_hide_none_type=True,
        )
        return Settings(_cli_settings_source=source)  # type: ignore[call-arg]
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in problem["loc"])
            print(f"server.py: {name.upper()}: {problem['msg']} ({_meaning(name)})", file=sys.stderr)
        raise SystemExit(2) from None


def _meaning(name: str) -> str:
    field = Settings.model_fields.get(name)
    return (field.description if field else None) or "see --help"


def _flag(word: str) -> str:
    """`--MAX_BODY_BYTES=1` and `--max_body_bytes=1` are spelt `--max-body-bytes=1`."""
    name, equals, value = word.partition("=")
    return name.lower().replace("_", "-") + equals + value if name.startswith("--") else word
