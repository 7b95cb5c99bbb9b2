"""Stage 04, extract: units (mentions and relations) of each chunk.

Input:  `schemas.CHUNKS`, `schemas.SENTENCES`, `schemas.RECORDED_EXTRACTION`.
Output: `schemas.UNIT_MENTIONS`, `schemas.UNIT_RELATIONS`, n per chunk.
Device: CPU; `llm` asks the run's language model.

The methods are combined: each unit keeps the name of the extractor it comes from. A chunk in which nothing is found is
`empty`, which is a result and not a failure. A chunk that one of them fails on has that state and no units at all, until it is
tried again: half of what was asked for would pass for the whole.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from gpu_rag import ids, schemas
from gpu_rag.engines import heartbeat
from gpu_rag.engines.generation import PENDING, TextGenerator
from gpu_rag.engines.usage import usage_columns
from gpu_rag.errors import ConfigError, InputError
from gpu_rag.index.extractors import Chunk, Extraction, Extractor, Failure, mentions, recorded
from gpu_rag.index.extractors.llm import LlmExtractConfig, extract_all, extract_texts
from gpu_rag.schemas import STRING, TEXT, column, list_of
from gpu_rag.spans import is_blank
from gpu_rag.stage import WORK_COLUMNS, Cardinality, RowStage, Tables

_LLM = "llm"
_ID_ROWS = 1 << 16  # units whose ids are made at once: bounds the Python objects alive
_BUILT_IN: dict[str, Extractor] = {"mentions": mentions.extract, "recorded": recorded.extract}
_SPAN = [column("start", pa.int64(), nullable=True), column("end", pa.int64(), nullable=True)]
_CONFIDENCE = column("confidence", pa.float32(), nullable=True)
_MENTION = pa.struct([
    column("extractor", STRING), column("name", TEXT), column("kind", STRING), column("type", STRING, nullable=True),
    *_SPAN, _CONFIDENCE,
    column("description", TEXT, nullable=True), column("aliases", list_of(TEXT), nullable=True),
])  # fmt: skip
_RELATION = pa.struct([
    column("extractor", STRING), column("subject", TEXT), column("predicate", TEXT), column("object", TEXT),
    column("type", STRING, nullable=True), *_SPAN, _CONFIDENCE,
])  # fmt: skip


class ExtractConfig(BaseModel):
    """Which extractors run: `mentions`, `recorded`, `llm`, or a user's function by import path, "package.module:function".

    A user's function takes an `extractors.Chunk` and returns an `extractors.Extraction`; it raises `ValueError` for a
    chunk it cannot take, which makes that row `invalid`. Its import path stands for its code: rename it when it
    changes.

    Attributes:
        methods: The extractors, in the order in which their units and remarks come.
        llm: What the method `llm` asks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    methods: tuple[str, ...] = Field(default=("mentions",), min_length=1)
    llm: LlmExtractConfig = LlmExtractConfig()


def extract(work: pa.Table, *, config: ExtractConfig, llm: TextGenerator | None = None) -> pa.Table:
    """Return the units of each chunk, with spans relative to the chunk's text.

    Raises:
        ConfigError: If a method is not built in and cannot be imported, or the model's context holds no chunk at all.
    """
    functions = {method: _extractor(method) for method in config.methods if method != _LLM}
    chunks = {row["work_key"]: content_chunk(row) for row in work.to_pylist()}
    answers = {}
    if _LLM in config.methods:
        assert llm is not None
        answers = extract_all(chunks, config=config.llm, llm=llm)
    rows = []
    for key, chunk in chunks.items():
        outcomes = [
            (method, answers[key].found if method == _LLM else _outcome(functions[method], chunk)) for method in config.methods
        ]
        rows.append({"work_key": key, **_units(outcomes)})
        heartbeat.beat()
    calls = usage_columns([answers[key].calls if key in answers else () for key in chunks])
    results = pa.Table.from_pylist(rows, schema=pa.schema([*WORK_COLUMNS, *STAGE.payload]))
    return pa.table([*results.columns, *calls.values()], schema=STAGE.result_schema)


def content_chunk(row: Mapping[str, Any]) -> Chunk:
    """Return a row of the stage's content as extractors take it."""
    spans = [(start, end) for start, end in row["sentences"]]
    return Chunk(row["title"], row["text"], spans, row["entities"], row["triples"], row["discourse"])


def _extractor(method: str) -> Extractor:
    if method in _BUILT_IN:
        return _BUILT_IN[method]
    module, separator, name = method.partition(":")
    if not separator:
        known = ", ".join(sorted([*_BUILT_IN, _LLM]))
        raise ConfigError(f"extract.methods: unknown method {method!r}; there are {known}, or package.module:function")
    try:
        function: Extractor = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"extract.methods: {method!r} cannot be imported: {error}") from error
    return function


