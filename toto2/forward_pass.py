"""One pass through the layer stack: the masks, tables and cache that all its layers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from toto2.cache import KVCache
from toto2.rotary import Rotation


@dataclass(frozen=True)
class VariateGroups:
    """G groups of V rows that attend to each other at the same patch.

    rows: int64 (G·V,), the groups' rows one group after another; None where that is every row in order.
    mask: bool (G, S, V, V), True where a variate sees another; None where all do.
    """

    groups: int
    variates: int
    rows: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True)
class ForwardPass:
    """What the layers of one pass over R rows of S columns share.

    wanted: how many trailing columns' outputs are read, 1 … S.
    time_mask: bool (R or 1, 1, S, K), True where a column sees a key; None: causal, K = S.
    wanted_mask: the same for the wanted columns alone, (R or 1, 1, wanted, K); None: causal, wanted = S = K.
    variates: partition of the rows.
    cache: keys and values of earlier passes; None where no pass follows.
    composite_attention: masks are not bool but float, 0 or -inf, and no pass is causal without one.
    """

    wanted: int
    rotation: Rotation
    time_mask: Tensor | None
    wanted_mask: Tensor | None
    variates: tuple[VariateGroups, ...] = field(default=())
    cache: KVCache | None = None
    composite_attention: bool = False
