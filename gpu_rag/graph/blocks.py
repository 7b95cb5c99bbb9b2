"""How a batch of queries is cut into blocks, and which backend works on them."""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
from typing import Literal, get_args

import torch

from gpu_rag.errors import InputError, MissingDependencyError

logger = logging.getLogger(__name__)

Backend = Literal["auto", "numba", "triton", "torch"]


def plan_blocks(num_queries: int, tile: int, num_blocks: int) -> list[tuple[int, int]]:
    """Return (start, stop) of about num_blocks blocks of whole tiles; the last one may end within a tile.

    The bounds decide speed and memory only, not a bit of a numba result. Zero queries give one empty block.
    """
    num_tiles = max(1, -(-num_queries // tile))
    count = max(1, min(num_blocks, num_tiles))
    bounds = [min(num_queries, num_tiles * position // count * tile) for position in range(count + 1)]
    return list(itertools.pairwise(bounds))


def choose_backend(backend: Backend, device: torch.device) -> str:
    """Return numba, triton or torch; "auto" goes by the device of the graph, never by the batch.

    Raises:
        InputError: If backend is none of auto, numba, triton, torch, or numba is asked for off the CPU.
        MissingDependencyError: If a backend is asked for by name and does not load.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend={backend!r} is none of {', '.join(get_args(Backend))}")
    if backend == "numba" and device.type != "cpu":
        raise InputError(f"backend='numba' runs on the CPU, the graph lies on {device}")
    if backend == "torch":
        return "torch"
    fast = backend if backend != "auto" else "numba" if device.type == "cpu" else "triton"
    cause = _missing(fast)
    if cause is None:
        return fast
    if backend != "auto":
        raise MissingDependencyError(
            f"backend={backend!r} does not load ({cause}); pip install 'gpu-rag[cpu]' or 'gpu-rag[cuda]'"
        )
    return "torch"


@functools.cache
def _missing(backend: str) -> str | None:
    """Return why a backend's libraries do not import, or None if they do; logs once that torch takes its place."""
    try:
        for module in {"numba": ("numba", "scipy.sparse.csgraph"), "triton": ("triton",)}[backend]:
            importlib.import_module(module)
    except ImportError as error:
        logger.warning("%s does not load (%s); graph operators run on torch, much slower", backend, error)
        return str(error)
    return None
