"""Models on reference weights, for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from reference_weights import reference_state_dict

from toto2 import Toto2Model, Toto2ModelConfig
from toto2.checkpoint import save
from toto2.device import Device
from toto2.folding import fold

SMALL = Toto2ModelConfig(
    d_model=64, num_heads=4, num_layers=4, qk_dim=16, v_dim=16, d_ff=176, attn_bias=True, norm_eps=1e-4
)


def reference_model(config: Toto2ModelConfig = SMALL) -> Toto2Model:
    """The plain model, factors explicit."""
    with torch.device("meta"):
        model = Toto2Model(config)
    state = {
        name: torch.tensor(0.0) if name.endswith("_tau") else torch.empty(tensor.shape)
        for name, tensor in model.state_dict().items()
    }
    for index, layer in enumerate(model.transformer.layers):
        for name, tau in zip(("attn_tau", "mlp_tau"), layer.taus, strict=True):  # type: ignore[arg-type]
            state[f"transformer.layers.{index}.{name}"] = torch.tensor(tau)
    model.load_state_dict(reference_state_dict(state), assign=True)
    return model.eval()


def folded_model(config: Toto2ModelConfig = SMALL) -> Toto2Model:
    """The model in the form that the engine runs on the CPU."""
    return fold(reference_model(config), Device("cpu").placement("float32"))


def save_reference_checkpoint(directory: Path, config: Toto2ModelConfig = SMALL) -> Path:
    """Write a checkpoint with reference weights."""
    save(directory, config, reference_model(config).state_dict())
    return directory
