"""What a query worker holds: one index generation as arrays.

Rows of a type are in id order, so a row number is an id's rank and equal scores are ordered by row. What costs time or
memory (vectors, BM25, the gazetteer, graph views) is made at its first use and kept.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag import schemas
from gpu_rag.engines.lexical import LexicalIndex
from gpu_rag.engines.vector_index import VectorIndex
from gpu_rag.errors import InputError
from gpu_rag.names import Gazetteer
from gpu_rag.query.columns import flags, int64_column, item_vectors, offsets, rows_of
from gpu_rag.query.graph_view import Edges, EntityNames, GraphView, GraphViewConfig, build_graph_view
from gpu_rag.query.homonyms import in_sense
from gpu_rag.schemas import TableSchema
from gpu_rag.spans import body_start, source_text
from gpu_rag.store import Generation, open_generation, read_json

TABLES: tuple[TableSchema, ...] = (
    schemas.DOCUMENTS, schemas.CHUNKS, schemas.SENTENCES, schemas.VECTORS, schemas.EMBEDDINGS, schemas.ENTITIES,
    schemas.RELATIONS, schemas.FACTS, schemas.LINKS, schemas.EDGES,
)  # fmt: skip
EDGE_KINDS = ("relation", "passage_entity", "passage_name", "synonym")


class Lexical:
    """BM25 over the chunks and over the sentences of a repository, each built at its first use."""

    def __init__(self, repository: "Repository", k1: float, b: float) -> None:
        """Index the repository's texts, when asked, with these constants."""
        self._repository, self._k1, self._b = repository, k1, b

    @functools.cached_property
    def chunks(self) -> LexicalIndex:
        """Over title + newline + text."""
        return LexicalIndex(self._repository.titled_chunk_texts(), k1=self._k1, b=self._b)

    @functools.cached_property
    def sentences(self) -> LexicalIndex:
        """Over "title: sentence"."""
        return LexicalIndex(self._repository.titled_sentence_texts(), k1=self._k1, b=self._b)


