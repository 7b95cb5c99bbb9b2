"""Check and measure the graph operators on one CUDA device; needs torch, numpy and triton alone.

    python benchmarks/gpu_check.py [--json FILE] [--small]

Prints, and writes with --json: agreement with float64, milliseconds a query, bytes moved and their share of the copy rate
measured in the same run, for personalized PageRank in float32 on two generated graphs, gated and not, against torch.sparse, and
against PyG and cupy where they are installed. `--small` runs on any machine, on a CPU in triton's interpreter, over graphs so
small that only the code is checked. Ends within four minutes on an H200.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
if "--small" in sys.argv:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from gpu_rag_kernels import ppr_triton  # noqa: E402

from gpu_rag.graph import CsrGraph, EdgeGates, build_csr, personalized_pagerank  # noqa: E402

GRAPHS = {"entities": (18_000, 66_000), "million": (1_000_000, 10_000_000)}
SMALL = {"tiny": (16, 24)}
BATCHES = (256, 1024)
DAMPING, TOL, TOP = 0.5, 5e-6, 20
PAIRS = 7


def power_law(num_nodes: int, num_edges: int, device: str) -> CsrGraph:
    """Return a graph whose degrees fall as rank^-0.6, the same one every time."""
    random = np.random.default_rng(0)
    number = random.permutation(num_nodes)
    ends = [number[(num_nodes * random.random(num_edges) ** 2.5).astype(np.int64)] for _ in range(2)]
    apart = ends[0] != ends[1]
    return build_csr(num_nodes, ends[0][apart], ends[1][apart], undirected=True).to(device)


def resets(graph: CsrGraph, num_queries: int) -> torch.Tensor:
    """Return resets of five seeds, and of a hundredth of the nodes at low weight."""
    generator = torch.Generator().manual_seed(1)
    reset = torch.zeros((num_queries, graph.num_nodes))
    few = max(1, graph.num_nodes // 100)
    reset[:, :few] = 0.05 * torch.rand((num_queries, few), generator=generator)
    reset.scatter_(1, torch.randint(0, graph.num_nodes, (num_queries, 5), generator=generator), 1.0)
    return reset.to(graph.device)


def milliseconds(work: Callable[[], object], device: str) -> float:
    """Return what a call takes, on the device's own clock."""
    if device == "cpu":
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)
    start_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start_event.record()
    work()
    end_event.record()
    torch.cuda.synchronize()
    return float(start_event.elapsed_time(end_event))


def pairs(ours: Callable[[], object], other: Callable[[], object], device: str, count: int) -> dict[str, float]:
    """Return medians of both and of their ratio, measured one right after the other."""
    ours(), other()  # once, not counted
    measured = [(milliseconds(ours, device), milliseconds(other, device)) for _ in range(count)]
    return {
        "ours_ms": median(one for one, _ in measured),
        "other_ms": median(two for _, two in measured),
        "ratio": median(two / one for one, two in measured),
    }


def copy_rate(device: str) -> float:
    """Return bytes read and written per second by a copy of 256 MiB (1 MiB on a CPU), the best of ten."""
    source = torch.ones((1 << 26) if device == "cuda" else (1 << 18), device=device)
    target = torch.empty_like(source)
    return 8.0 * source.numel() / (min(milliseconds(lambda: target.copy_(source), device) for _ in range(10)) * 1e-3)


def sweep_bytes(graph: CsrGraph, width: int, seeded: int) -> float:
    """Return the least bytes of one sweep over a block of `width` queries, each array read or written once.

    Scores of an edge's source are gathered; what of them comes from the cache is not counted against the memory. `gather_bytes`
    is what it comes to if none does.
    """
    edges = graph.num_edges * (graph.indices.element_size() + 4.0)
    return edges + graph.num_nodes * (8 + 4 + 4.0 * 3 * width) + 4.0 * seeded * width


def gather_bytes(graph: CsrGraph, width: int) -> float:
    """Return the bytes of scores that the edges of one sweep read beyond one reading of each score."""
    return 4.0 * width * max(0, graph.num_edges - graph.num_nodes)


def check_bits(graph: CsrGraph, reset: torch.Tensor, options: dict[str, Any]) -> None:
    """Raise AssertionError unless each query comes out the same alone, among 7 and in a batch in another order."""
    whole = personalized_pagerank(graph, reset, **options)
    backwards = torch.arange(len(reset) - 1, -1, -1, device=reset.device)
    for queries in (backwards[:1], backwards[:7], backwards):
        part = personalized_pagerank(graph, reset[queries], **options)
        for name in ("top_scores", "top_indices", "residual"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[queries]), f"a query's {name} depend on its batch"


