"""Stage 03, chunk: cut documents into chunks, and chunks into sentences.

Input:  `schemas.DOCUMENTS`; `schemas.RECORDED_CHUNKS` for the preset `recorded`.
Output: `schemas.CHUNKS` and `schemas.SENTENCES`, 1:n, exact slices of the document's source text (`spans.source_text`).
Device: CPU.

Presets:
- `passage`: one document, one chunk.
- `words-500-200`: windows of 500 words that share 200 (SA-RAG). The lengths are `window_words` and `overlap_words`. A
  word is what stands between white space; of Chinese and Japanese text every character is one.
- `recorded`: the chunks of chunks.jsonl under the ids they have there, each looked up in its document's source text. A
  document with a chunk that is not there, or with none recorded, is `invalid`.
For all of them `max_chars` is an upper bound. A document without text gives no chunk. The title is no sentence,
except of a chunk that holds nothing else.
"""

import re
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, model_validator

from gpu_rag import schemas
from gpu_rag.errors import InputError
from gpu_rag.ids import chunk_id, occurrences, sentence_id
from gpu_rag.index.locate import locate_in_order
from gpu_rag.index.sentences import Span, bounded_spans, sentence_spans
from gpu_rag.schemas import OFFSET, STRING, TEXT, column, list_of, struct_of
from gpu_rag.spans import body_start, is_blank, source_text
from gpu_rag.stage import Cardinality, RowStage, Tables

_CJK = "\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
_RECORDED = struct_of(chunk_id=STRING, text=TEXT)


