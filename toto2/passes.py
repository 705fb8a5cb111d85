"""Which columns each pass reads, and the masks and tables that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toto2.cache import KVCache
from toto2.configuration import Toto2ModelConfig
from toto2.forward_pass import ForwardPass, VariateGroups
from toto2.rotary import Rotation, on_device, rotation
from toto2.rows import Integers, Rows, groups_of
from toto2.scaler import Bools

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """Where and how the network runs.

    complex_rotation: the device multiplies complex64, and queries are float32.
    composite_attention: attention from single operators, instead of the fused kernel.
    packed: products through oneDNN on packed weights (`toto2.products`).
    int8_weights: those products on weights rounded to 8 bits.
    """

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    complex_rotation: bool = True
    composite_attention: bool = False
    packed: bool = False
    int8_weights: bool = False


class PassColumns:
    """The geometry of a call, and the slots that its cache has filled so far.

    look_ahead: a pass that another follows also answers for that one's first patch.
    """

    def __init__(self, rows: Rows, config: Toto2ModelConfig, look_ahead: bool = False) -> None:
        self.rows, self.config, self.look_ahead = rows, config, look_ahead
        self.context = rows.values.shape[1]
        self.several = bool((rows.passes > 1).any())
        self._slot_positions = np.zeros((len(rows.values), 0), np.int64)
        self._slot_members = np.zeros((len(rows.values), 0), np.bool_)

    def active(self, index: int) -> int:
        """Rows that pass `index` decodes: they come first."""
        return int((self.rows.passes > index).sum())

    def observed_columns(self, index: int) -> int:
        """Columns that pass `index` adds to the cache: the context, or the longest earlier block."""
        return self.context if index == 0 else int(self.rows.block[: self.active(index)].max())

    def decoded(self, index: int) -> Integers:
        """Patches that pass `index` decodes in each of its rows, (n,)."""
        return self._at_most(self.rows.block, index)

    def masked(self, index: int) -> Integers:
        """Patches that pass `index` answers for in each of its rows, (n,)."""
        return self._at_most(self.rows.block + self.look_ahead, index)

    def _at_most(self, patches: Integers, index: int) -> Integers:
        return np.minimum(patches, self.rows.horizon - index * self.rows.block)[: self.active(index)]

    def slots(self, passes: int) -> int:
        """Cache slots that the call needs: observed columns so far, and the pass's own."""
        kept, most = 0, 0
        for index in range(passes):
            observed = self.observed_columns(index)
            most = max(most, kept + observed + int(self.masked(index).max()) - 1)
            kept += observed
        return most

    def layout(self, index: int, member: Bools) -> PassLayout:
        """Pass `index`: n rows of the observed columns, then all masked ones but the last, which no one reads.

        `member` (R, P + H): the tape's patches that belong to their series.
        """
        rows, active = self.rows, self.active(index)
        observed, masked = self.observed_columns(index), self.masked(index)
        own = self.context - rows.leading[:active] if index == 0 else rows.block[:active]
        first = self.context + index * rows.block[:active] - observed  # position of column 0
        column = np.arange(observed + int(masked.max()) - 1)
        # A row with fewer columns than the widest has others' positions in front: padding, of no series.
        padding = (column < observed - own[:, None]) & (index > 0)
        tape = np.minimum(np.maximum(first[:, None] + column, 0), member.shape[1] - 1)
        members = np.take_along_axis(member[:active], tape, axis=1) & ~padding
        end = (self.context - rows.leading[:active]) + index * rows.block[:active] + self.decoded(index)
        before = self._slot_positions[:active], self._slot_members[:active]
        layout = PassLayout(
            rows, self.config, observed, masked, first, rows.leading[:active] + end // 2, tape, padding, members,
            before, self.several,
        )  # fmt: skip
        self._slot_positions = np.concatenate((before[0], layout.positions[:, :observed]), axis=1)
        self._slot_members = np.concatenate((before[1], members[:, :observed]), axis=1)
        return layout


