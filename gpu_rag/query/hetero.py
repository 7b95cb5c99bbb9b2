"""An index as PyTorch Geometric's `HeteroData`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_rag.engines.require import require
from gpu_rag.query.repository import EDGE_KINDS, Repository


def to_hetero_data(repository: Repository) -> Any:
    """Return `torch_geometric.data.HeteroData` of an index.

    Nodes are of type `passage` and `entity`, each in id order, with `ids`; passages have `x`, float32 (C, D). Edges are
    ("passage", KIND, "entity") or ("entity", KIND, "entity") with `edge_index`, int64 (2, E), `edge_weight`, float32 (E,),
    `count` and `accepted`, int64 (E,). Facts are the arcs ("entity", "states", "entity"), with `ids`, `edge_attr`, float32
    (F, D), and `accepted`, bool (F,).

    Raises:
        MissingDependencyError: If torch-geometric is not installed.
    """
    import torch

    data = require("torch_geometric.data", extra="bench").HeteroData()
    data["passage"].ids, data["entity"].ids = repository.chunk_ids, repository.entity_ids
    data["passage"].x = torch.from_numpy(np.array(repository.chunk_vectors))
    data["entity"].num_nodes = len(repository.entity_ids)
    for kind in EDGE_KINDS:
        edges = repository.edges(kind)
        store = data["passage" if kind.startswith("passage") else "entity", kind, "entity"]
        store.edge_index = torch.from_numpy(np.stack([edges.source, edges.target]))
        store.edge_weight = torch.from_numpy(np.array(edges.weight, np.float32))
        store.count, store.accepted = torch.from_numpy(np.array(edges.count)), torch.from_numpy(np.array(edges.accepted))
    facts = data["entity", "states", "entity"]
    facts.edge_index = torch.from_numpy(np.stack([repository.fact_subject, repository.fact_object]))
    facts.edge_attr = torch.from_numpy(np.array(repository.fact_vectors))
    facts.accepted = torch.from_numpy(np.array(repository.fact_accepted))
    facts.ids = repository.fact_ids
    return data
