"""The training loss: mean pinball loss over the nine quantiles, in asinh space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from toto2 import QUANTILE_LEVELS, Toto2Model
from toto2.configuration import Toto2ModelConfig
from toto2.forward_pass import ForwardPass, VariateGroups
from toto2.passes import teacher_forced_pass
from toto2.rotary import Rotation
from training.batches import Batch
from training.generator import VARIATES


@dataclass(frozen=True)
class Step:
    """A batch as tensors; the masks and tables of its pass are plain tensors, so that one compiled graph serves all."""

    inputs: Tensor  # (R, S, 64)
    query: Tensor
    key: Tensor
    time_mask: Tensor  # 0 where seen, -inf where not (R, 1, S, S)
    variate_mask: Tensor  # likewise (R / 4, S, 4, 4)
    targets: Tensor  # (R, S, 32)
    weights: Tensor  # (R, S, 32)


def step_tensors(batch: Batch, config: Toto2ModelConfig) -> Step:
    """The batch on the CPU, with its masks: variates of one party see each other, and missing patches no one."""
    forward_pass = teacher_forced_pass(torch.from_numpy(batch.members), VARIATES, config)
    party = torch.from_numpy(batch.partition).unflatten(0, (-1, VARIATES))
    same = (party[:, None, :] == party[:, :, None])[:, None]
    mask, time_mask = forward_pass.variates[0].mask, forward_pass.time_mask
    assert mask is not None
    assert time_mask is not None
    inputs = torch.cat((torch.from_numpy(batch.patches), torch.from_numpy(batch.missing)), dim=-1)
    targets, weights = torch.from_numpy(batch.targets), torch.from_numpy(batch.weights)
    rotation = forward_pass.rotation
    masks = _additive(time_mask), _additive(mask & same)
    return Step(inputs, rotation.query, rotation.key, *masks, targets, weights)


def _additive(mask: Tensor) -> Tensor:
    """0 where a bool mask is True, -inf where it is False."""
    return torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))


def pinball(quantiles: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Mean pinball loss of quantiles (…, 9) at targets (…) over what the weights (…) count."""
    levels = torch.tensor(QUANTILE_LEVELS)
    error = targets[..., None] - quantiles
    loss = torch.maximum(levels * error, (levels - 1) * error).mean(-1)
    return (loss * weights).sum() / weights.sum().clamp_min(1)


def quantiles_of(model: Toto2Model, step: Step, bfloat16: bool) -> Tensor:
    """Quantiles float32 (R, S, 32, 9) of the next patch at every position.

    The embedding stays in float32, since bfloat16 would round away a small season on a large trend, and so does the
    head, since it would round a narrow band. Attention is written out: over 4 variates or 32 to 128 patches the fused
    backward is the slowest part of a step.
    """
    groups = VariateGroups(len(step.inputs) // VARIATES, VARIATES, mask=step.variate_mask)
    rotation = Rotation(step.query, step.key)
    forward_pass = ForwardPass(
        step.inputs.shape[1], rotation, step.time_mask, step.time_mask, (groups,), composite_attention=True
    )
    x = model.patch_proj(step.inputs)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        x = model.transformer(x, forward_pass)
    return model.output_head(x.float()).unflatten(-1, (-1, len(QUANTILE_LEVELS)))


def batch_loss(model: Toto2Model, step: Step, bfloat16: bool) -> Tensor:
    """The loss of one batch, a scalar."""
    return pinball(quantiles_of(model, step, bfloat16), step.targets, step.weights)
