"""Keys and values of patches already read, owned by one forecast call."""

from __future__ import annotations

from torch import Tensor


class KVCache:
    """Preallocated keys (R, G, slots, qk_dim) and values (R, G, slots, v_dim) for every time layer.

    A pass writes its columns after the `kept` slots and reads all of them; `keep` then says how many of
    those columns stay (the observed ones: masked patches are never remembered).
    """

    def __init__(self, layers: int, rows: int, groups: int, slots: int, qk_dim: int, v_dim: int, like: Tensor) -> None:
        self.keys = [like.new_empty(rows, groups, slots, qk_dim) for _ in range(layers)]
        self.values = [like.new_empty(rows, groups, slots, v_dim) for _ in range(layers)]
        self.kept = 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the pass's keys and values (r, G, S, dim) of the first r rows; all of (r, G, kept + S, dim)."""
        rows, columns = key.shape[0], key.shape[2]
        end = self.kept + columns
        keys, values = self.keys[layer][:rows], self.values[layer][:rows]
        keys[:, :, self.kept : end] = key
        values[:, :, self.kept : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def keep(self, columns: int) -> None:
        """Remember the first `columns` of the columns last appended."""
        self.kept += columns
