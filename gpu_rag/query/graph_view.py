"""The graph of one system: which of the index's edges it walks, and with which weights.

The index keeps every arc with its governance decision; a view chooses among them. Nodes are the chunks, then the
entities, each in id order, isolated ones included, so a chunk's row is its node.
Source: HippoRAG 2 (papers/README.md) for edges between phrases and for phrases of equal ASCII form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from gpu_rag.spans import ascii_phrase

if TYPE_CHECKING:
    from gpu_rag.graph import CsrGraph


class EdgeWeights(BaseModel):
    """Factor on the weight of each kind of edge; 0 leaves the kind out.

    Attributes:
        relation: Times the number of relations that name the pair.
        passage_entity: Times 1, between a passage and each end of its relations (co-mentions are none).
        passage_name: Times 1 / log2(1 + document frequency), between a passage and each name found in it.
        synonym: Times the cosine of the two names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    relation: NonNegativeFloat = 2.0
    passage_entity: NonNegativeFloat = 1.0
    passage_name: NonNegativeFloat = 0.0
    synonym: NonNegativeFloat = 2.0


class GraphViewConfig(BaseModel):
    """Which edges a system walks; the defaults are HippoRAG 2's.

    Attributes:
        graph: `raw`: everything that was extracted, one node per normal form; `governed`: only what governance accepted,
            homonyms apart and aligned entities together.
        phrase_form: `ascii`: entities of equal `spans.ascii_phrase` are one node too, but one whose phrase is emptied stays
            its own; in the governed graph homonyms still stay apart. `unicode`: they are not.
        weights: Per kind of edge.
        synonym_replaces_relation: Where a pair is related and synonymous, the synonym's weight stands alone; else they
            add up.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    graph: Literal["raw", "governed"] = "raw"
    phrase_form: Literal["unicode", "ascii"] = "unicode"
    weights: EdgeWeights = EdgeWeights()
    synonym_replaces_relation: bool = True


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of one kind, as `schemas.EDGES` has them.

    Attributes:
        source: int64 (E,), chunk rows for passage edges, else entity rows.
        target: int64 (E,), entity rows.
        count: int64 (E,), units behind the edge.
        accepted: int64 (E,), of these accepted by governance.
        weight: float32 (E,).
    """

    source: np.ndarray
    target: np.ndarray
    count: np.ndarray
    accepted: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True, eq=False)
class GraphView:
    """A system's graph.

    Attributes:
        graph: Undirected; nodes [0, C) are the chunks.
        entity_nodes: int64 (M,), the node of each entity.
        num_passages: int64 (N,), passages whose relations name the node; 0 for chunks.
    """

    graph: "CsrGraph"
    entity_nodes: np.ndarray
    num_passages: np.ndarray


@dataclass(frozen=True, eq=False)
class EntityNames:
    """What decides which of M entities share a node.

    Attributes:
        names: Of each entity.
        normal_forms: Likewise; homonyms have equal ones.
        senses: "" where nothing tells an entity from its homonyms.
        canonical: int64 (M,), row of the entity that each is aligned with.
    """

    names: Sequence[str]
    normal_forms: Sequence[str]
    senses: Sequence[str]
    canonical: np.ndarray


def build_graph_view(config: GraphViewConfig, num_chunks: int, entities: EntityNames, edges: Mapping[str, Edges]) -> GraphView:
    """Return the view; edges of one kind that fall on one pair of nodes are united, the kinds of one pair summed.

    Args:
        config: What to walk.
        num_chunks: C.
        entities: The M entities.
        edges: By kind: relation, passage_entity, passage_name, synonym.
    """
    from gpu_rag.graph import build_csr  # torch, which a driver never needs

    num_nodes = num_chunks + len(entities.names)
    entity_nodes = num_chunks + representatives(entities, config)
    pairs = {kind: _pairs(kind, of_kind, entity_nodes, num_nodes, config.graph) for kind, of_kind in edges.items()}
    num_passages = np.bincount(pairs["passage_entity"][0] % max(num_nodes, 1), minlength=num_nodes)
    if config.synonym_replaces_relation and config.weights.synonym > 0:
        related, counts = pairs["relation"]
        alone = ~np.isin(related, pairs["synonym"][0])
        pairs["relation"] = related[alone], counts[alone]
    keys = np.concatenate([keys for _, (keys, _) in sorted(pairs.items())])
    weights = [getattr(config.weights, kind) * values for kind, (_, values) in sorted(pairs.items())]
    low, high = keys // max(num_nodes, 1), keys % max(num_nodes, 1)
    return GraphView(
        graph=build_csr(num_nodes, low, high, np.concatenate(weights), undirected=True),
        entity_nodes=entity_nodes,
        num_passages=num_passages.astype(np.int64),
    )


def _pairs(kind: str, edges: Edges, entity_nodes: np.ndarray, num_nodes: int, graph: str) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct pairs of nodes as sorted keys low * N + high, int64 (P,), and their values, float64 (P,).

    Loops are dropped. Relations of a pair are counted; of passage edges and synonyms on one pair the heaviest stands.
    """
    units = edges.accepted if graph == "governed" else edges.count
    target = entity_nodes[edges.target]
    source = edges.source if kind.startswith("passage") else entity_nodes[edges.source]
    used = (units > 0) & (source != target)
    low, high = np.minimum(source, target)[used], np.maximum(source, target)[used]
    pairs, place = np.unique(low * num_nodes + high, return_inverse=True)
    values = np.zeros(len(pairs))
    if kind == "relation":
        np.add.at(values, place, units[used])
    else:
        np.maximum.at(values, place, edges.weight[used])
    return pairs, values


def representatives(entities: EntityNames, config: GraphViewConfig) -> np.ndarray:
    """Return for each entity the row of the entity whose node it shares: the first of them, or the canonical one."""
    governed = config.graph == "governed"
    rows = np.array(entities.canonical) if governed else np.arange(len(entities.names), dtype=np.int64)
    first: dict[tuple[str, str], int] = {}
    for row, owner in enumerate(rows.tolist()):
        # An emptied phrase is no key, else one node would unite all names in other scripts.
        phrase = ascii_phrase(entities.names[owner]) if config.phrase_form == "ascii" else ""
        form = "" if governed else entities.normal_forms[row]
        if phrase or form:
            rows[row] = first.setdefault((phrase or f"={form}", entities.senses[owner] if governed else ""), owner)
    return rows
