"""Stage 03, chunk: cut documents into chunks, and chunks into sentences.

Input:  `schemas.DOCUMENTS`, `schemas.PROFILES`; `schemas.RECORDED_CHUNKS` for the preset `recorded`.
Output: `schemas.CHUNKS` and `schemas.SENTENCES`, 1:n, exact slices of the document's source text (`spans.source_text`).
Device: CPU; `profile` counts tokens by the encoder's tokenizer.

Presets:
- `passage`: one document, one chunk.
- `words-500-200`: windows of 500 words that share 200 (SA-RAG). The lengths are `window_words` and `overlap_words`. A
  word is what stands between white space; of Chinese and Japanese text every character is one.
- `recorded`: the chunks of chunks.jsonl under the ids they have there, each looked up in its document's source text. A
  document with a chunk that is not there, or with none recorded, is `invalid`.
- `profile`: as the document's profile says: by section, paragraph and sentence (`packing`), up to `max_tokens` of what the
  encoder embeds. Chunks of a narrative repeat the last sentences of the one before, up to `overlap_tokens`, but none of another
  section. A document that fits is one chunk.
For all of them `max_chars` is an upper bound. A document without text gives no chunk. The title is no sentence,
except of a chunk that holds nothing else. Section, scope, discourse mode and topics come from the profile whatever the preset;
they are put to the chunks after the cut, so a profile that says something else cuts again only under the preset that asks it.
"""

import re
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from gpu_rag import schemas
from gpu_rag.engines import heartbeat
from gpu_rag.engines.token_counter import TokenCounter
from gpu_rag.errors import InputError
from gpu_rag.ids import chunk_id, occurrences, sentence_id
from gpu_rag.index.locate import locate_in_order
from gpu_rag.index.packing import Limits, packed_spans
from gpu_rag.index.sections import Section, boundary_starts, cut_points, section_paths
from gpu_rag.index.sentences import Span, bounded_spans, sentence_spans
from gpu_rag.schemas import OFFSET, STRING, TEXT, column, list_of, struct_of
from gpu_rag.spans import body_start, is_blank, source_text
from gpu_rag.stage import Cardinality, RowStage, Tables

_CJK = "\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\s{_CJK}]+")
_RECORDED = struct_of(chunk_id=STRING, text=TEXT)


