"""Which optimiser has which weights."""

from __future__ import annotations

import torch
from torch import Tensor

from dd_unit_scaling.optim import AdamW, Muon
from toto2 import Toto2Model
from toto2.transformer import Layer

CLIP_NORM = 1.0


class Optimisers:
    """Muon for the hidden matrices, AdamW with u-μP learning rates for embedding, head, biases and scales."""

    def __init__(
        self, model: Toto2Model, muon_lr: float, adam_lr: float, weight_decay: float, bfloat16: bool = False
    ) -> None:
        pieces: dict[Tensor, int] = {}
        for layer in model.transformer.layers:
            assert isinstance(layer, Layer)
            # Queries, keys and values, and gate and value, are stored as one matrix each but are several.
            pieces |= {layer.attn.in_proj.weight: 3, layer.attn.out_proj.weight: 1}
            pieces |= {layer.ffn.fc1.weight: 2, layer.ffn.fc2.weight: 1}
        rest = [parameter for parameter in model.parameters() if parameter not in pieces]
        self.parameters = list(model.parameters())
        self.muon = Muon(list(pieces), lr=muon_lr, weight_decay=weight_decay, pieces=pieces,
                         dtype=torch.bfloat16 if bfloat16 else torch.float32)  # fmt: skip
        self.adamw = AdamW(
            rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=weight_decay, independent_weight_decay=False
        )
        self._peaks = [[float(group["lr"]) for group in each.param_groups] for each in (self.muon, self.adamw)]

    def step(self, factor: float) -> float:
        """One update at `factor` times the peak learning rates; answers the gradient's norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM))
        for optimiser, peaks in zip((self.muon, self.adamw), self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimiser.step()
            optimiser.zero_grad()
        return norm

    def state_dict(self) -> dict[str, object]:
        """What `load_state_dict` takes."""
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict[str, dict[str, object]]) -> None:
        """Go on from the moments of `state`; the peaks stay those given."""
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])
