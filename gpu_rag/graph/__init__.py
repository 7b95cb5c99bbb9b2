"""Graph operators as pure array code: CSR graphs, batched personalized PageRank, top-k of a node range.

Needs torch and numpy; numba and scipy are imported at the first PageRank on a CPU.
"""

from gpu_rag.graph.csr import CsrGraph, build_csr, read_csr, save_csr
from gpu_rag.graph.gate import EdgeGates, Gate, SentenceGates
from gpu_rag.graph.load import load_graph
from gpu_rag.graph.pagerank import PageRankResult, personalized_pagerank
from gpu_rag.graph.reset import SeedFlag, SparseReset
from gpu_rag.graph.topk import TopK, topk_in_range

__all__ = [
    "CsrGraph",
    "EdgeGates",
    "Gate",
    "PageRankResult",
    "SeedFlag",
    "SentenceGates",
    "SparseReset",
    "TopK",
    "build_csr",
    "load_graph",
    "personalized_pagerank",
    "read_csr",
    "save_csr",
    "topk_in_range",
]
