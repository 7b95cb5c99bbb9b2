"""What a machine allows, measured in the run it is compared with, and the least that a walk has to move and compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from gpu_rag_kernels import ppr_cpu

from gpu_rag.graph import CsrGraph

_COPY_FLOATS = 1 << 25
_PRODUCT_SIZE = 1024
_ROW_DEGREE = 8


@dataclass(frozen=True)
class Work:
    """What one query's sweep over a graph takes, when `ppr_cpu.LANES` queries go through it together.

    Attributes:
        streamed_bytes: Read or written in order: the edges' indices and weights, and per node its offset, slot and score.
        gathered_rows: Scores of an edge's source, read out of order, in rows of the queries that go together.
        gathered_bytes: Bytes of these.
        operations: A multiplication and an addition an edge, and six a node.
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
    return Work(streamed, num_entries / lanes, num_entries * itemsize, 2.0 * num_entries + 6.0 * num_nodes)


@dataclass(frozen=True)
class Machine:
    """Rates of all threads together, measured.

    Attributes:
        copy_bytes_per_s: Reading and writing memory in order.
        gathers_per_s: Rows of scores read out of order from an array as large as the graph's, and added up.
        operations_per_s: float32 products of matrices.
    """

    copy_bytes_per_s: float
    gathers_per_s: float
    operations_per_s: float

    def floor_seconds(self, work: Work) -> dict[str, float]:
        """Return the least seconds that each limit alone allows for the work."""
        return {
            "memory": work.streamed_bytes / self.copy_bytes_per_s,
            "gather": work.gathered_rows / self.gathers_per_s,
            "arithmetic": work.operations / self.operations_per_s,
        }


def measure_machine(num_nodes: int) -> Machine:
    """Return the rates of this machine, now; the gathers for a graph of that many nodes."""
    import torch

    source, target = torch.ones(_COPY_FLOATS), torch.empty(_COPY_FLOATS)
    copied = min(seconds(lambda: target.copy_(source)) for _ in range(5))
    left = torch.randn((_PRODUCT_SIZE, _PRODUCT_SIZE), generator=torch.Generator().manual_seed(0))
    product = min(seconds(lambda: torch.mm(left, left)) for _ in range(5))
    return Machine(8.0 * _COPY_FLOATS / copied, _gathers_per_s(num_nodes), 2.0 * _PRODUCT_SIZE**3 / product)


def _gathers_per_s(num_nodes: int) -> float:
    """Return the rate of the sweep itself over rows that all have the same number of random edges: nothing to mispredict."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    random = np.random.default_rng(0)
    walk = ppr_cpu.Walk(
        np.arange(num_nodes + 1, dtype=np.int64) * _ROW_DEGREE,
        random.integers(0, num_nodes, num_nodes * _ROW_DEGREE).astype(np.int32),
        np.full(num_nodes * _ROW_DEGREE, 1.0 / _ROW_DEGREE, np.float32),
        np.arange(num_nodes, dtype=np.int32),
        np.zeros(num_nodes, np.bool_),
    )
    seeds = ppr_cpu.seeds_of_rows(np.eye(1, num_nodes, dtype=np.float32).repeat(ppr_cpu.LANES, axis=0))

    def sweep(count: int) -> None:
        ppr_cpu.solve_queries(
            walk, seeds, undirected=False, damping=0.5, tol=1e-30, max_sweeps=count, num_relaxed=0, node_range=(0, 0), top_k=0
        )

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        few, many = (
            min(seconds(lambda count=count: list(pool.map(sweep, [count] * threads))) for _ in range(5)) for count in (2, 12)
        )
    return threads * 10.0 * num_nodes * _ROW_DEGREE / max(many - few, 1e-9)


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


def power_fit(sizes: list[float], times: list[float]) -> dict[str, float]:
    """Return exponent and R^2 of time = a * size^exponent, by least squares on logarithms."""
    x, y = np.log(sizes), np.log(times)
    slope, intercept = np.polyfit(x, y, 1)
    left = y - (slope * x + intercept)
    spread = float(((y - y.mean()) ** 2).sum())
    return {"exponent": float(slope), "r_squared": 1.0 - float((left**2).sum()) / spread if spread else 1.0}
