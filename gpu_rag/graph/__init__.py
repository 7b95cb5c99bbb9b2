"""Graph operators as pure array code: batched personalized PageRank, spreading activation, neighbourhoods, paths.

Needs torch and numpy; numba and scipy are imported at the first operator that runs on a CPU.
"""

from gpu_rag.graph.activation import ActivationResult, spread_activation
from gpu_rag.graph.arcs import ArcGraph, read_arcs, save_arcs
from gpu_rag.graph.csr import CsrGraph, build_csr, read_csr, save_csr
from gpu_rag.graph.gate import EdgeGates, Gate, SentenceGates
from gpu_rag.graph.load import load_graph
from gpu_rag.graph.neighbourhood import Neighbourhoods, n_hop
from gpu_rag.graph.pagerank import PageRankResult, personalized_pagerank
from gpu_rag.graph.paths import SemanticPaths, cheapest_paths
from gpu_rag.graph.reset import SeedFlag, SparseReset
from gpu_rag.graph.seeds import SeedLists
from gpu_rag.graph.tables import arcs_of_tables, csr_of_tables, node_rows
from gpu_rag.graph.topk import TopK, topk_in_range

__all__ = [
    "ActivationResult",
    "ArcGraph",
    "CsrGraph",
    "EdgeGates",
    "Gate",
    "Neighbourhoods",
    "PageRankResult",
    "SeedFlag",
    "SeedLists",
    "SemanticPaths",
    "SentenceGates",
    "SparseReset",
    "TopK",
    "arcs_of_tables",
    "build_csr",
    "cheapest_paths",
    "csr_of_tables",
    "load_graph",
    "n_hop",
    "node_rows",
    "personalized_pagerank",
    "read_arcs",
    "read_csr",
    "save_arcs",
    "save_csr",
    "spread_activation",
    "topk_in_range",
]
