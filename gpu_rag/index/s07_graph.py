"""Stage 07, graph: nodes and edges of all kinds, over the whole corpus.

Input:  chunks, governed entities with their descriptions, mentions and relations, the vectors of entity names.
Output: `schemas.LINKS`, `schemas.NODES`, `schemas.EDGES`.
Device: CPU.

Edge kinds are kept apart, one row per pair and kind, with how many units stand behind it in the raw graph (`count`) and
in the governed one (`accepted`); a system's config weighs the kinds when it builds its matrix. Every chunk, every entity and
every description is a node, edges or not.
"""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from gpu_rag import schemas
from gpu_rag.index.coding import Ints, codes_of
from gpu_rag.index.entities import CO_MENTIONED
from gpu_rag.index.links import find_names, known_names, link_table
from gpu_rag.index.senses import linked_in_sense
from gpu_rag.index.synonyms import synonym_pairs
from gpu_rag.index.title_links import TitleLinks, title_links
from gpu_rag.stage import Cardinality, Tables, TableStage

_LETTER_OR_DIGIT = re.compile(r"[^\W_]")


class GraphConfig(BaseModel):
    """Which edges there are beside those that extraction gives.

    Attributes:
        synonym_threshold: Least cosine of synonyms.
        synonym_max: Synonyms that one entity proposes, at most; 0: none.
        synonym_min_letters: Letters or digits that a name needs to have synonyms.
        title_link_max: Pairs that one title may join: the chunks that name it times those that have it; 0: no title links.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    synonym_threshold: float = Field(default=0.8, gt=0, le=1)
    synonym_max: NonNegativeInt = 100
    synonym_min_letters: NonNegativeInt = 3
    title_link_max: NonNegativeInt = 1000


class _Stated(NamedTuple):
    """Relations that are more than co-mentions: rows of their ends and chunks, and whether they are accepted."""

    subject: Ints
    object: Ints
    chunk: Ints
    accepted: NDArray[np.bool_]


def graph(tables: Tables, *, config: GraphConfig) -> dict[str, pa.Table]:
    """Return links, nodes and edges."""
    tables = dict(tables) | {name: tables[name].sort_by(f"{of}_id") for name, of in _SORTED.items()}
    chunks, entities = tables["chunks"], tables["entities"]
    names = known_names(chunks, entities)
    places = find_names(chunks, names.surfaces)
    links = link_table(chunks, entities, tables["mentions"], names, places)
    links = linked_in_sense(links, entities, tables["mentions"])
    chunk_ids, entity_ids = chunks.column("chunk_id").combine_chunks(), entities.column("entity_id").combine_chunks()
    stated = _stated(tables["relations"], chunk_ids, entity_ids)
    edges = [
        _passage_entity_edges(stated, chunk_ids, entity_ids),
        _passage_name_edges(links, chunk_ids, entity_ids),
        _relation_edges(stated, entity_ids),
        _synonym_edges(tables, entity_ids, config),
        _title_links(title_links(chunks, entities, names, links, config.title_link_max), chunk_ids),
    ]
    return {"links": links, "nodes": _nodes(tables), "edges": pa.concat_tables(edges)}  # kind by kind, in order of their names


def _stated(relations: pa.Table, chunk_ids: pa.Array, entity_ids: pa.Array) -> _Stated:
    stated = np.asarray(pc.not_equal(relations.column("predicate"), CO_MENTIONED), bool)
    subject, object_ = (codes_of(relations.column(name), entity_ids)[stated] for name in ("subject_id", "object_id"))
    accepted = np.asarray(pc.equal(relations.column("decision"), "accept"), bool)
    return _Stated(subject, object_, codes_of(relations.column("chunk_id"), chunk_ids)[stated], accepted[stated])


def _relation_edges(stated: _Stated, entity_ids: pa.Array) -> pa.Table:
    """Return one edge per pair of entities that a relation names; a relation of an entity with itself gives none.

    Co-mentions are no edges here: the names of one sentence are joined through their passage already.
    """
    apart = stated.subject != stated.object
    low, high = (order(stated.subject, stated.object)[apart] for order in (np.minimum, np.maximum))
    first, second, count, accepted = _counted(low, high, len(entity_ids), stated.accepted[apart])
    return _edges("relation", _ids(entity_ids, first), _ids(entity_ids, second), count, accepted, count)


def _passage_entity_edges(stated: _Stated, chunk_ids: pa.Array, entity_ids: pa.Array) -> pa.Table:
    """Return one edge of weight 1 per chunk and entity at an end of one of its relations."""
    apart = stated.subject != stated.object
    chunk = np.concatenate([stated.chunk, stated.chunk[apart]])
    entity = np.concatenate([stated.subject, stated.object[apart]])
    taken = np.concatenate([stated.accepted, stated.accepted[apart]])
    first, second, count, accepted = _counted(chunk, entity, len(entity_ids), taken)
    return _edges("passage_entity", _ids(chunk_ids, first), _ids(entity_ids, second), count, accepted, np.ones(len(count)))


def _passage_name_edges(links: pa.Table, chunk_ids: pa.Array, entity_ids: pa.Array) -> pa.Table:
    """Return one edge per chunk and entity linked in it, of weight 1 / log2(1 + chunks that the entity is linked in)."""
    chunk, entity = codes_of(links.column("chunk_id"), chunk_ids), codes_of(links.column("entity_id"), entity_ids)
    first, second, count, accepted = _counted(chunk, entity, len(entity_ids), np.ones(len(chunk), bool))
    weight = 1.0 / np.log2(1.0 + np.bincount(second, minlength=len(entity_ids))[second])
    return _edges("passage_name", _ids(chunk_ids, first), _ids(entity_ids, second), count, accepted, weight)


def _synonym_edges(tables: Tables, entity_ids: pa.Array, config: GraphConfig) -> pa.Table:
    """Return one edge per pair of entities whose name vectors are alike, of their cosine as weight."""
    if not config.synonym_max:
        return schemas.EDGES.empty()
    entities, vectors_MD = _name_vectors(tables, entity_ids, config.synonym_min_letters)
    first, second, cosine = synonym_pairs(vectors_MD, config.synonym_threshold, config.synonym_max)
    one = np.ones(len(first), np.int64)
    return _edges("synonym", _ids(entity_ids, entities[first]), _ids(entity_ids, entities[second]), one, one, cosine)


def _name_vectors(tables: Tables, entity_ids: pa.Array, min_letters: int) -> tuple[Ints, NDArray[np.float32]]:
    """Return the entities with enough letters that have a vector, by id, and their vectors float32 (M, D)."""
    embeddings = tables["embeddings"].filter(pc.equal(tables["embeddings"].column("kind"), "entity"))
    item = codes_of(entity_ids, embeddings.column("item_id").combine_chunks())
    vector_ids = embeddings.column("vector_id").take(pa.array(item, mask=item < 0))
    rows = codes_of(vector_ids, tables["vectors"].column("vector_id").combine_chunks())
    forms = tables["entities"].column("normal_form").to_pylist()
    named = np.array([len(_LETTER_OR_DIGIT.findall(form)) >= min_letters for form in forms], bool)
    entities = np.flatnonzero(named & (rows >= 0))
    if not len(entities):
        return entities, np.empty((0, 0), np.float32)
    vectors = tables["vectors"].column("vector").take(pa.array(rows[entities])).combine_chunks()
    return entities, vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(entities), -1)


def _title_links(found: TitleLinks, chunk_ids: pa.Array) -> pa.Table:
    """Return one edge per pair of chunks; governance decides nothing about titles."""
    ends = _ids(chunk_ids, found.first), _ids(chunk_ids, found.second)
    return _edges("title_link", *ends, found.num_places, found.num_places, found.weight)


def _counted(first: Ints, second: Ints, num_second: int, accepted: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the distinct pairs sorted, as (first, second, how often, how often accepted)."""
    keys, place, counts = np.unique(first * max(num_second, 1) + second, return_inverse=True, return_counts=True)
    num_accepted = np.bincount(place, weights=accepted, minlength=len(keys)).astype(np.int64)
    return keys // max(num_second, 1), keys % max(num_second, 1), counts, num_accepted


