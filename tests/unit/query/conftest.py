"""A small repository from documents, relations and synonyms, and an encoder that needs no model."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpu_rag import ids, schemas
from gpu_rag.engines.encoder import Encoded, TokenVectors
from gpu_rag.engines.generation import TextGenerator
from gpu_rag.engines.llm import LlmConfig, ScriptedConfig
from gpu_rag.engines.llm_scripted import Reply, ScriptedEngine
from gpu_rag.query import s05_select, s06_ground, s07_suffice, s08_answer
from gpu_rag.query.repository import Repository
from gpu_rag.spans import body_start, normal_form, source_text

Documents = dict[str, tuple[str, str]]
Triple = tuple[str, str, str, str, str]  # doc id, subject, predicate, object, decision


class WordEncoder:
    """Unit vectors of bags of words: each word has a random direction of its own."""

    identity = "words"
    dim = 48
    max_tokens = 1000

    def encode(self, texts: Sequence[str], *, kind: str = "passage") -> Encoded:
        vectors = np.stack([self._vector(text) for text in texts]) if texts else np.empty((0, self.dim), np.float32)
        counts = np.ones(len(texts), np.int32)
        return Encoded(vectors, counts, np.zeros_like(counts))

    def encode_tokens(self, texts: Sequence[str]) -> list[TokenVectors]:
        matches = [list(re.finditer(r"\w+", text)) for text in texts]
        return [
            TokenVectors(
                np.array([self._vector(m.group()) for m in found], np.float32).reshape(-1, self.dim),
                np.array([m.start() for m in found], np.int32),
                np.array([m.end() for m in found], np.int32),
            )
            for found in matches
        ]

    def _vector(self, text: str) -> np.ndarray:
        words = re.findall(r"\w+", text.lower()) or [""]
        seeds = [int.from_bytes(word.encode(), "little") % 2**32 for word in words]
        total = np.sum([np.random.default_rng(seed).normal(size=self.dim) for seed in seeds], axis=0)
        return (total / np.linalg.norm(total)).astype(np.float32)


@pytest.fixture(scope="session")
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture(scope="session")
def make_tables(encoder: WordEncoder) -> Callable[..., dict[str, pa.Table]]:
    def make(
        documents: Documents, triples: Sequence[Triple] = (), names: Sequence[str] = (),
        synonyms: Sequence[tuple[str, str, float]] = (),
    ) -> dict[str, pa.Table]:  # fmt: skip
        return _tables(encoder, documents, triples, names, synonyms)

    return make


@pytest.fixture(scope="session")
def make_repository(make_tables: Callable[..., dict[str, pa.Table]]) -> Callable[..., Repository]:
    def make(*arguments: Any, **keywords: Any) -> Repository:
        return Repository.from_tables(make_tables(*arguments, **keywords))

    return make


def _tables(
    encoder: WordEncoder, documents: Documents, triples: Sequence[Triple], names: Sequence[str],
    synonyms: Sequence[tuple[str, str, float]],
) -> dict[str, pa.Table]:  # fmt: skip
    texts: dict[tuple[str, str], str] = {}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("documents", "chunks", "sentences", "links")}
    chunk_of = {}
    for doc_id, (title, text) in documents.items():
        source, body = source_text(title, text), body_start(title, text)
        chunk_id = chunk_of[doc_id] = ids.chunk_id(doc_id, text, 0)
        of_doc = {"doc_id": doc_id, "title": title, "text": text}
        state = {"access": [], "duplicate_of": None, "state": "ok", "reason": ""}
        rows["documents"].append({**of_doc, **state})
        profile = {"section": "", "scope": 0, "discourse": "narrative", "topics": []}
        span = {"order": 0, "start": body, "end": len(source)}
        rows["chunks"].append({**of_doc, **span, **profile, "chunk_id": chunk_id})
        texts["chunk", chunk_id] = source
        for order, match in enumerate(re.finditer(r"[^. ][^.]*\.?", text)):
            sentence = {"sentence_id": ids.sentence_id(chunk_id, match.group(), order), "order": order}
            place = {"chunk_id": chunk_id, "doc_id": doc_id, "start": body + match.start(), "end": body + match.end()}
            rows["sentences"].append({**sentence, **place, "text": match.group()})
            texts["sentence", sentence["sentence_id"]] = f"{title}: {match.group()}" if title else match.group()
        for name in names:
            for match in re.finditer(re.escape(name), source):
                link = {"entity_id": ids.entity_id(normal_form(name)), "chunk_id": chunk_id, "doc_id": doc_id}
                rows["links"].append({**link, "start": match.start(), "end": match.end()})
    ends = [(triple[end], chunk_of[triple[0]]) for triple in triples for end in (1, 3)]
    linked = [(name, row["chunk_id"]) for name in names for row in rows["links"]
              if row["entity_id"] == ids.entity_id(normal_form(name))]  # fmt: skip
    entities = {name: {chunk for other, chunk in ends + linked if other == name} for name, _ in ends + linked}
    relations = [_relation(*triple, chunk_of[triple[0]]) for triple in triples]
    facts = {row["fact_id"]: str((s, p, o)) for row, (_, s, p, o, _) in zip(relations, triples, strict=True)
             if p != "co-mentioned"}  # fmt: skip
    texts |= {("fact", fact_id): text for fact_id, text in facts.items()}
    return {
        "documents": schemas.DOCUMENTS.from_rows(rows["documents"]),
        "chunks": schemas.CHUNKS.from_rows(rows["chunks"]),
        "sentences": schemas.SENTENCES.from_rows(rows["sentences"]),
        "links": schemas.LINKS.from_rows(rows["links"]),
        "entities": schemas.ENTITIES.from_rows([
            {"entity_id": ids.entity_id(normal_form(name)), "canonical_id": ids.entity_id(normal_form(name)), "kind": "entity",
             "type": None, "sense": "", "aliases": [], "name": name, "normal_form": normal_form(name),
             "names": [name], "extractors": ["mentions"], "num_chunks": len(chunks)}
            for name, chunks in entities.items()
        ]),
        "relations": schemas.RELATIONS.from_rows(relations),
        "facts": schemas.FACTS.from_rows([{"fact_id": fact_id, "text": text} for fact_id, text in facts.items()]),
        "edges": schemas.EDGES.from_rows(_edges(relations, rows["links"], synonyms)),
        **_vectors(encoder, texts),
    }  # fmt: skip


def _relation(doc_id: str, subject: str, predicate: str, object_: str, decision: str, chunk_id: str) -> dict[str, Any]:
    forms = normal_form(subject), normal_form(predicate), normal_form(object_)
    return {
        "relation_id": ids.unit_id("relation", chunk_id, "test", *forms), "fact_id": ids.fact_id(*forms),
        "subject_id": ids.entity_id(forms[0]), "object_id": ids.entity_id(forms[2]), "predicate": predicate,
        "chunk_id": chunk_id, "doc_id": doc_id, "extractor": "test", "type": None, "start": None, "end": None, "confidence": None,
        "decision": decision, "reasons": [],
    }  # fmt: skip


def _edges(
    relations: list[dict[str, Any]], links: list[dict[str, Any]], synonyms: Sequence[tuple[str, str, float]]
) -> list[dict[str, Any]]:
    edges: dict[tuple[str, str, str], dict[str, Any]] = {}

    def add(kind: str, source: str, target: str, accepted: bool, weight: float) -> None:
        key = (kind, source, target)
        edge = edges.setdefault(key, dict(zip(("kind", "source_id", "target_id"), key, strict=True)) | {"count": 0})
        edge["count"] += 1
        edge["accepted"] = edge.get("accepted", 0) + accepted
        edge["weight"] = float(edge["count"]) if kind == "relation" else weight

    for row in relations:
        if row["predicate"] != "co-mentioned":
            accepted = row["decision"] == "accept"
            add("relation", *sorted((row["subject_id"], row["object_id"])), accepted, 1.0)
            for entity_id in {row["subject_id"]: 0, row["object_id"]: 0}:
                add("passage_entity", row["chunk_id"], entity_id, accepted, 1.0)
    chunks = {entity: {row["chunk_id"] for row in links if row["entity_id"] == entity} for entity in
              {row["entity_id"]: 0 for row in links}}  # fmt: skip
    for row in links:
        add("passage_name", row["chunk_id"], row["entity_id"], True, 1 / np.log2(1 + len(chunks[row["entity_id"]])))
    for first, second, cosine in synonyms:
        add("synonym", *sorted(ids.entity_id(normal_form(name)) for name in (first, second)), True, cosine)
    return list(edges.values())


def _vectors(encoder: WordEncoder, texts: dict[tuple[str, str], str]) -> dict[str, pa.Table]:
    distinct = sorted({ids.vector_id(text): text for text in texts.values()}.items())
    vectors = encoder.encode([text for _, text in distinct]).vectors
    return {
        "vectors": schemas.VECTORS.from_rows([
            {"vector_id": vector_id, "vector": vector, "num_tokens": 1, "cut_tokens": 0}
            for (vector_id, _), vector in zip(distinct, vectors.tolist(), strict=True)
        ]),
        "embeddings": schemas.EMBEDDINGS.from_rows([
            {"kind": kind, "item_id": item, "vector_id": ids.vector_id(text)} for (kind, item), text in texts.items()
        ]),
    }  # fmt: skip


@pytest.fixture(scope="session")
def pipeline(encoder: WordEncoder) -> Callable[..., list[dict[str, Any]]]:
    """Stages 05 to 08 on a pool that holds every passage (or those named in `retrieved`), as rows of columns."""
    stages = {
        "selection": (s05_select.select, "select", s05_select.SelectConfig()),
        "annotations": (s06_ground.ground, "ground", s06_ground.GroundConfig()),
        "sufficiency": (s07_suffice.suffice, "suffice", s07_suffice.SufficeConfig()),
        "reply": (s08_answer.answer, "answer", s08_answer.AnswerConfig()),
    }

    def run(
        repository: Repository, questions: Sequence[str], *, through: str, demands: list[dict[str, Any]] | None = None,
        retrieved: dict[str, list[str]] | None = None, **more: Any,
    ) -> list[dict[str, Any]]:  # fmt: skip
        engines = {"repository": repository, "encoder": more.get("encoder", encoder)}
        asked = [demands or [_whole(question)] for question in questions]
        work = pa.table(
            {
                "work_key": pa.array([str(row) for row in range(len(questions))], schemas.STRING),
                "question": pa.array(questions, schemas.TEXT),
                "demands": pa.array(asked, schemas.list_of(schemas.DEMAND)),
                "pool": pa.array([_pool(repository, d, retrieved) for d in asked], schemas.list_of(schemas.CANDIDATE)),
            }
        )
        for name, (function, section, config) in stages.items():
            needed = {"repository": repository} if name == "selection" else engines
            result = function(work, config=more.get(section, config), **needed)
            assert set(result.column("state").to_pylist()) == {"ok"}
            work = work.append_column(name, result.column(name))
            if name == through:
                break
        return [{k: v for k, v in row.items() if k != "work_key"} for row in work.to_pylist()]

    return run


def _whole(question: str) -> dict[str, Any]:
    return {"demand_id": "D1", "description": question, "query": question, "inputs": [], "outputs": ["x1"]}


def _pool(
    repository: Repository, demands: list[dict[str, Any]], retrieved: dict[str, list[str]] | None
) -> list[dict[str, Any]]:
    pool = []
    for row, (chunk_id, doc_id) in enumerate(zip(repository.chunk_ids, repository.chunk_doc_ids, strict=True)):
        events = [
            {"demand_id": demand["demand_id"], "rank": row + 1}
            for demand in demands
            if retrieved is None or doc_id in retrieved.get(demand["demand_id"], [])
        ]
        if events:
            pool.append(
                {"chunk_id": chunk_id, "doc_id": doc_id, "events": events, "num_events": len(events), "best_rank": row + 1,
                 "same_title": 1, "score": 1.0 / (row + 1)}
            )  # fmt: skip
    return pool


@pytest.fixture(scope="session")
def scripted() -> Callable[..., tuple[TextGenerator, ScriptedEngine]]:
    """A generator without a model, and its engine, whose `sent` are the requests that reached it."""

    def make(reply: Reply | None = None, *, retries: int = 0, **script: Any) -> tuple[TextGenerator, ScriptedEngine]:
        engine = ScriptedEngine(LlmConfig(engine="scripted", scripted=ScriptedConfig(**script)), reply)
        return TextGenerator(engine, retries=retries), engine

    return make


@pytest.fixture(scope="session")
def prompted_work() -> Callable[..., pa.Table]:
    """Work for stages 05 to 08: each question with demands, a pool of every passage (see `pipeline`), all of it selected,
    no annotations, and a sufficiency that says yes."""

    def make(
        repository: Repository, questions: Sequence[str], *, demands: list[dict[str, Any]] | None = None,
        retrieved: dict[str, list[str]] | None = None, select: int | None = None,
        annotations: Sequence[list[dict[str, Any]]] | None = None, refused: str = "", open_demands: Sequence[str] = (),
    ) -> pa.Table:  # fmt: skip
        asked = [demands or [_whole(question)] for question in questions]
        pools = [_pool(repository, d, retrieved) for d in asked]
        chosen = [
            [{"chunk_id": c["chunk_id"], "doc_id": c["doc_id"], "pool_rank": rank, "reason": "fill"}
             for rank, c in enumerate(pool[:select], start=1)]
            for pool in pools
        ]  # fmt: skip
        sufficiency = {"sufficient": not refused, "score": 1.0, "threshold": 0.0, "calibration": "", "reason": refused,
                       "open_demands": list(open_demands), "features": []}  # fmt: skip
        rows = len(questions)
        return pa.table(
            {
                "work_key": pa.array([str(row) for row in range(rows)], schemas.STRING),
                "question": pa.array(questions, schemas.TEXT),
                "demands": pa.array(asked, schemas.list_of(schemas.DEMAND)),
                "pool": pa.array(pools, schemas.list_of(schemas.CANDIDATE)),
                "selection": pa.array(chosen, schemas.list_of(schemas.SELECTED)),
                "annotations": pa.array(annotations or [[]] * rows, schemas.list_of(schemas.ANNOTATION)),
                "sufficiency": pa.array([sufficiency] * rows, schemas.SUFFICIENCY),
            }
        )

    return make


@pytest.fixture(scope="session")
def annotation() -> Callable[..., dict[str, Any]]:
    """A valid annotation of the sentence of a document that holds a text."""

    def make(repository: Repository, doc_id: str, text: str, *, demand: str = "D1", value: str = "", score: float = 1.0):  # type: ignore[no-untyped-def]
        row = next(
            row for row, sentence in enumerate(repository.sentence_texts)
            if text in sentence and repository.chunk_doc_ids[repository.sentence_chunks[row]] == doc_id
        )  # fmt: skip
        return {
            "demand_id": demand, "chunk_id": repository.chunk_ids[repository.sentence_chunks[row]], "doc_id": doc_id,
            "start": int(repository.sentence_starts[row]), "end": int(repository.sentence_ends[row]),
            "quote": repository.sentence_texts[row], "type": "supports", "consumes": [], "score": score,
            "produces": [{"variable": f"x{demand[1:]}", "value": value}] if value else [],
        }  # fmt: skip

    return make
