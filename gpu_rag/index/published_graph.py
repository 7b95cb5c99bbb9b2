"""The graph that `gpu_rag.graph.load_graph` reads: every accepted edge with its own weight, as CSR files of the generation.

Nodes are the chunks, then the entities, each in id order, isolated ones included. Systems weigh the kinds of edges anew (see
`query.graph_view`); this one sums them as they stand, for benchmarks and for users of the graph operators.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.ids import content_hash
from gpu_rag.stage import Tables
from gpu_rag.store import Artifact, ArtifactStore

LABEL = "07_graph_csr"


def keep_published_graph(root: Path, tables: Tables, edges_hash: str) -> Artifact:
    """Return the artifact of the CSR files, written unless it is there.

    Args:
        root: INDEX folder.
        tables: `nodes` and `edges`.
        edges_hash: Key of the artifact that the two tables came with.
    """
    store = ArtifactStore(root)
    key = content_hash("csr", edges_hash)
    return store.find(LABEL, key) or store.write(LABEL, key, {}, (), lambda folder: _write(tables, folder))


def _write(tables: Tables, folder: Path) -> None:
    from gpu_rag.graph import build_csr, save_csr  # torch, which a run with nothing to compute never loads

    nodes = node_ids(tables["nodes"])
    edges = tables["edges"].filter(pc.greater(tables["edges"].column("accepted"), 0))
    graph = build_csr(
        len(nodes),
        _rows(edges.column("source_id"), nodes),
        _rows(edges.column("target_id"), nodes),
        edges.column("weight").to_numpy(),
        undirected=True,
    )
    save_csr(graph, folder)


def node_ids(nodes: pa.Table) -> pa.Array:
    """Return the ids of passages, then those of entities of all kinds; descriptions have no edges."""
    kinds = nodes.column("kind")
    passages = pc.equal(kinds, "passage")
    entities = pc.invert(pc.or_(passages, pc.equal(kinds, "description")))
    parts = [nodes.filter(rows).sort_by("node_id").column("node_id") for rows in (passages, entities)]
    return pa.concat_arrays([part.combine_chunks() for part in parts])


def _rows(ids: pa.ChunkedArray, nodes: pa.Array) -> npt.NDArray[np.int64]:
    rows = pc.index_in(ids, value_set=nodes)
    return np.asarray(rows.to_numpy(), dtype=np.int64)
