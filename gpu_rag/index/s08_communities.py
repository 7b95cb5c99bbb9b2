"""Stage 08, communities: which entities of the governed graph belong together.

Input:  `schemas.ENTITIES`, `MENTIONS`, `RELATIONS`.
Output: `schemas.COMMUNITIES`, `COMMUNITY_COUNTS`.
Device: CPU.
Source: C of G(D) in PAGE-RAG (papers/page-rag.txt), and its before and after figures; Leiden by `engines.leiden`.

Nodes are canonical entities, edges the accepted relations between different ones, co-mentions too (a corpus without an
extractor of relations has no others), weighted by their number. An entity that no relation joins to another is in no community.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.leiden import Community, leiden_communities
from gpu_rag.ids import content_hash
from gpu_rag.stage import Cardinality, Tables, TableStage

Ints = NDArray[np.int64]


class CommunitiesConfig(BaseModel):
    """Leiden's settings.

    Attributes:
        resolution: Higher: more and smaller communities.
        min_members: Smaller communities are none.
        max_members: Larger communities are divided again.
        max_levels: Upper bound of the levels.
        seed: Of Leiden's random numbers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    resolution: PositiveFloat = 1.0
    min_members: int = Field(default=2, ge=2)
    max_members: PositiveInt = 50
    max_levels: PositiveInt = 3
    seed: NonNegativeInt = 0


class _Graph(NamedTuple):
    """Entities as nodes: their number, those that count, and the distinct related pairs with their weights."""

    num_nodes: int
    present: NDArray[np.bool_]
    first: Ints
    second: Ints
    weight: NDArray[np.float64]


def communities(tables: Tables, *, config: CommunitiesConfig) -> dict[str, pa.Table]:
    """Return the communities of the governed graph, and what the raw and the governed graph have of everything."""
    entities, mentions, relations = (tables[name] for name in ("entities", "mentions", "relations"))
    ids = entities.column("entity_id").combine_chunks()
    governed = _graph(_rows(entities.column("canonical_id"), ids), ids, mentions, relations, accepted=True)
    raw = _graph(_first_of_form(entities), ids, mentions, relations, accepted=False)
    found = _communities(governed, config)
    before = _communities(raw, config.model_copy(update={"max_levels": 1}))
    return {
        "communities": _table(found, governed, ids.to_pylist()),
        "community_counts": _counts(raw, before, governed, found),
    }


def _communities(graph: _Graph, config: CommunitiesConfig) -> list[Community]:
    return leiden_communities(
        graph.num_nodes, graph.first, graph.second, graph.weight,
        resolution=config.resolution, min_members=config.min_members, max_members=config.max_members,
        max_levels=config.max_levels, seed=config.seed,
    )  # fmt: skip


def _graph(node_of: Ints, ids: pa.Array, mentions: pa.Table, relations: pa.Table, *, accepted: bool) -> _Graph:
    """Return the graph whose nodes are given by the node of each entity row; `accepted`: of accepted units alone."""
    if accepted:
        mentions, relations = (table.filter(pc.equal(table.column("decision"), "accept")) for table in (mentions, relations))
    subject, object_ = (node_of[_rows(relations.column(name), ids)] for name in ("subject_id", "object_id"))
    present = np.zeros(len(ids), bool)
    for nodes in (node_of[_rows(mentions.column("entity_id"), ids)], subject, object_):
        present[nodes] = True
    low, high = np.minimum(subject, object_), np.maximum(subject, object_)
    keys, counts = np.unique((low * max(len(ids), 1) + high)[low != high], return_counts=True)
    first, second = keys // max(len(ids), 1), keys % max(len(ids), 1)
    return _Graph(len(ids), present, first, second, counts.astype(np.float64))


def _first_of_form(entities: pa.Table) -> Ints:
    """Return for each entity the first one of its normal form: the raw graph keeps no homonyms apart."""
    codes = entities.column("normal_form").combine_chunks().dictionary_encode().indices.to_numpy()
    _, first, code = np.unique(codes, return_index=True, return_inverse=True)
    return first[code].astype(np.int64)


def _rows(values: pa.ChunkedArray, ids: pa.Array) -> Ints:
    return np.asarray(pc.index_in(values, value_set=ids).to_numpy(), dtype=np.int64)


def _table(found: list[Community], graph: _Graph, ids: list[str]) -> pa.Table:
    members = [sorted(ids[node] for node in community.members) for community in found]
    names = [content_hash("community", str(community.level), *inside) for community, inside in zip(found, members, strict=True)]
    return schemas.COMMUNITIES.build(
        {
            "community_id": names,
            "level": [community.level for community in found],
            "parent_id": [None if community.parent is None else names[community.parent] for community in found],
            "members": members,
            "num_edges": [_edges_within(community, graph) for community in found],
        }
    )


def _edges_within(community: Community, graph: _Graph) -> int:
    """Return how many pairs of members are related; edges are sorted by their first ends."""
    begins, ends = (np.searchsorted(graph.first, community.members, side=side) for side in ("left", "right"))
    inside = 0
    for begin, end in zip(begins, ends, strict=True):
        others = graph.second[begin:end]
        at = np.minimum(np.searchsorted(community.members, others), len(community.members) - 1)
        inside += int((community.members[at] == others).sum())
    return inside


def _counts(raw: _Graph, before: list[Community], governed: _Graph, after: list[Community]) -> pa.Table:
    rows = {}
    for side, graph, found in (("before", raw, before), ("after", governed, after)):
        joined = np.zeros(graph.num_nodes, bool)
        joined[graph.first] = joined[graph.second] = True
        rows[side] = {
            "entities": int(graph.present.sum()),
            "edges": len(graph.first),
            "communities": sum(community.level == 0 for community in found),
            "isolated": int((graph.present & ~joined).sum()),
        }
    names = list(rows["before"])
    columns = {side: [rows[side][name] for name in names] for side in ("before", "after")}
    return schemas.COMMUNITY_COUNTS.build({"measure": names, **columns})


STAGE = TableStage(
    number=8,
    name="communities",
    version=1,
    reads=("entities", "mentions", "relations"),
    writes=(schemas.COMMUNITIES, schemas.COMMUNITY_COUNTS),
    cardinality=Cardinality.MANY_TO_MANY,
    run=communities,
)
