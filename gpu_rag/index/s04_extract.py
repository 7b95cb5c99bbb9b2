"""Stage 04, extract: units (mentions and relations) of each chunk.

Input:  `schemas.CHUNKS`, `schemas.SENTENCES`, `schemas.RECORDED_EXTRACTION`.
Output: `schemas.UNIT_MENTIONS`, `schemas.UNIT_RELATIONS`, n per chunk.
Device: CPU; `llm` asks the run's language model.

The methods are combined: each unit keeps the name of the extractor it comes from. A chunk in which nothing is found is
`empty`, which is a result and not a failure. A chunk that one of them fails on has that state and no units at all, until it is
tried again: half of what was asked for would pass for the whole.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from gpu_rag import ids, schemas
from gpu_rag.engines.generation import PENDING, TextGenerator
from gpu_rag.engines.usage import usage_columns
from gpu_rag.errors import ConfigError, InputError
from gpu_rag.index.extractors import Chunk, Extraction, Extractor, Failure, mentions, recorded
from gpu_rag.index.extractors.llm import LlmExtractConfig, extract_all, extract_texts
from gpu_rag.schemas import STRING, TEXT, column, list_of
from gpu_rag.spans import is_blank
from gpu_rag.stage import WORK_COLUMNS, Cardinality, RowStage, Tables

_LLM = "llm"
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
    calls = usage_columns([answers[key].calls if key in answers else () for key in chunks])
    results = pa.Table.from_pylist(rows, schema=pa.schema([*WORK_COLUMNS, *STAGE.payload]))
    return pa.table([*results.columns, *calls.values()], schema=STAGE.result_schema)


def content_chunk(row: Mapping[str, Any]) -> Chunk:
    """Return a row of the stage's content as extractors take it."""
    spans = [(start, end) for start, end in row["sentences"]]
    return Chunk(row["title"], row["text"], spans, row["entities"], row["triples"])


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
    chunks = tables["chunks"].select(["chunk_id", "doc_id", "start", "title", "text"]).to_pylist()
    recorded = dict(_recorded(tables, chunks)) if "recorded" in config.methods else {}
    sentences: dict[str, list[tuple[int, int]]] = {row["chunk_id"]: [] for row in chunks}
    for row in tables["sentences"].select(["chunk_id", "start", "end"]).to_pylist():
        sentences[row["chunk_id"]].append((row["start"], row["end"]))
    rows = []
    for row in chunks:
        entities, triples = recorded.get(row["chunk_id"], (None, None))
        spans = [[start - row["start"], end - row["start"]] for start, end in sorted(sentences[row["chunk_id"]])]
        rows.append(
            {
                "row_id": row["chunk_id"], "title": row["title"], "text": row["text"], "sentences": spans,
                "entities": entities, "triples": triples,
            }
        )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=_CONTENT)


_CONTENT = pa.schema([
    column("row_id", STRING),
    column("title", TEXT),
    column("text", TEXT),
    column("sentences", list_of(list_of(pa.int64()))),
    column("entities", list_of(TEXT), nullable=True),
    column("triples", list_of(list_of(TEXT)), nullable=True),
])  # fmt: skip


def _recorded(tables: Tables, chunks: list[dict[str, Any]]) -> Iterator[tuple[str, tuple[list[str], list[list[str]]]]]:
    """Yield (chunk id, (entities, triples)): by the chunk's own id, or by the id of a document that is one chunk.

    Raises:
        InputError: If nothing at all was recorded.
    """
    if chunks and not tables["recorded_extraction"].num_rows:
        raise InputError("extract.methods names recorded, but the corpus has no openie.jsonl with an entry of it")
    entries = {row["item_id"]: (row["entities"], row["triples"]) for row in tables["recorded_extraction"].to_pylist()}
    num_chunks = dict(zip(*(c.to_pylist() for c in pc.value_counts(tables["chunks"].column("doc_id")).flatten()), strict=True))
    for row in chunks:
        if row["chunk_id"] in entries:
            yield row["chunk_id"], entries[row["chunk_id"]]
        elif row["doc_id"] in entries and num_chunks[row["doc_id"]] == 1:
            yield row["chunk_id"], entries[row["doc_id"]]


def _assemble(tables: Tables, results: pa.Table, config: ExtractConfig) -> dict[str, pa.Table]:
    chunks = {row["chunk_id"]: row for row in tables["chunks"].select(["chunk_id", "doc_id", "start"]).to_pylist()}
    mentions: dict[str, dict[str, object]] = {}
    relations: dict[str, dict[str, object]] = {}
    for row in results.select(["row_id", "mentions", "relations"]).to_pylist():
        chunk = chunks[row["row_id"]]
        place = {"chunk_id": row["row_id"], "doc_id": chunk["doc_id"]}
        for unit in row["mentions"]:
            content = [unit["name"], unit["type"] or "", str(unit["start"]), str(unit["end"])]
            unit_id = ids.unit_id("mention", row["row_id"], unit["extractor"], *content)
            in_title = unit["type"] == "title" and unit["start"] is None
            span = {"start": 0, "end": len(unit["name"])} if in_title else _shifted(unit, chunk["start"])
            mentions.setdefault(unit_id, {"mention_id": unit_id, **place, **unit, **span})
        for unit in row["relations"]:
            content = [unit["subject"], unit["predicate"], unit["object"], str(unit["start"]), str(unit["end"])]
            unit_id = ids.unit_id("relation", row["row_id"], unit["extractor"], *content)
            relations.setdefault(unit_id, {"relation_id": unit_id, **place, **unit, **_shifted(unit, chunk["start"])})
    return {
        "unit_mentions": schemas.UNIT_MENTIONS.from_rows(list(mentions.values())),
        "unit_relations": schemas.UNIT_RELATIONS.from_rows(list(relations.values())),
    }


def _shifted(unit: dict[str, Any], offset: int) -> dict[str, int | None]:
    """Return the unit's span as offsets in the source text; a span that is half missing is none."""
    if unit["start"] is None or unit["end"] is None:
        return {"start": None, "end": None}
    return {"start": unit["start"] + offset, "end": unit["end"] + offset}


def _engines(config: ExtractConfig) -> tuple[str, ...]:
    return ("llm",) if _LLM in config.methods else ()


def _texts(config: ExtractConfig) -> dict[str, str]:
    return extract_texts(config.llm) if _LLM in config.methods else {}


def _not_keyed(config: ExtractConfig) -> dict[str, Any]:
    """Leave out the model's settings where it is not asked, and else the prompt's name: its text is keyed."""
    return {"llm": {"prompt"} if _LLM in config.methods else True}


STAGE = RowStage(
    number=4,
    name="extract",
    version=3,
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
