"""What a device can do wrong. Kept free of torch, so that whoever handles it need not import a backend."""

from __future__ import annotations


class DeviceAbsent(ValueError):
    """The device that was asked for is not there: one line that says what is."""


class OutOfDeviceMemory(RuntimeError):
    """An allocation was refused; the device is sound, and less work may fit."""


class DeviceFailure(RuntimeError):
    """The device cannot be trusted any more: whoever serves from it must stop."""