def _outcome(extractor: Extractor, chunk: Chunk) -> Extraction | Failure:
    try:
        return extractor(chunk)
    except ValueError as error:
        return Failure("invalid", str(error))


def _units(outcomes: list[tuple[str, Extraction | Failure]]) -> dict[str, Any]:
    """Return state, reason and payload of one chunk."""
    mentions: list[dict[str, Any]] = []
    relations: list[dict[str, Any]] = []
    failed = []
    notes = []
    for method, found in outcomes:
        if isinstance(found, Failure):
            failed.append(found.state)
            notes.append(f"{method}: {found.reason}")
            continue
        named = [mention for mention in found.mentions if not is_blank(mention.name)]
        complete = [relation for relation in found.relations if not any(is_blank(part) for part in relation[:3])]
        mentions += [{"extractor": method, **mention._asdict()} for mention in named]
        relations += [{"extractor": method, **relation._asdict()} for relation in complete]
        if found.note:
            notes.append(f"{method}: {found.note}")
        num_blank = len(found.mentions) - len(named) + len(found.relations) - len(complete)
        if num_blank:
            notes.append(f"{method}: {num_blank} units without a name")
    if failed:
        # A pending answer must not be committed as another method's failure: it would never be read.
        state, mentions, relations = PENDING if PENDING in failed else failed[0], [], []
    else:
        state = "ok" if mentions or relations else "empty"
    return {"state": state, "reason": "; ".join(notes), "mentions": mentions, "relations": relations}


def _content(tables: Tables, config: ExtractConfig) -> pa.Table:
    chunks = tables["chunks"]
    entities, triples = _recorded(tables) if "recorded" in config.methods else (None, None)
    columns = {
        "row_id": chunks.column("chunk_id"),
        "title": chunks.column("title"),
        "text": chunks.column("text"),
        "sentences": _sentences(chunks, tables["sentences"]),
        "entities": pa.nulls(len(chunks), list_of(TEXT)) if entities is None else entities,
        "triples": pa.nulls(len(chunks), list_of(list_of(TEXT))) if triples is None else triples,
        # Not keyed where no method reads it: a changed profile then leaves the units as they are.
        "discourse": chunks.column("discourse") if set(config.methods) - set(_BUILT_IN) else pa.repeat("", len(chunks)),
    }
    return pa.table([columns[name] for name in _CONTENT.names], schema=_CONTENT)


_CONTENT = pa.schema([
    column("row_id", STRING),
    column("title", TEXT),
    column("text", TEXT),
    column("sentences", list_of(list_of(pa.int64()))),
    column("entities", list_of(TEXT), nullable=True),
    column("triples", list_of(list_of(TEXT)), nullable=True),
    column("discourse", STRING),
])  # fmt: skip


def _sentences(chunks: pa.Table, sentences: pa.Table) -> pa.Array:
    """Return the [start, end] of each chunk's sentences within its text, in order."""
    of_chunk = _rows_of(sentences.column("chunk_id"), chunks.column("chunk_id"))
    starts, ends = (sentences.column(name).to_numpy() for name in ("start", "end"))
    order = np.lexsort((ends, starts, of_chunk))
    of_chunk = of_chunk[order]
    spans = np.stack([starts[order], ends[order]], axis=1) - chunks.column("start").to_numpy()[of_chunk, None]
    edges = np.concatenate([[0], np.cumsum(np.bincount(of_chunk, minlength=len(chunks)))])
    pairs = pa.ListArray.from_arrays(np.arange(len(spans) + 1, dtype=np.int32) * 2, spans.ravel(), type=list_of(pa.int64()))
    return pa.ListArray.from_arrays(edges.astype(np.int32), pairs, type=list_of(list_of(pa.int64())))