@dataclass(frozen=True)
class PassLayout:
    """One pass over n rows of S columns; the last max(masked) columns are the wanted ones.

    first, centres (n,): position of column 0 and of the xPos centre. tape_columns, padding, members (n, S).
    """

    all_rows: Rows
    config: Toto2ModelConfig
    observed_columns: int
    masked: Integers
    first: Integers
    centres: Integers
    tape_columns: Integers
    padding: Bools
    members: Bools
    slots: tuple[Integers, Bools]
    several: bool

    @property
    def rows(self) -> int:
        """Rows of this pass."""
        return len(self.masked)

    @property
    def wanted(self) -> int:
        """Trailing columns whose outputs are read."""
        return int(self.masked.max())

    @property
    def positions(self) -> Integers:
        """Position of every column in patches, (n, S)."""
        return self.first[:, None] + np.arange(self.members.shape[1])

    def forward_pass(self, placement: Placement, cache: KVCache | None) -> ForwardPass:
        """The masks and tables of this pass on the device."""
        mask = self._time_mask()
        if mask is None and placement.composite_attention:
            mask = np.tri(self.members.shape[1], dtype=np.bool_)[None]
        wanted_mask = self._causal_tail() if mask is None else mask[:, -self.wanted :]
        return ForwardPass(
            wanted=self.wanted,
            rotation=self._rotation(placement),
            time_mask=None if mask is None else _mask_on(mask[:, None], placement),
            wanted_mask=None if wanted_mask is None else _mask_on(wanted_mask[:, None], placement),
            variates=self._variates(placement),
            cache=cache,
            composite_attention=placement.composite_attention,
        )

    def _rotation(self, placement: Placement) -> Rotation:
        # In a single pass the centre cancels between queries and keys: one table serves every row.
        centres = self.centres if self.several else self.centres[:1]
        first = self.first if self.several else self.first[:1]
        if (centres == centres[0]).all() and (first == first[0]).all():
            centres, first = centres[:1], first[:1]
        columns = self.members.shape[1]
        tables = rotation(first, columns, centres, self.config.qk_dim, self.config.use_xpos)
        query, key = (on_device(t, placement.device, placement.complex_rotation) for t in tables)
        return Rotation(query, key)

    def _time_mask(self) -> Bools | None:
        """(n or 1, S, K): a column sees those at or before it that belong to its series as it does."""
        slot_positions, slot_members = self.slots
        positions, members = self.positions, self.members
        alike = bool(members.all() and slot_members.all())
        if alike and not slot_members.shape[1]:
            return None
        keys = np.concatenate((slot_positions, positions), axis=1)
        if alike and (self.first == self.first[0]).all() and (slot_positions == slot_positions[:1]).all():
            return (keys[:1, None, :] <= positions[:1, :, None]).astype(np.bool_)
        belongs = np.concatenate((slot_members, members), axis=1)
        return (keys[:, None, :] <= positions[:, :, None]) & (belongs[:, None, :] == members[:, :, None])

    def _causal_tail(self) -> Bools | None:
        columns = self.members.shape[1]
        if self.wanted == columns:
            return None
        return np.tri(columns, dtype=np.bool_)[None, -self.wanted :]

    def _variates(self, placement: Placement) -> tuple[VariateGroups, ...]:
        groups = groups_of(self.all_rows.series[: self.rows])
        in_order = len(groups) == 1 and (next(iter(groups.values())).ravel() == np.arange(self.rows)).all()
        return tuple(
            VariateGroups(
                groups=len(index),
                variates=size,
                rows=None if in_order else torch.from_numpy(index.ravel()).to(placement.device),
                mask=self._variate_mask(index, placement),
            )
            for size, index in groups.items()
        )

    def _variate_mask(self, index: Integers, placement: Placement) -> Tensor | None:
        """(G, columns, V, V) over the wanted columns, or over all where a variate layer comes before a time layer."""
        columns = self.wanted if last_layers_are_variate(self.config) else self.members.shape[1]
        members = np.moveaxis(self.members[index][:, :, -columns:], 1, 2)  # (G, columns, V)
        if members.all():
            return None
        return _mask_on(members[..., None, :] == members[..., :, None], placement)


def last_layers_are_variate(config: Toto2ModelConfig) -> bool:
    """Whether every variate layer comes after every time layer, as in the published sizes."""
    return config.layer_group_size == config.num_layers and not config.variate_layer_first


def _mask_on(mask: NDArray[np.bool_], placement: Placement) -> Tensor:
    """The mask on the device: bool as fused attention takes it, or 0 and -inf to be added to the scores."""
    tensor = torch.from_numpy(mask)
    if placement.composite_attention:
        tensor = torch.zeros(mask.shape, dtype=placement.dtype).masked_fill_(~tensor, -math.inf)
    return tensor.to(placement.device)


def teacher_forced_pass(members: Tensor, variates: int, config: Toto2ModelConfig) -> ForwardPass:
    """The pass of training: every column wanted, rows (R,) in groups of `variates`, positions 0 … S − 1.

    members: bool (R, S), False for a patch with nothing observed, which belongs to no series.
    """
    rows, columns = members.shape
    origin = np.zeros(1, np.int64)
    tables = rotation(origin, columns, origin + columns // 2, config.qk_dim, config.use_xpos)
    query, key = (on_device(table, members.device, use_complex=False) for table in tables)
    causal = torch.ones(columns, columns, dtype=torch.bool, device=members.device).tril()
    time_mask = (causal & (members[:, None, :] == members[:, :, None]))[:, None]  # (R, 1, S, S)
    grouped = members.unflatten(0, (-1, variates)).transpose(1, 2)  # (G, S, V)
    groups = VariateGroups(rows // variates, variates, mask=grouped[..., None, :] == grouped[..., :, None])
    return ForwardPass(columns, Rotation(query, key), time_mask, time_mask, (groups,))
