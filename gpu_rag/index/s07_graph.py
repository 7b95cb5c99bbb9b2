"""Stage 07, graph: nodes and edges of all kinds, over the whole corpus.

Input:  chunks, governed entities with their descriptions, mentions and relations, the vectors of entity names.
Output: `schemas.LINKS`, `schemas.NODES`, `schemas.EDGES`.
Device: CPU.

Edge kinds are kept apart, one row per pair and kind, with how many units stand behind it in the raw graph (`count`) and
in the governed one (`accepted`); a system's config weighs the kinds when it builds its matrix. Every chunk, every entity and
every description is a node, edges or not.
"""

import re

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
from gpu_rag.index.title_links import title_links
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


def graph(tables: Tables, *, config: GraphConfig) -> dict[str, pa.Table]:
    """Return links, nodes and edges."""
    chunks, entities = tables["chunks"], tables["entities"]
    names = known_names(chunks, entities)
    places = find_names(chunks, names.surfaces)
    links = link_table(chunks, entities, tables["mentions"], names, places)
    links = linked_in_sense(links, entities, tables["mentions"])
    chunk_ids, entity_ids = _sorted_ids(chunks, "chunk_id"), _sorted_ids(entities, "entity_id")
    kinds = [
        _relation_edges(tables["relations"], entity_ids),
        _passage_entity_edges(tables["relations"], chunk_ids, entity_ids),
        _passage_name_edges(links, chunk_ids, entity_ids),
        _synonym_edges(tables, entity_ids, config),
    ]
    if config.title_link_max:
        found = title_links(chunks, entities, names, places, config.title_link_max)
        ends = (chunk_ids.take(pa.array(found.first)), chunk_ids.take(pa.array(found.second)))
        kinds.append(_edges("title_link", *ends, found.num_places, found.num_places, found.weight))
    edges = pa.concat_tables(kinds)
    return {
        "links": links,
        "nodes": _nodes(tables),
        "edges": schemas.EDGES.build({name: edges.column(name) for name in edges.column_names}),
    }


def _relation_edges(relations: pa.Table, entity_ids: pa.Array) -> pa.Table:
    """Return one edge per pair of entities that a relation names; a relation of an entity with itself gives none.

    Co-mentions are no edges here: the names of one sentence are joined through their passage already.
    """
    stated = _stated(relations)
    subject, object_ = (codes_of(stated.column(name), entity_ids) for name in ("subject_id", "object_id"))
    apart = subject != object_
    low, high = np.minimum(subject, object_)[apart], np.maximum(subject, object_)[apart]
    first, second, count, accepted = _counted(low, high, len(entity_ids), _accepted(stated)[apart])
    return _edges("relation", _ids(entity_ids, first), _ids(entity_ids, second), count, accepted, count)


def _passage_entity_edges(relations: pa.Table, chunk_ids: pa.Array, entity_ids: pa.Array) -> pa.Table:
    """Return one edge of weight 1 per chunk and entity at an end of one of its relations."""
    stated = _stated(relations)
    chunk, taken = codes_of(stated.column("chunk_id"), chunk_ids), _accepted(stated)
    subject, object_ = (codes_of(stated.column(name), entity_ids) for name in ("subject_id", "object_id"))
    apart = subject != object_
    chunk, entity = np.concatenate([chunk, chunk[apart]]), np.concatenate([subject, object_[apart]])
    taken = np.concatenate([taken, taken[apart]])
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
    forms = tables["entities"].sort_by("entity_id").column("normal_form").to_pylist()
    named = np.array([len(_LETTER_OR_DIGIT.findall(form)) >= min_letters for form in forms], bool)
    entities = np.flatnonzero(named & (rows >= 0))
    if not len(entities):
        return entities, np.empty((0, 0), np.float32)
    vectors = tables["vectors"].column("vector").take(pa.array(rows[entities])).combine_chunks()
    return entities, vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(entities), -1)


def _stated(relations: pa.Table) -> pa.Table:
    """Return the relations that are more than co-mentions."""
    return relations.filter(pc.not_equal(relations.column("predicate"), CO_MENTIONED))


def _accepted(units: pa.Table) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(units.column("decision"), "accept"), bool)


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


def _sorted_ids(table: pa.Table, name: str) -> pa.Array:
    ids = table.column(name).combine_chunks()
    return ids.take(pc.sort_indices(ids))


def _nodes(tables: Tables) -> pa.Table:
    passages, entities = tables["chunks"].column("chunk_id"), tables["entities"]
    descriptions = tables["descriptions"].column("description_id")
    kinds = [_repeated("passage", len(passages)), *entities.column("kind").chunks, _repeated("description", len(descriptions))]
    node_ids = [*passages.chunks, *entities.column("entity_id").chunks, *descriptions.chunks]
    columns = {"node_id": node_ids, "kind": kinds}
    return schemas.NODES.build({name: pa.chunked_array(chunks, schemas.STRING) for name, chunks in columns.items()})


def _repeated(value: str, num_rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, schemas.STRING), num_rows)


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