class ChunkConfig(BaseModel):
    """How documents are cut; lengths in words, tokens, or characters (code points)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    preset: Literal["passage", "words-500-200", "recorded", "profile"] = "passage"
    window_words: PositiveInt = 500
    overlap_words: NonNegativeInt = 200
    max_tokens: PositiveInt = Field(default=256, ge=8)
    overlap_tokens: NonNegativeInt = 40
    max_chars: PositiveInt = 20_000
    min_sentence_chars: NonNegativeInt = 25
    max_sentence_chars: PositiveInt = 2_000

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        if self.overlap_words >= self.window_words:
            raise ValueError(f"chunk.overlap_words={self.overlap_words} must be below window_words={self.window_words}")
        if self.overlap_tokens >= self.max_tokens:
            raise ValueError(f"chunk.overlap_tokens={self.overlap_tokens} must be below max_tokens={self.max_tokens}")
        if self.min_sentence_chars >= self.max_sentence_chars:
            raise ValueError(
                f"chunk.min_sentence_chars={self.min_sentence_chars} must be below max_sentence_chars={self.max_sentence_chars}"
            )
        return self


def chunk(work: pa.Table, *, config: ChunkConfig, tokenizer: TokenCounter | None = None) -> pa.Table:
    """Return the chunks of each document and their sentences, as offsets in its source text."""
    rows = []
    for row in work.to_pylist():
        rows.append(_chunk_document(row, config, tokenizer))
        heartbeat.beat()
    return pa.Table.from_pylist(rows, schema=STAGE.result_schema)


class _Chunk(NamedTuple):
    start: int
    end: int
    chunk_id: str = ""  # only of a recorded chunk: the user's own


def _chunk_document(row: dict[str, Any], config: ChunkConfig, tokenizer: TokenCounter | None) -> dict[str, Any]:
    source = source_text(row["title"], row["text"])
    body = body_start(row["title"], row["text"])
    reason = ""
    if config.preset == "passage":
        chunks = [_Chunk(*span) for span in bounded_spans(source, 0, len(source), config.max_chars)]
    elif config.preset == "words-500-200":
        chunks = [_Chunk(*span) for span in _windows(source, config)]
    elif config.preset == "profile":
        assert tokenizer is not None
        overlap = config.overlap_tokens if row["discourse"] == "narrative" else 0
        limits = Limits(config.max_tokens, config.max_chars, overlap)
        chunks = [_Chunk(*span) for span in packed_spans(source, row["title"], body, row["cuts"], limits, tokenizer)]
    else:
        chunks, reason = _recorded_chunks(source, row["recorded"], config.max_chars)
    sentences = [
        {"chunk": index, "start": start, "end": end}
        for index, chunk in enumerate(chunks)
        for start, end in _sentences(source, chunk, body, config)
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
    content = {
        "row_id": ids,
        "title": documents.column("title"),
        "text": documents.column("text"),
        "recorded": pa.array([recorded.get(doc_id, []) for doc_id in ids.to_pylist()], list_of(_RECORDED)),
    }
    if config.preset == "profile":
        profiles = _Profiles(tables)
        texts = zip(*(documents.column(name).to_pylist() for name in ("doc_id", "title", "text")), strict=True)
        cuts = [profiles.cuts(doc_id, source_text(title, text)) for doc_id, title, text in texts]
        content |= {"cuts": pa.array(cuts, list_of(OFFSET)), "discourse": profiles.column("discourse", ids)}
    return pa.table(content)


class _Profiles:
    """The profiles of documents, by id."""

    def __init__(self, tables: Tables) -> None:
        self._table = tables["profiles"]
        self._row = {doc_id: row for row, doc_id in enumerate(self._table.column("doc_id").to_pylist())}
        self._sections = pc.list_value_length(self._table.column("sections")).to_numpy()
        self._boundaries = self._table.column("boundary")

    def column(self, name: str, doc_ids: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
        """Return a column's value for each document."""
        rows = pa.array([self._row[doc_id] for doc_id in doc_ids.to_pylist()], pa.int64())
        return self._table.column(name).take(rows)

    def sections(self, doc_id: str) -> tuple[list[Section], str]:
        """Return a document's sections and its boundary."""
        row = self._row[doc_id]
        if not self._sections[row]:
            return [], "none"
        sections = [Section(**section) for section in self._table.column("sections")[row].as_py()]
        return sections, self._boundaries[row].as_py()

    def cuts(self, doc_id: str, source: str) -> list[int]:
        """Return where no chunk of the document may reach over."""
        sections, boundary = self.sections(doc_id)
        return cut_points(source, sections, boundary) if sections else []


def _assemble(tables: Tables, results: pa.Table, config: ChunkConfig) -> dict[str, pa.Table]:
    """Give chunks and sentences their ids, texts and places; what is `invalid` has none."""
    documents = tables["documents"]
    columns = (documents.column(name).to_pylist() for name in ("doc_id", "title", "text"))
    by_id = {doc_id: (title, text) for doc_id, title, text in zip(*columns, strict=True)}
    doc_ids = results.column("row_id").to_pylist()
    titles = [by_id[doc_id][0] for doc_id in doc_ids]
    sources = [source_text(*by_id[doc_id]) for doc_id in doc_ids]
    chunks = _Spans(results.column("chunks"))
    given = chunks.field("chunk_id").to_pylist()
    texts = chunks.texts(sources)
    ids: list[str] = []
    for row, doc_id in enumerate(doc_ids):
        members = slice(chunks.bounds[row], chunks.bounds[row + 1])
        numbered = zip(given[members], texts[members], occurrences(texts[members]), strict=True)
        ids += [name or chunk_id(doc_id, text, occurrence) for name, text, occurrence in numbered]
    profiles = _Profiles(tables)
    sections, scopes = _places(profiles, doc_ids, sources, chunks, [body_start(*by_id[doc_id]) for doc_id in doc_ids])
    owners = pa.array(doc_ids, STRING).take(chunks.rows)
    table = schemas.CHUNKS.build(
        {
            "chunk_id": pa.array(ids, STRING),
            "doc_id": owners,
            "order": pa.array(chunks.orders()),
            "start": chunks.field("start"),
            "end": chunks.field("end"),
            "title": pa.array(titles, TEXT).take(chunks.rows),
            "text": pa.array(texts, TEXT),
            "section": pa.array(sections, TEXT),
            "scope": pa.array(scopes),
            "discourse": profiles.column("discourse", owners),
            "topics": profiles.column("topics", owners),
        }
    )
    return {"chunks": table, "sentences": _sentence_table(results, doc_ids, sources, chunks, ids)}