class Repository:
    """One opened generation; C chunks, S sentences, M entities, F facts, L links, D the dimension of vectors.

    Attributes:
        chunk_ids: C ids, sorted; `chunk_index` gives the row of an id.
        chunk_doc_ids: C document ids.
        chunk_titles: C titles, "" where the document has none.
        chunk_texts: C texts, slices of the documents' source texts.
        chunk_starts: int64 (C,), offsets in the source text; `chunk_ends` likewise.
        sentence_indptr: int64 (C + 1,): sentences of chunk c are the rows indptr[c]:indptr[c + 1], in reading order.
        sentence_texts: S texts.
        sentence_starts: int64 (S,), offsets in the source text; `sentence_ends` likewise.
        sentence_chunks: int64 (S,), chunk rows.
        entity_ids: M ids, sorted.
        entity_names: M names.
        fact_ids: F ids, sorted.
        fact_subject: int64 (F,), entity rows; `fact_object` likewise.
        fact_accepted: bool (F,), whether governance accepted a relation that states the fact.
        link_indptr: int64 (C + 1,): the links of chunk c, by (start, end, entity).
        link_entities: int64 (L,), entity rows.
        link_starts: int64 (L,), offsets in the source text; `link_ends` likewise.
        num_chunks_of_entity: int64 (M,), chunks with a link to the entity (document frequency).
    """

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        """Hold the tables named in `TABLES`, which reference one another (see `from_tables`)."""
        self._tables = {schema.name: tables[schema.name] for schema in TABLES}
        self._views: dict[GraphViewConfig, GraphView] = {}
        self._lexical: dict[tuple[float, float], Lexical] = {}
        self._load_chunks()
        self._load_sentences()
        self._load_entities()
        self._load_links()

    @classmethod
    def from_tables(cls, tables: Mapping[str, pa.Table]) -> "Repository":
        """Return a repository over tables of `gpu_rag.schemas`, in any row order.

        Raises:
            InputError: If a table refers to an id that its target lacks, naming table, column and id.
        """
        return cls(tables)

    @classmethod
    def open(cls, index_path: str | Path, *, verify: bool = True) -> "Repository":
        """Return the repository of an index folder's current generation.

        Raises:
            StoreError: If there is none, or if it is damaged.
        """
        return cls(_tables(open_generation(Path(index_path), verify=verify)))

    def source_text(self, doc_id: str) -> str:
        """Return the text that all offsets of a document count in.

        Raises:
            InputError: If there is no such document.
        """
        if doc_id not in self._document_rows:
            raise InputError(f"table documents has no doc_id {doc_id!r}")
        documents, row = self._tables["documents"], self._document_rows[doc_id]
        return source_text(documents.column("title")[row].as_py(), documents.column("text")[row].as_py())

    def find_names(self, text: str) -> list[tuple[int, int, int]]:
        """Return (start, end, entity row) of the linked entities named in the text, the longest name at each place.

        Of homonyms, those whose sense the text speaks of, or all of them.
        """
        gazetteer, owners = self._gazetteer
        found = sorted({(start, end, owners[name]) for start, end, name in gazetteer.find(text)})
        return in_sense(found, text, self._naming.normal_forms, self._naming.senses)

    @functools.cached_property
    def chunk_vectors(self) -> np.ndarray:
        """Embeddings of title + newline + text, float32 (C, D)."""
        return self._vectors("chunk", self.chunk_ids)

    @functools.cached_property
    def sentence_vectors(self) -> np.ndarray:
        """Embeddings of "title: sentence", float32 (S, D)."""
        return self._vectors("sentence", self._sentence_ids)

    @functools.cached_property
    def fact_vectors(self) -> np.ndarray:
        """Embeddings of the facts' texts, float32 (F, D)."""
        return self._vectors("fact", self.fact_ids)

    @functools.cached_property
    def chunk_search(self) -> VectorIndex:
        """Exact search over `chunk_vectors`."""
        return VectorIndex(self.chunk_vectors)

    @functools.cached_property
    def sentence_search(self) -> VectorIndex:
        """Exact search over `sentence_vectors`."""
        return VectorIndex(self.sentence_vectors)

    @functools.cached_property
    def fact_search(self) -> VectorIndex:
        """Exact search over `fact_vectors`."""
        return VectorIndex(self.fact_vectors)

    @property
    def lexical(self) -> Lexical:
        """BM25 with k1 1.5 and b 0.75."""
        return self.lexical_with(1.5, 0.75)

    def lexical_with(self, k1: float, b: float) -> Lexical:
        """Return BM25 over chunks and sentences with these constants."""
        if (k1, b) not in self._lexical:
            self._lexical[k1, b] = Lexical(self, k1, b)
        return self._lexical[k1, b]

    def titled_chunk_texts(self) -> list[str]:
        """Return the chunks' texts, each after its title unless it begins with it."""
        documents = self._tables["documents"]
        columns = (documents.column(name).to_pylist() for name in ("title", "text"))
        bodies = [body_start(title, text) for title, text in zip(*columns, strict=True)]
        texts = []
        for row, (title, text) in enumerate(zip(self.chunk_titles, self.chunk_texts, strict=True)):
            holds_title = self.chunk_starts[row] < bodies[self._document_rows[self.chunk_doc_ids[row]]]
            texts.append(text if holds_title else source_text(title, text))
        return texts

    def titled_sentence_texts(self) -> list[str]:
        """Return the sentences' texts as "title: sentence", or alone where there is no title."""
        titles = (self.chunk_titles[chunk] for chunk in self.sentence_chunks)
        return [f"{t}: {s}" if t else s for t, s in zip(titles, self.sentence_texts, strict=True)]

    def graph_view(self, config: GraphViewConfig) -> GraphView:
        """Return the graph that a system walks, built once."""
        if config not in self._views:
            edges = {kind: self.edges(kind) for kind in EDGE_KINDS}
            self._views[config] = build_graph_view(config, len(self.chunk_ids), self._naming, edges)
        return self._views[config]

    def edges(self, kind: str) -> Edges:
        """Return the edges of one of `EDGE_KINDS`, chunk and entity rows as ends, all governance decisions among them."""
        edges = self._tables["edges"]
        edges = edges.filter(pc.equal(edges.column("kind"), kind))
        source_ids = self.chunk_ids if kind.startswith("passage") else self.entity_ids
        return Edges(
            source=rows_of(edges, "edges", "source_id", source_ids),
            target=rows_of(edges, "edges", "target_id", self.entity_ids),
            count=int64_column(edges, "count"),
            accepted=int64_column(edges, "accepted"),
            weight=edges.column("weight").to_numpy(),
        )

    def _load_chunks(self) -> None:
        documents = self._tables["documents"]
        doc_ids = documents.column("doc_id").to_pylist()
        self._document_rows = {doc_id: row for row, doc_id in enumerate(doc_ids)}
        chunks = self._tables["chunks"].sort_by("chunk_id")
        self.chunk_ids: list[str] = chunks.column("chunk_id").to_pylist()
        self.chunk_index = {chunk_id: row for row, chunk_id in enumerate(self.chunk_ids)}
        self.chunk_doc_ids: list[str] = chunks.column("doc_id").to_pylist()
        self.chunk_titles: list[str] = chunks.column("title").to_pylist()
        self.chunk_texts: list[str] = chunks.column("text").to_pylist()
        self.chunk_starts, self.chunk_ends = int64_column(chunks, "start"), int64_column(chunks, "end")
        rows_of(chunks, "chunks", "doc_id", doc_ids)

    def _load_sentences(self) -> None:
        sentences = self._tables["sentences"]
        chunk = rows_of(sentences, "sentences", "chunk_id", self.chunk_ids)
        order = np.lexsort((int64_column(sentences, "order"), chunk))
        sentences = sentences.take(pa.array(order))
        self.sentence_chunks = chunk[order]
        self.sentence_indptr = offsets(self.sentence_chunks, len(self.chunk_ids))
        self._sentence_ids: list[str] = sentences.column("sentence_id").to_pylist()
        self.sentence_texts: list[str] = sentences.column("text").to_pylist()
        self.sentence_starts, self.sentence_ends = int64_column(sentences, "start"), int64_column(sentences, "end")

    def _load_entities(self) -> None:
        entities = self._tables["entities"].sort_by("entity_id")
        self._entities = entities
        self.entity_ids: list[str] = entities.column("entity_id").to_pylist()
        self.entity_names: list[str] = entities.column("name").to_pylist()
        forms, senses = entities.column("normal_form").to_pylist(), entities.column("sense").to_pylist()
        canonical = rows_of(entities, "entities", "canonical_id", self.entity_ids)
        self._naming = EntityNames(self.entity_names, forms, senses, canonical)
        self.fact_ids: list[str] = self._tables["facts"].sort_by("fact_id").column("fact_id").to_pylist()
        relations = self._tables["relations"].sort_by("relation_id")
        facts = pc.index_in(relations.column("fact_id"), value_set=pa.array(self.fact_ids, schemas.STRING))
        relations = relations.filter(facts.is_valid())  # a co-mention states no fact
        stated, first, fact = np.unique(facts.drop_null().to_numpy(), return_index=True, return_inverse=True)
        if len(stated) != len(self.fact_ids):
            unstated = np.setdiff1d(np.arange(len(self.fact_ids)), stated)
            raise InputError(f"table facts, column fact_id: no relation states {self.fact_ids[unstated[0]]}")
        self.fact_subject = rows_of(relations, "relations", "subject_id", self.entity_ids)[first]
        self.fact_object = rows_of(relations, "relations", "object_id", self.entity_ids)[first]
        accepted = flags(pc.equal(relations.column("decision"), "accept"))
        self.fact_accepted = np.bincount(fact, weights=accepted, minlength=len(self.fact_ids)) > 0

    def _load_links(self) -> None:
        links = self._tables["links"]
        chunk = rows_of(links, "links", "chunk_id", self.chunk_ids)
        entity = rows_of(links, "links", "entity_id", self.entity_ids)
        start, end = int64_column(links, "start"), int64_column(links, "end")
        order = np.lexsort((entity, end, start, chunk))
        self.link_indptr = offsets(chunk[order], len(self.chunk_ids))
        self.link_entities, self.link_starts, self.link_ends = entity[order], start[order], end[order]
        pairs = np.unique(entity * max(len(self.chunk_ids), 1) + chunk)
        self.num_chunks_of_entity = np.bincount(pairs // max(len(self.chunk_ids), 1), minlength=len(self.entity_ids)).astype(
            np.int64
        )

    def _vectors(self, kind: str, item_ids: list[str]) -> np.ndarray:
        return item_vectors(self._tables["embeddings"], self._tables["vectors"], kind, item_ids)

    @functools.cached_property
    def _gazetteer(self) -> tuple[Gazetteer, list[int]]:
        """The lookup of names in questions, and the entity row of each of its forms: every entity that has a link."""
        forms, owners = [], []
        for row, names in enumerate(self._entities.column("names").to_pylist()):
            if self.num_chunks_of_entity[row]:
                forms += names
                owners += [row] * len(names)
        return Gazetteer(forms), owners


def open_repository(index_path: Path, generation_id: str) -> Repository:
    """Return the repository of one generation, which the run's driver has verified.

    Raises:
        StoreError: If a table is missing or of another version.
    """
    manifest = read_json(index_path / "generations" / f"{generation_id}.json")
    return Repository.from_tables(_tables(Generation(index_path, manifest)))


def _tables(generation: Generation) -> dict[str, pa.Table]:
    return {schema.name: generation.read(schema) for schema in TABLES}
