"""Fixtures of the index tests: small tables for stages 04, 06 and 07, as functions."""

import re
from collections.abc import Callable

import pyarrow as pa
import pytest

from gpu_rag import ids, schemas
from gpu_rag.index import s04_extract, s06_govern
from gpu_rag.index.s04_extract import ExtractConfig
from gpu_rag.index.s06_govern import GovernConfig
from gpu_rag.spans import body_start, source_text

Tables = dict[str, pa.Table]
Recorded = dict[str, tuple[list[str], list[list[str]]]]


def _corpus(documents: dict[str, tuple[str, str]], recorded: Recorded | None = None) -> Tables:
    """Return chunks (one a document), sentences (ended by a full stop), and what was recorded."""
    chunks: list[dict[str, object]] = []
    sentences: list[dict[str, object]] = []
    for doc_id, (title, text) in documents.items():
        source = source_text(title, text)
        chunk_id = ids.chunk_id(doc_id, source, 0)
        place = {"chunk_id": chunk_id, "doc_id": doc_id}
        profile = {"section": "", "scope": 0, "discourse": "narrative", "topics": []}
        span = {"order": 0, "start": 0, "end": len(source)}
        chunks.append({**place, **span, **profile, "title": title, "text": source})
        body = body_start(title, text)
        for order, match in enumerate(re.finditer(r"\S[^.]*\.?", source[body:])):
            found = {"start": body + match.start(), "end": body + match.end(), "text": match.group()}
            sentence_id = ids.sentence_id(chunk_id, match.group(), order)
            sentences.append({**place, "sentence_id": sentence_id, "order": order, **found})
    entries: list[dict[str, object]] = [
        {"item_id": item, "entities": entities, "triples": triples} for item, (entities, triples) in (recorded or {}).items()
    ]
    return {
        "chunks": schemas.CHUNKS.from_rows(chunks),
        "sentences": schemas.SENTENCES.from_rows(sentences),
        "recorded_extraction": schemas.RECORDED_EXTRACTION.from_rows(entries),
    }


def _extract(tables: Tables, *methods: str) -> pa.Table:
    """Run stage 04 over the tables, add its output to them, and return the results as the executor joins them."""
    config = ExtractConfig(methods=methods or ("mentions",))
    content = s04_extract.STAGE.content(tables, config)
    work = content.rename_columns(["work_key", *content.schema.names[1:]])
    results = s04_extract.STAGE.run(work, config=config)
    assert results.schema.equals(s04_extract.STAGE.result_schema)
    results = results.rename_columns(["row_id", *results.schema.names[1:]])
    tables |= s04_extract.STAGE.assemble(tables, results, config)
    tables |= {"vectors": schemas.VECTORS.empty(), "embeddings": schemas.EMBEDDINGS.empty()}
    return results


def _govern(tables: Tables, *methods: str, config: GovernConfig | None = None) -> Tables:
    """Run stages 04 and 06 over the tables and return all of them."""
    _extract(tables, *methods)
    tables |= s06_govern.STAGE.run(tables, config=config or GovernConfig())
    return tables


@pytest.fixture
def corpus() -> Callable[..., Tables]:
    """(doc id -> (title, text), doc id -> (entities, triples)) -> tables of stage 03."""
    return _corpus


@pytest.fixture
def extract() -> Callable[..., pa.Table]:
    """(tables, *methods) -> results of stage 04; its tables are added."""
    return _extract


@pytest.fixture
def govern() -> Callable[..., Tables]:
    """(tables, *methods, config) -> the tables with those of stages 04 and 06."""
    return _govern
