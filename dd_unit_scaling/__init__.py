"""u-μP layers: unit-scaled operations with learning rates that carry over from one width to another."""

from dd_unit_scaling.modules import Linear, LinearReadout, PerDimScale, RMSNorm

__all__ = ["Linear", "LinearReadout", "PerDimScale", "RMSNorm"]
