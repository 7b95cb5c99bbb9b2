"""Packing of texts into tiles: whole texts, one token a row, up to the tile's height."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tile:
    """Texts that share one tile: their numbers, longest first, and the height of the tile."""

    texts: np.ndarray
    rows: int


def pack_tiles(lengths: np.ndarray, heights: Sequence[int]) -> list[Tile]:
    """Return tiles of whole texts: the longest text left that fits, again and again (best fit, falling).

    Texts of one length mostly end up together, which is what attention over groups of equal length wants.

    Args:
        lengths: int64 (n,), each at most the last of `heights`.
        heights: Allowed heights in rising order; a tile is filled up to the last, and the lowest that holds it is taken.
    """
    order = np.argsort(lengths, kind="stable")
    waiting: dict[int, list[int]] = {}
    for text in order.tolist():
        waiting.setdefault(int(lengths[text]), []).append(text)
    sizes = sorted(waiting)
    tiles = []
    while sizes:
        room, texts = heights[-1], []
        while room and (place := bisect_right(sizes, room)):
            size = sizes[place - 1]
            line = waiting[size]
            take = min(len(line), room // size)
            texts += line[-take:]
            del line[-take:]
            room -= take * size
            if not line:
                del sizes[place - 1]
        rows = next(height for height in heights if height >= heights[-1] - room)
        tiles.append(Tile(np.array(texts, dtype=np.int64), rows))
    return tiles


def length_groups(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Return (length, how many) for lengths sorted in falling order."""
    values, counts = np.unique(lengths, return_counts=True)
    return [(int(value), int(count)) for value, count in zip(values[::-1], counts[::-1], strict=True)]
