"""Stage 07, graph: nodes and edges of all kinds, over the whole corpus.

Input:  chunks, governed entities, mentions and relations, the vectors of entity names.
Output: `schemas.LINKS`, `schemas.NODES`, `schemas.EDGES`.
Device: CPU.

Edge kinds are kept apart, one row per pair and kind, with how many units stand behind it in the raw graph (`count`) and
in the governed one (`accepted`); a system's config weighs the kinds when it builds its matrix. Every chunk and every
entity is a node, edges or not.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from gpu_rag import schemas
from gpu_rag.index.entities import CO_MENTIONED
from gpu_rag.index.links import link_table
from gpu_rag.index.senses import linked_in_sense
from gpu_rag.index.synonyms import synonym_pairs
from gpu_rag.stage import Cardinality, Tables, TableStage

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")

Edge = tuple[str, str, str, int, int, float]


class GraphConfig(BaseModel):
    """Synonym edges: least cosine, most per entity (0: none), and the letters or digits a name needs to have them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    synonym_threshold: float = Field(default=0.8, gt=0, le=1)
    synonym_max: NonNegativeInt = 100
    synonym_min_letters: NonNegativeInt = 3


def graph(tables: Tables, *, config: GraphConfig) -> dict[str, pa.Table]:
    """Return links, nodes and edges."""
    links = link_table(tables["chunks"], tables["entities"], tables["mentions"])
    links = linked_in_sense(links, tables["entities"], tables["mentions"])
    edges = [
        *relation_edges(tables["relations"]),
        *passage_entity_edges(tables["relations"]),
        *passage_name_edges(links),
        *synonym_edges(tables, config),
    ]
    names = schemas.EDGES.schema.names
    columns = zip(*edges, strict=True) if edges else [()] * len(names)
    return {
        "links": links,
        "nodes": _nodes(tables),
        "edges": schemas.EDGES.build({name: list(values) for name, values in zip(names, columns, strict=True)}),
    }


def relation_edges(relations: pa.Table) -> Iterator[Edge]:
    """Yield one edge per pair of entities that a relation names; a relation of an entity with itself gives none.

    Co-mentions are no edges here: the names of one sentence are joined through their passage already.
    """
    counts: Counter[tuple[str, str]] = Counter()
    accepted: Counter[tuple[str, str]] = Counter()
    for subject, object_, _, decision in _stated(relations):
        if subject != object_:
            pair = (min(subject, object_), max(subject, object_))
            counts[pair] += 1
            accepted[pair] += decision == "accept"
    for pair, count in counts.items():
        yield "relation", *pair, count, accepted[pair], float(count)


def passage_entity_edges(relations: pa.Table) -> Iterator[Edge]:
    """Yield one edge of weight 1 per chunk and entity at an end of one of its relations."""
    counts: Counter[tuple[str, str]] = Counter()
    accepted: Counter[tuple[str, str]] = Counter()
    for subject, object_, chunk, decision in _stated(relations):
        for entity in {subject: None, object_: None}:
            counts[chunk, entity] += 1
            accepted[chunk, entity] += decision == "accept"
    for pair, count in counts.items():
        yield "passage_entity", *pair, count, accepted[pair], 1.0


def passage_name_edges(links: pa.Table) -> Iterator[Edge]:
    """Yield one edge per chunk and entity linked in it, of weight 1 / log2(1 + chunks that the entity is linked in)."""
    counts = Counter(zip(links.column("chunk_id").to_pylist(), links.column("entity_id").to_pylist(), strict=True))
    num_chunks = Counter(entity for _, entity in counts)
    for (chunk, entity), count in counts.items():
        yield "passage_name", chunk, entity, count, count, 1.0 / math.log2(1 + num_chunks[entity])


def synonym_edges(tables: Tables, config: GraphConfig) -> Iterator[Edge]:
    """Yield one edge per pair of entities whose name vectors are alike, of their cosine as weight."""
    if not config.synonym_max:
        return
    entities = tables["entities"]
    forms = zip(entities.column("entity_id").to_pylist(), entities.column("normal_form").to_pylist(), strict=True)
    named = {entity for entity, form in forms if len(_LETTER_OR_DIGIT.findall(form)) >= config.synonym_min_letters}
    entity_ids, vectors = _entity_vectors(tables, named)
    pairs = synonym_pairs(vectors, config.synonym_threshold, config.synonym_max)
    for first, second, cosine in zip(*(values.tolist() for values in pairs), strict=True):
        yield "synonym", entity_ids[first], entity_ids[second], 1, 1, cosine


def _entity_vectors(tables: Mapping[str, pa.Table], named: set[str]) -> tuple[list[str], NDArray[np.float32]]:
    """Return the named entities that have a vector, sorted by id, and their vectors float32 (M, D)."""
    embeddings = tables["embeddings"].filter(pc.equal(tables["embeddings"].column("kind"), "entity"))
    items = zip(embeddings.column("item_id").to_pylist(), embeddings.column("vector_id").to_pylist(), strict=True)
    vector_ids = {entity: vector for entity, vector in items if entity in named}
    entity_ids = sorted(vector_ids)
    if not entity_ids:
        return [], np.empty((0, 0), np.float32)
    rows = pc.index_in(pa.array([vector_ids[entity] for entity in entity_ids]), tables["vectors"].column("vector_id"))
    vectors = tables["vectors"].column("vector").take(rows).combine_chunks()
    return entity_ids, vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(entity_ids), -1)


def _stated(relations: pa.Table) -> Iterator[tuple[str, str, str, str]]:
    """Yield (subject id, object id, chunk id, decision) of the relations that are more than co-mentions."""
    stated = relations.filter(pc.not_equal(relations.column("predicate"), CO_MENTIONED))
    columns = (stated.column(name).to_pylist() for name in ("subject_id", "object_id", "chunk_id", "decision"))
    return zip(*columns, strict=True)


def _nodes(tables: Tables) -> pa.Table:
    chunk_ids, entity_ids = tables["chunks"].column("chunk_id"), tables["entities"].column("entity_id")
    kinds = pa.array(["passage"] * len(chunk_ids) + ["entity"] * len(entity_ids))
    node_ids = pa.chunked_array([*chunk_ids.chunks, *entity_ids.chunks], schemas.STRING)
    return schemas.NODES.build({"node_id": node_ids, "kind": kinds})


STAGE = TableStage(
    number=7,
    name="graph",
    version=1,
    reads=("chunks", "entities", "mentions", "relations", "vectors", "embeddings"),
    writes=(schemas.LINKS, schemas.NODES, schemas.EDGES),
    cardinality=Cardinality.MANY_TO_MANY,
    run=graph,
)
