"""What a machine allows, measured in the run it is compared with, and the least that a walk has to move and compute."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gpu_rag_kernels import ppr_cpu

from gpu_rag.graph import CsrGraph

_MEMORY_BYTES = 1 << 28  # both sides of a copy that no cache holds
_COPY_SECONDS = 0.02
_PRODUCT_SIZE = 1024
_ROW_DEGREE = 8
_REPEATS = 5


@dataclass(frozen=True)
class Work:
    """What one query's sweep over a graph takes, when `ppr_cpu.LANES` queries go through it together.

    Attributes:
        streamed_bytes: Read or written in order: the edges' indices and weights, and per node its offset, slot and score.
        gathered_rows: Scores of an edge's source, read out of order, in rows of the queries that go together.
        gathered_bytes: Bytes of these.
        operations: A multiplication and an addition an edge, and seven a node.
    """

    streamed_bytes: float
    gathered_rows: float
    gathered_bytes: float
    operations: float


def sweep_work(num_nodes: int, num_entries: int, itemsize: int = 4) -> Work:
    """Return the work of one sweep, per query.

    Args:
        num_nodes: N.
        num_entries: Stored edges E, both directions.
        itemsize: Bytes of a score and of a weight.
    """
    lanes = ppr_cpu.LANES
    streamed = num_entries * (4 + itemsize) / lanes + num_nodes * ((8 + 4) / lanes + 2 * itemsize)
    return Work(streamed, num_entries / lanes, num_entries * itemsize, 2.0 * num_entries + 7.0 * num_nodes)


@dataclass(frozen=True)
class Machine:
    """Rates of all threads together, measured.

    Attributes:
        threads: How many.
        memory_bytes_per_s: Read and written by a copy that no cache holds.
        stream_bytes_per_s: Likewise of copies as large as what a sweep goes through; of a cache, if one holds it.
        gathers_per_s: Rows of scores read out of order from an array as large as the graph's, and added up.
        operations_per_s: float32 products of matrices.
        operations_per_s_of_one_thread: Likewise.
    """

    threads: int
    memory_bytes_per_s: float
    stream_bytes_per_s: float
    gathers_per_s: float
    operations_per_s: float
    operations_per_s_of_one_thread: float

    def floor_seconds(self, work: Work) -> dict[str, float]:
        """Return the least seconds that each limit alone allows for the work."""
        return {
            "stream": work.streamed_bytes / self.stream_bytes_per_s,
            "gather": work.gathered_rows / self.gathers_per_s,
            "arithmetic": work.operations / self.operations_per_s,
        }


def measure_machine(num_nodes: int, num_entries: int) -> Machine:
    """Return the rates of this machine, now; streams and gathers for a graph of that many nodes and stored edges."""
    import torch

    threads = torch.get_num_threads()
    held = int(num_nodes * (8 + 4 + 4 * ppr_cpu.LANES) + 8 * num_entries)
    every = _operations_per_s()
    try:
        torch.set_num_threads(1)
        alone = _operations_per_s()
    finally:
        torch.set_num_threads(threads)
    gathers = max(_sweep_gathers_per_s(num_nodes, threads), _bag_gathers_per_s(num_nodes))
    return Machine(
        threads,
        _copied_per_s(_MEMORY_BYTES, threads),
        _copied_per_s(min(held, _MEMORY_BYTES), threads),
        gathers,
        every,
        alone,
    )


def _operations_per_s() -> float:
    """Return the rate of float32 products on torch's threads."""
    import torch

    left = torch.randn((_PRODUCT_SIZE, _PRODUCT_SIZE), generator=torch.Generator().manual_seed(0))
    return 2.0 * _PRODUCT_SIZE**3 / _best_seconds(lambda: torch.mm(left, left))


