"""The Toto 2.0 network: patches in, quantiles of the next patch out."""

from __future__ import annotations

from torch import Tensor, nn

from toto2.configuration import Toto2ModelConfig
from toto2.forward_pass import ForwardPass
from toto2.residual_mlp import ResidualMLP
from toto2.transformer import Transformer

QUANTILE_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MEDIAN = QUANTILE_LEVELS.index(0.5)


class OutputHead(nn.Module):
    """(…, d_model) → (…, patch_size · 9), element p·9 + q the quantile q of step p."""

    def __init__(self, config: Toto2ModelConfig) -> None:
        super().__init__()
        width = config.patch_size * len(QUANTILE_LEVELS)
        self.param_projection = nn.ModuleDict(
            {"proj": ResidualMLP(config.d_model, 4 * config.d_model, width, readout=True)}
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.param_projection["proj"](x)


class Toto2Network(nn.Module):
    """Embedding, layer stack and head. No IO, and no state between calls: that belongs to the `ForwardPass`."""

    def __init__(self, config: Toto2ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_proj = ResidualMLP(2 * config.patch_size, 4 * config.d_model, config.d_model)
        self.transformer = Transformer(config)
        self.output_head = OutputHead(config)

    def forward(self, patches: Tensor, forward_pass: ForwardPass) -> Tensor:
        """Quantiles of the patch after each wanted column, in the scaled space of the inputs.

        patches (R, S, 2·patch_size): asinh of the scaled values, zero where missing, then the flags
        "missing" (1.0 or 0.0). Returns (R, wanted, patch_size, 9).
        """
        x = self.patch_proj(patches)  # (R, S, d_model)
        x = self.transformer(x, forward_pass)  # (R, wanted, d_model)
        return self.output_head(x).unflatten(-1, (self.config.patch_size, len(QUANTILE_LEVELS)))