class _Spans:
    """The spans in a list column of results, all in one row of arrays.

    Attributes:
        rows: int64 (n,), the result that each span is of.
        bounds: int64 (results + 1,), where each result's spans start.
    """

    def __init__(self, lists: pa.ChunkedArray) -> None:
        self._flat = pc.list_flatten(lists)
        if isinstance(self._flat, pa.ChunkedArray):
            self._flat = self._flat.combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
        self.bounds = np.concatenate([[0], np.cumsum(lengths)])
        self.rows = np.repeat(np.arange(len(lengths)), lengths)

    def field(self, name: str) -> pa.Array:
        """Return one value per span."""
        return pc.struct_field(self._flat, name)

    def orders(self) -> np.ndarray:
        """Return each span's place among those of its result."""
        orders: np.ndarray = np.arange(len(self.rows)) - self.bounds[self.rows]
        return orders

    def texts(self, sources: list[str]) -> list[str]:
        """Return what stands there, of one source per result."""
        places = zip(self.rows.tolist(), self.field("start").to_pylist(), self.field("end").to_pylist(), strict=True)
        return [sources[row][start:end] for row, start, end in places]


def _places(
    profiles: _Profiles, doc_ids: list[str], sources: list[str], chunks: _Spans, bodies: list[int]
) -> tuple[list[str], np.ndarray]:
    """Return section and scope of each chunk."""
    starts, ends = chunks.field("start").to_numpy(), chunks.field("end").to_numpy()
    sections = [""] * len(starts)
    scopes = np.zeros(len(starts), dtype=np.int32)
    for row, doc_id in enumerate(doc_ids):
        found, boundary = profiles.sections(doc_id)
        if not found:
            continue
        members = slice(chunks.bounds[row], chunks.bounds[row + 1])
        spans = [
            _visible(sources[row], *span, bodies[row])
            for span in zip(starts[members].tolist(), ends[members].tolist(), strict=True)
        ]
        sections[members] = section_paths(sources[row], found, spans)
        scopes[members] = np.searchsorted(np.array(boundary_starts(found, boundary), dtype=np.int64), ends[members])
    return sections, scopes


def _visible(source: str, start: int, end: int, body: int) -> Span:
    """Return the span without white space before it, nor the document's title, which stands under no heading."""
    if start < body < end:
        start = body
    text = source[start:end]
    return start + len(text) - len(text.lstrip()), end


def _sentence_table(
    results: pa.Table, doc_ids: list[str], sources: list[str], chunks: _Spans, chunk_ids: list[str]
) -> pa.Table:
    sentences = _Spans(results.column("sentences"))
    texts = sentences.texts(sources)
    owners = chunks.bounds[sentences.rows] + sentences.field("chunk").to_numpy()  # the chunk's place among all
    first = np.searchsorted(owners, np.arange(len(chunk_ids) + 1))
    ids: list[str] = []
    for owner, name in enumerate(chunk_ids):
        members = texts[first[owner] : first[owner + 1]]
        ids += [sentence_id(name, text, occurrence) for text, occurrence in zip(members, occurrences(members), strict=True)]
    return schemas.SENTENCES.build(
        {
            "sentence_id": pa.array(ids, STRING),
            "chunk_id": pa.array(chunk_ids, STRING).take(owners),
            "doc_id": pa.array(doc_ids, STRING).take(sentences.rows),
            "order": pa.array(np.arange(len(owners)) - first[owners]),
            "start": sentences.field("start"),
            "end": sentences.field("end"),
            "text": pa.array(texts, TEXT),
        }
    )


def _engines(config: ChunkConfig) -> tuple[str, ...]:
    return ("tokenizer",) if config.preset == "profile" else ()


def _not_keyed(config: ChunkConfig) -> dict[str, Any]:
    """Leave out the lengths that another preset reads."""
    return (
        {"window_words": True, "overlap_words": True}
        if config.preset == "profile"
        else {"max_tokens": True, "overlap_tokens": True}
    )


STAGE = RowStage(
    number=3,
    name="chunk",
    version=3,
    reads=("documents", "profiles", "recorded_chunks"),
    writes=(schemas.CHUNKS, schemas.SENTENCES),
    cardinality=Cardinality.ONE_TO_MANY,
    engines=_engines,
    not_keyed=_not_keyed,
    payload=pa.schema([
        column("chunks", list_of(struct_of(chunk_id=STRING, start=OFFSET, end=OFFSET))),  # chunk_id: "" if derived
        column("sentences", list_of(struct_of(chunk=pa.int32(), start=OFFSET, end=OFFSET))),  # chunk: index in `chunks`
    ]),
    content=_content,
    run=chunk,
    assemble=_assemble,
)  # fmt: skip