def _edges(
    kind: str,
    source_ids: pa.Array,
    target_ids: pa.Array,
    count: Ints,
    accepted: Ints,
    weight: NDArray[np.generic],
) -> pa.Table:
    numbers = (pa.array(count, pa.int32()), pa.array(accepted, pa.int32()), pa.array(weight.astype(np.float32)))
    return pa.table([_repeated(kind, len(count)), source_ids, target_ids, *numbers], schema=schemas.EDGES.schema)


def _ids(ids: pa.Array, rows: Ints) -> pa.Array:
    return ids.take(pa.array(rows))


def _nodes(tables: Tables) -> pa.Table:
    passages, entities = tables["chunks"].column("chunk_id"), tables["entities"]
    descriptions = tables["descriptions"].column("description_id")
    kinds = [_repeated("passage", len(passages)), *entities.column("kind").chunks, _repeated("description", len(descriptions))]
    node_ids = [*passages.chunks, *entities.column("entity_id").chunks, *descriptions.chunks]
    columns = {"node_id": node_ids, "kind": kinds}
    return schemas.NODES.build({name: pa.chunked_array(chunks, schemas.STRING) for name, chunks in columns.items()})


def _repeated(value: str, num_rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, schemas.STRING), num_rows)


_SORTED = {"chunks": "chunk", "entities": "entity"}  # so that rows are in order of ids
_READ = {
    "chunks": ["chunk_id", "doc_id", "start", "title", "text"],
    "entities": ["entity_id", "kind", "normal_form", "sense", "names", "num_chunks"],
    "descriptions": ["description_id"],
    "mentions": ["entity_id", "chunk_id", "doc_id", "start", "end", "decision"],
    "relations": ["subject_id", "object_id", "predicate", "chunk_id", "decision"],
}


def _narrow(tables: Tables) -> dict[str, pa.Table]:
    """Return the columns that are read, and the vectors of names alone: sentences have many times as many."""
    embeddings = tables["embeddings"].filter(pc.equal(tables["embeddings"].column("kind"), "entity"))
    wanted = embeddings.column("vector_id").combine_chunks()
    vectors = tables["vectors"].filter(pc.is_in(tables["vectors"].column("vector_id"), value_set=wanted))
    narrowed = {name: tables[name].select(columns) for name, columns in _READ.items()}
    return narrowed | {"embeddings": embeddings, "vectors": vectors.select(["vector_id", "vector"])}


STAGE = TableStage(
    number=7,
    name="graph",
    version=2,
    reads=("chunks", "entities", "descriptions", "mentions", "relations", "vectors", "embeddings"),
    writes=(schemas.LINKS, schemas.NODES, schemas.EDGES),
    cardinality=Cardinality.MANY_TO_MANY,
    run=graph,
    narrow=_narrow,
)