def peer_products(graph: CsrGraph, reset: torch.Tensor, sweeps: int) -> dict[str, Callable[[], object]]:
    """Return power iteration by other libraries' sparse products, of those that are installed."""
    walk = graph.transition(torch.float32)
    size = (graph.num_nodes, graph.num_nodes)
    matrix = torch.sparse_csr_tensor(walk.indptr, walk.indices.long(), walk.probabilities, size=size, check_invariants=False)
    start = (reset / reset.sum(dim=1, keepdim=True)).T.contiguous()

    def by_product(product: Callable[[Any], Any], first: Any) -> Callable[[], object]:
        def run() -> object:
            x = first
            for _ in range(sweeps):
                x = DAMPING * product(x) + (1.0 - DAMPING) * first
            return x

        return run

    found = {"torch.sparse": by_product(lambda x: matrix @ x, start)}
    try:
        from torch_geometric.utils import spmm

        found["pyg.spmm"] = by_product(lambda x: spmm(matrix, x, reduce="sum"), start)
    except ImportError as error:
        print(f"torch_geometric: {error}")
    try:
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        on_cupy = csr_matrix(tuple(map(cupy.asarray, (walk.probabilities, walk.indices, walk.indptr.int()))), shape=size)
        found["cupy"] = by_product(lambda x: on_cupy @ x, cupy.asarray(start))
    except ImportError as error:
        print(f"cupy: {error}")
    return found


def some_gates(graph: CsrGraph, num_queries: int) -> EdgeGates:
    """Return gates that differ from query to query, 1,024 an index."""
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes, device=graph.device), torch.diff(graph.indptr))
    ends = graph.indices.long()
    of_edge = (torch.minimum(rows, ends) * 31 + torch.maximum(rows, ends) * 17) % 1024
    generator = torch.Generator().manual_seed(2)
    edge_gates = torch.exp(torch.rand((num_queries, 1024), generator=generator)).to(graph.device)
    return EdgeGates(of_edge.int(), edge_gates, torch.ones((num_queries, graph.num_nodes), device=graph.device))


def check(name: str, graph: CsrGraph, batches: tuple[int, ...], device: str, rate: float, count: int) -> dict[str, Any]:
    """Return the figures of one graph, and raise AssertionError if a score is wrong."""
    few = resets(graph, 8)
    options: dict[str, Any] = {"damping": DAMPING, "tol": TOL, "backend": "triton"}
    exact = personalized_pagerank(graph, few.double(), damping=DAMPING, tol=1e-10, backend="torch").scores
    found = personalized_pagerank(graph, few, **options)
    assert exact is not None
    assert found.scores is not None
    error = float((found.scores.double() - exact).abs().sum(dim=1).max())
    assert error <= TOL, f"L1 error {error}"
    assert not bool(torch.isnan(found.scores).any())
    assert int(found.flags.sum()) == 0
    del exact, found
    figures: dict[str, Any] = {"nodes": graph.num_nodes, "edges": graph.num_edges // 2, "l1_error": error}
    passages = (0, max(1, graph.num_nodes // 10))
    for batch in batches:
        reset = resets(graph, batch)
        options |= {"top_range": passages, "top_k": TOP}

        ours = partial(personalized_pagerank, graph, reset, **options)
        sweeps = int(ours().iterations.max())
        width = ppr_triton.block_width(min(batch, 256))
        moved = sweeps * sweep_bytes(graph, width, graph.num_nodes // 100 + 5 * width) * -(-batch // width)
        gathered = moved + sweeps * gather_bytes(graph, width) * -(-batch // width)
        entry: dict[str, Any] = {"sweeps": sweeps, "bytes": moved, "bytes_if_no_cache": gathered}
        for peer, run in peer_products(graph, reset, 18).items():
            entry[peer] = pairs(ours, run, device, count)
        taken = entry["torch.sparse"]["ours_ms"]
        entry |= {"ms_per_query": taken / batch, "share_of_copy_rate": moved / (taken * 1e-3) / rate}
        entry["share_if_no_cache"] = gathered / (taken * 1e-3) / rate
        figures[f"batch {batch}"] = entry
        print(f"{name}, batch {batch}: {json.dumps(entry)}", flush=True)
        del reset
    some = resets(graph, batches[0])
    check_bits(graph, some, options)
    gates = some_gates(graph, batches[0])
    plain, gated = (lambda gate=gate: personalized_pagerank(graph, some, gate=gate, **options) for gate in (None, gates))
    figures["gated"] = pairs(gated, plain, device, count)
    print(f"{name}, gated against ungated: {json.dumps(figures['gated'])}", flush=True)
    return figures


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="tiny graphs, on any machine")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not arguments.small:
        sys.exit("no CUDA device: --small checks the code in triton's interpreter")
    rate = copy_rate(device)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu, interpreted",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_bytes_per_s": rate,
    }
    for name, (num_nodes, num_edges) in (SMALL if arguments.small else GRAPHS).items():
        # A million nodes and 1,024 dense resets take 4 GB, and as much again by their peers.
        batches = (3,) if arguments.small else BATCHES if num_nodes < 500_000 else BATCHES[:1]
        graph = power_law(num_nodes, num_edges, device)
        figures[name] = check(name, graph, batches, device, rate, 1 if arguments.small else PAIRS)
    print(json.dumps({key: value for key, value in figures.items() if not isinstance(value, dict)}))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