def _copied_per_s(held: int, threads: int) -> float:
    """Return bytes read and written per second, each thread copying one half of that many bytes to the other."""
    halves = [(np.ones(max(1, held // 8), np.float32), np.empty(max(1, held // 8), np.float32)) for _ in range(threads)]

    def copy(rounds: int, pair: tuple[np.ndarray, np.ndarray]) -> None:
        source, target = pair
        for _ in range(rounds):
            np.copyto(target, source)

    copy(1, halves[0])
    rounds = max(1, int(_COPY_SECONDS / _best_seconds(partial(copy, 1, halves[0]))))
    with ThreadPoolExecutor(threads) as pool:
        taken = _best_seconds(lambda: list(pool.map(partial(copy, rounds), halves)))
    return threads * rounds * 2.0 * halves[0][0].nbytes / taken


def _sweep_gathers_per_s(num_nodes: int, threads: int) -> float:
    """Return the rate of the sweep itself over rows that all have the same number of random edges: nothing to mispredict."""
    walk = ppr_cpu.Walk(
        np.arange(num_nodes + 1, dtype=np.int64) * _ROW_DEGREE,
        _random_nodes(num_nodes),
        np.full(num_nodes * _ROW_DEGREE, 1.0 / _ROW_DEGREE, np.float32),
        np.arange(num_nodes, dtype=np.int32),
        np.zeros(num_nodes, np.bool_),
    )
    queries = np.arange(ppr_cpu.LANES + 1, dtype=np.int64)
    seeds = ppr_cpu.Seeds(queries, np.zeros(ppr_cpu.LANES, np.int32), np.ones(ppr_cpu.LANES, np.float32))

    def sweep(count: int, _: int) -> None:
        ppr_cpu.solve_queries(
            walk, seeds, undirected=False, damping=0.99, tol=1e-30, max_sweeps=count, num_relaxed=0, node_range=(0, 0), top_k=0
        )

    with ThreadPoolExecutor(threads) as pool:
        few, many = (_best_seconds(partial(_at_once, pool, partial(sweep, count), threads)) for count in (2, 12))
    return threads * 10.0 * num_nodes * _ROW_DEGREE / max(many - few, 1e-9)


def _at_once(pool: ThreadPoolExecutor, work: Callable[[int], object], threads: int) -> None:
    list(pool.map(work, range(threads)))


def _bag_gathers_per_s(num_nodes: int) -> float:
    """Return the rate of torch's weighted sums of rows, on its threads."""
    import torch

    nodes = torch.from_numpy(_random_nodes(num_nodes))
    starts = torch.arange(0, nodes.numel(), _ROW_DEGREE, dtype=torch.int32)
    rows, weights = torch.ones((num_nodes, ppr_cpu.LANES)), torch.ones(nodes.numel())
    bags = partial(torch.nn.functional.embedding_bag, nodes, rows, starts, mode="sum", per_sample_weights=weights)
    bags()
    return nodes.numel() / _best_seconds(bags)


def _random_nodes(num_nodes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, num_nodes, num_nodes * _ROW_DEGREE).astype(np.int32)


def cpu_model() -> str:
    """Return the processor's name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def share_of_roofline(graph: CsrGraph, sweeps: float, seconds_per_query: float, machine: Machine) -> dict[str, Any]:
    """Return bytes, operations, the floor that each limit sets, which one binds, and the share of it that was reached."""
    work = sweep_work(graph.num_nodes, graph.num_edges)
    floors = {name: sweeps * value for name, value in machine.floor_seconds(work).items()}
    binding = max(floors, key=lambda name: floors[name])
    return {
        "sweeps": sweeps,
        "per_sweep_and_query": asdict(work),
        "machine": asdict(machine),
        "floor_us_per_query": {name: 1e6 * value for name, value in floors.items()},
        "binding": binding,
        "share": floors[binding] / seconds_per_query,
    }


def seconds(work: Callable[[], object]) -> float:
    """Return the wall seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median wall seconds of that many calls after one that is not counted."""
    work()
    return median(seconds(work) for _ in range(repeats))


def _best_seconds(work: Callable[[], object]) -> float:
    return min(seconds(work) for _ in range(_REPEATS))


def power_fit(sizes: list[float], times: list[float]) -> dict[str, float]:
    """Return exponent and R^2 of time = factor * size^exponent, by least squares on logarithms, and the factor."""
    x, y = np.log(sizes), np.log(times)
    slope, intercept = np.polyfit(x, y, 1)
    left = y - (slope * x + intercept)
    spread = float(((y - y.mean()) ** 2).sum())
    return {
        "exponent": float(slope),
        "factor": float(np.exp(intercept)),
        "r_squared": 1.0 - float((left**2).sum()) / spread if spread else 1.0,
    }