def _rows_of(values: pa.ChunkedArray, among: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the row of each value among distinct ones, all of which are there."""
    rows = pc.index_in(values, value_set=among)
    assert not rows.null_count, "a row refers to a chunk that is not there"
    return np.asarray(rows.to_numpy(), np.int64)


def _recorded(tables: Tables) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return entities and triples of each chunk: by the chunk's own id, or by the id of a document that is one chunk.

    Raises:
        InputError: If nothing at all was recorded.
    """
    chunks, recorded = tables["chunks"], tables["recorded_extraction"]
    if chunks.num_rows and not recorded.num_rows:
        raise InputError("extract.methods names recorded, but the corpus has no openie.jsonl with an entry of it")
    documents, num_chunks = pc.value_counts(chunks.column("doc_id")).flatten()
    single = documents.filter(pc.equal(num_chunks, 1))
    items = recorded.column("item_id")
    by_document = pc.if_else(
        pc.is_in(chunks.column("doc_id"), value_set=single), pc.index_in(chunks.column("doc_id"), value_set=items), None
    )
    rows = pc.coalesce(pc.index_in(chunks.column("chunk_id"), value_set=items), by_document)
    return recorded.column("entities").take(rows), recorded.column("triples").take(rows)


def _assemble(tables: Tables, results: pa.Table, config: ExtractConfig) -> dict[str, pa.Table]:
    chunks = tables["chunks"].select(["chunk_id", "doc_id", "start"])
    chunks = chunks.take(pa.array(_rows_of(results.column("row_id"), chunks.column("chunk_id"))))
    return {
        "unit_mentions": _mentions(results.column("mentions"), chunks),
        "unit_relations": _relations(results.column("relations"), chunks),
    }


def _mentions(found: pa.ChunkedArray, chunk_of_result: pa.Table) -> pa.Table:
    units = _unit_columns(found, chunk_of_result)
    unit_ids = _unit_ids("mention", units, ("name", "type", "start", "end"))
    in_title = pc.and_(pc.fill_null(pc.equal(units["type"], "title"), False), pc.is_null(units["start"]))
    units |= _source_spans(units)
    units["start"] = pc.if_else(in_title, 0, units["start"])
    units["end"] = pc.if_else(in_title, pc.cast(pc.utf8_length(units["name"]), pa.int64()), units["end"])
    return _first_of_each(schemas.UNIT_MENTIONS, unit_ids, units)


def _relations(found: pa.ChunkedArray, chunk_of_result: pa.Table) -> pa.Table:
    units = _unit_columns(found, chunk_of_result)
    unit_ids = _unit_ids("relation", units, ("subject", "predicate", "object", "start", "end", "type"))
    return _first_of_each(schemas.UNIT_RELATIONS, unit_ids, units | _source_spans(units))


def _unit_columns(units: pa.ChunkedArray, chunk_of_result: pa.Table) -> dict[str, pa.Array]:
    """Return the fields of all units, one after the other, with `chunk_id`, `doc_id` and `offset`, the start of their chunk."""
    lists = units.combine_chunks()
    flat = lists.flatten()
    columns = {field.name: pc.struct_field(flat, field.name) for field in flat.type}
    places = chunk_of_result.take(pc.list_parent_indices(lists)).combine_chunks()
    offsets = places.column("start").combine_chunks()
    return columns | {name: places.column(name).combine_chunks() for name in ("chunk_id", "doc_id")} | {"offset": offsets}


def _unit_ids(kind: str, units: dict[str, pa.Array], content: tuple[str, ...]) -> pa.Array:
    """Return the id of each unit, of its chunk, its extractor and what it says; what is missing counts as ""."""
    blocks = []
    names = ("chunk_id", "extractor", *content)
    for at in range(0, len(units["chunk_id"]), _ID_ROWS):
        rows = zip(*(units[name].slice(at, _ID_ROWS).to_pylist() for name in names), strict=True)
        found = [ids.unit_id(kind, *("" if value is None else str(value) for value in row)) for row in rows]
        blocks.append(pa.array(found, STRING))
    return pa.concat_arrays(blocks) if blocks else pa.array([], STRING)


def _source_spans(units: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the units' spans as offsets in the source text; a span that is half missing is none."""
    whole = pc.and_(pc.is_valid(units["start"]), pc.is_valid(units["end"]))
    return {name: pc.if_else(whole, pc.add(units[name], units["offset"]), None) for name in ("start", "end")}


def _first_of_each(schema: schemas.TableSchema, unit_ids: pa.Array, units: dict[str, pa.Array]) -> pa.Table:
    """Return the table of the units, the first of equal ids."""
    columns = {schema.key[0]: unit_ids, **{name: units[name] for name in schema.schema.names if name in units}}
    _, first = np.unique(unit_ids.dictionary_encode().indices.to_numpy(), return_index=True)
    if len(first) < len(unit_ids):
        columns = {name: values.take(pa.array(first)) for name, values in columns.items()}
    return schema.build(columns)


def _engines(config: ExtractConfig) -> tuple[str, ...]:
    return ("llm",) if _LLM in config.methods else ()


def _texts(config: ExtractConfig) -> dict[str, str]:
    return extract_texts(config.llm) if _LLM in config.methods else {}


def _not_keyed(config: ExtractConfig) -> dict[str, Any]:
    """Leave out the model's settings where it is not asked, and else the prompts' names: their texts are keyed."""
    return {"llm": {"prompts"} if _LLM in config.methods else True}


STAGE = RowStage(
    number=4,
    name="extract",
    version=5,
    reads=("chunks", "sentences", "recorded_extraction"),
    writes=(schemas.UNIT_MENTIONS, schemas.UNIT_RELATIONS),
    cardinality=Cardinality.ONE_TO_MANY,
    engines=_engines,
    not_keyed=_not_keyed,
    texts=_texts,
    uses_llm=True,
    payload=pa.schema([column("mentions", list_of(_MENTION)), column("relations", list_of(_RELATION))]),
    content=_content,
    run=extract,
    assemble=_assemble,
)