class ChunkConfig(BaseModel):
    """How documents are cut; lengths in words or in characters (code points)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    preset: Literal["passage", "words-500-200", "recorded"] = "passage"
    window_words: PositiveInt = 500
    overlap_words: NonNegativeInt = 200
    max_chars: PositiveInt = 20_000
    min_sentence_chars: NonNegativeInt = 25
    max_sentence_chars: PositiveInt = 2_000

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.overlap_words >= self.window_words:
            raise ValueError(f"chunk.overlap_words={self.overlap_words} must be below window_words={self.window_words}")
        if self.min_sentence_chars >= self.max_sentence_chars:
            raise ValueError(
                f"chunk.min_sentence_chars={self.min_sentence_chars} must be below max_sentence_chars={self.max_sentence_chars}"
            )
        return self


def chunk(work: pa.Table, *, config: ChunkConfig) -> pa.Table:
    """Return the chunks of each document and their sentences, as offsets in its source text."""
    rows = [_chunk_document(row, config) for row in work.to_pylist()]
    return pa.Table.from_pylist(rows, schema=STAGE.result_schema)


class _Chunk(NamedTuple):
    start: int
    end: int
    chunk_id: str = ""  # only of a recorded chunk: the user's own


def _chunk_document(row: dict[str, Any], config: ChunkConfig) -> dict[str, Any]:
    source = source_text(row["title"], row["text"])
    reason = ""
    if config.preset == "passage":
        chunks = [_Chunk(*span) for span in bounded_spans(source, 0, len(source), config.max_chars)]
    elif config.preset == "words-500-200":
        chunks = [_Chunk(*span) for span in _windows(source, config)]
    else:
        chunks, reason = _recorded_chunks(source, row["recorded"], config.max_chars)
    sentences = [
        {"chunk": index, "start": start, "end": end}
        for index, chunk in enumerate(chunks)
        for start, end in _sentences(source, chunk, body_start(row["title"], row["text"]), config)
    ]
    return {
        "work_key": row["work_key"],
        "state": "invalid" if reason else "ok",
        "reason": reason,
        "chunks": [chunk._asdict() for chunk in chunks],
        "sentences": sentences,
    }


def _windows(source: str, config: ChunkConfig) -> list[Span]:
    """Return word windows; the last one ends with the text, so it is never a mere tail of the one before."""
    words = [match.span() for match in _WORD.finditer(source)]
    spans: list[Span] = []
    first, last = 0, -1
    while last < len(words) - 1:
        last = min(first + config.window_words, len(words)) - 1
        spans += bounded_spans(source, words[first][0], words[last][1], config.max_chars)
        first += config.window_words - config.overlap_words
    return spans


def _recorded_chunks(source: str, recorded: list[dict[str, str]], max_chars: int) -> tuple[list[_Chunk], str]:
    """Return the chunks, ordered by place, and why there are none."""
    if not recorded:
        return [], "no chunk is recorded for the document"
    chunks = []
    for item, span in zip(recorded, locate_in_order(source, [item["text"] for item in recorded]), strict=True):
        name = item["chunk_id"]
        if span is None:
            return [], f"recorded chunk {name} does not stand in the document"
        length = span[1] - span[0]
        if length > max_chars:
            return [], f"recorded chunk {name} has {length} characters, more than chunk.max_chars={max_chars}"
        chunks.append(_Chunk(*span, name))
    return sorted(chunks), ""


def _sentences(source: str, chunk: _Chunk, body: int, config: ChunkConfig) -> list[Span]:
    start, end = chunk.start, chunk.end
    if start < body < end and not is_blank(source[body:end]):
        start = body
    spans = sentence_spans(source[start:end], min_chars=config.min_sentence_chars, max_chars=config.max_sentence_chars)
    return [(start + a, start + b) for a, b in spans]


def _content(tables: Tables, config: ChunkConfig) -> pa.Table:
    documents = tables["documents"].filter(pc.equal(tables["documents"].column("state"), "ok"))
    recorded: dict[str, list[dict[str, str]]] = {}
    if config.preset == "recorded":
        if documents.num_rows and not tables["recorded_chunks"].num_rows:
            raise InputError("chunk.preset=recorded, but there is no chunks.jsonl beside the corpus")
        # The user's chunk ids are content here: they are what comes out, and what a reason has to name.
        for row in schemas.RECORDED_CHUNKS.sort(tables["recorded_chunks"]).to_pylist():
            recorded.setdefault(row["doc_id"], []).append({"chunk_id": row["chunk_id"], "text": row["text"]})
    ids = documents.column("doc_id")
    return pa.table(
        {
            "row_id": ids,
            "title": documents.column("title"),
            "text": documents.column("text"),
            "recorded": pa.array([recorded.get(doc_id, []) for doc_id in ids.to_pylist()], list_of(_RECORDED)),
        }
    )


def _assemble(tables: Tables, results: pa.Table, config: ChunkConfig) -> dict[str, pa.Table]:
    """Give chunks and sentences their ids and texts; what is `invalid` has none."""
    sources = {
        row["doc_id"]: (row["title"], source_text(row["title"], row["text"]))
        for row in tables["documents"].select(["doc_id", "title", "text"]).to_pylist()
    }
    chunks: list[dict[str, Any]] = []
    sentences: list[dict[str, Any]] = []
    for result in results.select(["row_id", "chunks", "sentences"]).to_pylist():
        doc_id = result["row_id"]
        title, source = sources[doc_id]
        texts = [source[span["start"] : span["end"]] for span in result["chunks"]]
        ids = [
            span["chunk_id"] or chunk_id(doc_id, text, occurrence)
            for span, text, occurrence in zip(result["chunks"], texts, occurrences(texts), strict=True)
        ]
        for order, (span, name, text) in enumerate(zip(result["chunks"], ids, texts, strict=True)):
            place = {"start": span["start"], "end": span["end"]}
            profile = {"section": "", "scope": 0, "discourse": "narrative", "topics": []}
            chunks.append({"chunk_id": name, "doc_id": doc_id, "order": order, "title": title, "text": text} | place | profile)
        sentences += _sentence_rows(doc_id, source, ids, result["sentences"])
    return {"chunks": schemas.CHUNKS.from_rows(chunks), "sentences": schemas.SENTENCES.from_rows(sentences)}


def _sentence_rows(doc_id: str, source: str, chunk_ids: list[str], spans: list[dict[str, int]]) -> list[dict[str, Any]]:
    by_chunk: list[list[dict[str, int]]] = [[] for _ in chunk_ids]
    for span in spans:
        by_chunk[span["chunk"]].append(span)
    rows = []
    for name, members in zip(chunk_ids, by_chunk, strict=True):
        texts = [source[span["start"] : span["end"]] for span in members]
        for order, (span, text, occurrence) in enumerate(zip(members, texts, occurrences(texts), strict=True)):
            rows.append(
                {
                    "sentence_id": sentence_id(name, text, occurrence),
                    "chunk_id": name,
                    "doc_id": doc_id,
                    "order": order,
                    "start": span["start"],
                    "end": span["end"],
                    "text": text,
                }
            )
    return rows


STAGE = RowStage(
    number=3,
    name="chunk",
    version=2,
    reads=("documents", "recorded_chunks"),
    writes=(schemas.CHUNKS, schemas.SENTENCES),
    cardinality=Cardinality.ONE_TO_MANY,
    payload=pa.schema([
        column("chunks", list_of(struct_of(chunk_id=STRING, start=OFFSET, end=OFFSET))),  # chunk_id: "" if derived
        column("sentences", list_of(struct_of(chunk=pa.int32(), start=OFFSET, end=OFFSET))),  # chunk: index in `chunks`
    ]),
    content=_content,
    run=chunk,
    assemble=_assemble,
)  # fmt: skip
