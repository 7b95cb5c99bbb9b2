"""Stage 09, summarize: what the documents say of each community, every sentence bound to spans.

Input:  `schemas.COMMUNITIES`, `ENTITIES`, `LINKS`, `RELATIONS`, `SENTENCES`, and the vectors of sentences.
Output: `schemas.SUMMARIES` and `SUMMARY_VECTORS`, n and one per community.
Device: CPU; `llm` asks the run's language model, and the encoder.
Source: S of G(D) in PAGE-RAG (papers/page-rag.txt).

The content of a piece of work is the members' names and the sentences that name them, no ids and no offsets: a summary is made
again only if its evidence changed. Methods:
- `extractive`: the sentences that together name most of what the community is about: greedily the one that adds most, where
  a member counts by how many pieces of evidence name it (budgeted maximum coverage), the shorter of equals.
  Its vector is the mean of its sentences' vectors, which are there already.
- `llm`: sentences of a language model, each with the labels of the evidence that it rests on, embedded together.
A community whose members no sentence names (in titles alone) is `empty`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.engines.generation import Generation, Message, TextGenerator
from gpu_rag.engines.usage import usage_columns
from gpu_rag.ids import canonical_json
from gpu_rag.index.community_evidence import Places, collect_evidence
from gpu_rag.prompts import PromptName, prompt_text, render
from gpu_rag.prompts.shapes import LONG_TEXT, Schema, closed, label_of, label_position
from gpu_rag.schemas import STRING, TEXT, column, list_of, struct_of
from gpu_rag.spans import is_blank
from gpu_rag.stage import WORK_COLUMNS, Cardinality, Resources, RowStage, Tables

_PROMPT_VALUES = ("names", "sentences", "max_sentences")
_MAX_LABELS = 3  # evidence of one sentence
_EVIDENCE = struct_of(text=TEXT, members=list_of(pa.int32()))  # members: positions in `names`
_SENTENCE = struct_of(text=TEXT, evidence=list_of(pa.int32()))  # evidence: positions in the content's evidence


class LlmSummarizeConfig(BaseModel):
    """What the model is asked.

    Attributes:
        prompt: Name of a built-in prompt, or the path of a file.
        output_tokens: Budget of one answer; tokens.
        max_evidence: Sentences shown, at most; fewer where the context holds fewer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: PromptName = "summarize"
    output_tokens: PositiveInt = 768
    max_evidence: PositiveInt = 32


class SummarizeConfig(BaseModel):
    """How communities are summarized.

    Attributes:
        method: `extractive` or `llm`.
        max_sentences: Of one summary.
        max_evidence: Sentences that a summary is made from, at most: those that name most members.
        llm: What the method `llm` asks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["extractive", "llm"] = "extractive"
    max_sentences: PositiveInt = 5
    max_evidence: PositiveInt = 64
    llm: LlmSummarizeConfig = LlmSummarizeConfig()


Summary = list[tuple[str, list[int]]]  # sentences, with positions of their evidence


class _Outcome(NamedTuple):
    state: str
    reason: str
    summary: Summary


def summarize(
    work: pa.Table, *, config: SummarizeConfig, encoder: Encoder | None = None, llm: TextGenerator | None = None
) -> pa.Table:
    """Return the summary of each community, and its vector where a model wrote it."""
    rows = {row["work_key"]: row for row in work.to_pylist()}
    calls: dict[str, tuple[Generation, ...]] = {}
    if config.method == "extractive":
        outcomes = {key: _outcome(choose_sentences(row["evidence"], config.max_sentences)) for key, row in rows.items()}
    else:
        assert llm is not None
        outcomes = {key: _outcome([]) for key in rows}
        for key, generation in _generations(rows, config, llm).items():
            calls[key] = (generation,)
            outcomes[key] = _written(generation)
    vectors = _vectors({key: found.summary for key, found in outcomes.items() if found.summary}, encoder)
    results = [
        {
            "work_key": key,
            "state": found.state,
            "reason": found.reason,
            "summary": [{"text": text, "evidence": evidence} for text, evidence in found.summary],
            "vector": vectors.get(key, []),
        }
        for key, found in outcomes.items()
    ]
    table = pa.Table.from_pylist(results, schema=pa.schema([*WORK_COLUMNS, *STAGE.payload]))
    usage = usage_columns([calls.get(key, ()) for key in rows])
    return pa.table([*table.columns, *usage.values()], schema=STAGE.result_schema)


def _vectors(summaries: dict[str, Summary], encoder: Encoder | None) -> dict[str, list[float]]:
    """Return the vectors of summaries that a model wrote; extracted ones have theirs from their sentences."""
    if encoder is None:
        return {}
    encoded = encoder.encode([" ".join(text for text, _ in summary) for summary in summaries.values()], kind="passage")
    return dict(zip(summaries, encoded.vectors.tolist(), strict=True))


def choose_sentences(evidence: Sequence[dict[str, Any]], max_sentences: int) -> Summary:
    """Return the sentences that cover most: each time the one whose members not yet covered weigh most.

    A member weighs as many pieces of evidence as name it. Of equals the shorter one, then the first. It ends when nothing is
    added.
    """
    weight: dict[int, int] = {}
    for piece in evidence:
        for member in piece["members"]:
            weight[member] = weight.get(member, 0) + 1
    covered: set[int] = set()
    chosen: Summary = []
    while len(chosen) < max_sentences:
        gains = [sum(weight[member] for member in set(piece["members"]) - covered) for piece in evidence]
        best = max(range(len(evidence)), key=lambda at: (gains[at], -len(evidence[at]["text"]), -at), default=None)
        if best is None or not gains[best]:
            break
        chosen.append((evidence[best]["text"], [best]))
        covered.update(evidence[best]["members"])
    return chosen


def summary_prompt(row: dict[str, Any], num_shown: int, config: SummarizeConfig) -> tuple[Message, ...]:
    """Return the messages for one community; each sentence is one line, so that no text can pass for a label of another."""
    shown = [" ".join(piece["text"].split()) for piece in row["evidence"][:num_shown]]
    names = [" ".join(name.split()) for name in row["names"]]
    return render(config.llm.prompt, names=names, sentences=shown, max_sentences=config.max_sentences)


def summary_schema(num_shown: int, config: SummarizeConfig) -> Schema:
    """Return the JSON schema of an answer: a sentence without a label of what was shown is none."""
    evidence = {"type": "array", "items": label_of("S", num_shown), "minItems": 1, "maxItems": _MAX_LABELS}
    sentence = closed(text={**LONG_TEXT, "minLength": 1}, evidence=evidence)
    return closed(sentences={"type": "array", "items": sentence, "minItems": 1, "maxItems": config.max_sentences})


def _generations(rows: dict[str, dict[str, Any]], config: SummarizeConfig, llm: TextGenerator) -> dict[str, Generation]:
    asked = {key: row for key, row in rows.items() if row["evidence"]}
    shown = {key: _num_that_fit(row, config, llm) for key, row in asked.items()}
    requests = [
        llm.request(
            key, summary_prompt(row, shown[key], config), config.llm.output_tokens, schema=summary_schema(shown[key], config)
        )
        for key, row in asked.items()
    ]
    return llm.generate(requests)


def _num_that_fit(row: dict[str, Any], config: SummarizeConfig, llm: TextGenerator) -> int:
    """Return how many sentences are shown: halved until the prompt fits; with one it is sent, and may be too long."""
    num_shown = min(len(row["evidence"]), config.llm.max_evidence)
    room = llm.prompt_budget(config.llm.output_tokens)
    while num_shown > 1 and llm.count_tokens([summary_prompt(row, num_shown, config)])[0] > room:
        num_shown //= 2
    return num_shown


def _outcome(summary: Summary) -> _Outcome:
    return _Outcome("ok", "", summary) if summary else _Outcome("empty", "no sentence names its members", summary)


def _written(generation: Generation) -> _Outcome:
    """Return state and reason, and the sentences that say something."""
    if not generation.ok:
        return _Outcome(generation.state, generation.reason, [])
    sentences = [
        (" ".join(sentence["text"].split()), sorted({label_position(label) for label in sentence["evidence"]}))
        for sentence in generation.value["sentences"]
        if not is_blank(sentence["text"])
    ]
    return _Outcome("ok", generation.reason, sentences) if sentences else _Outcome("invalid", "every sentence is blank", [])


def _content(tables: Tables, config: SummarizeConfig) -> pa.Table:
    """Return members and evidence of each community, as texts."""
    found = collect_evidence(tables, config.max_evidence)
    communities, entities = tables["communities"], tables["entities"]
    names = entities.column("name").to_pylist()
    row_of = {entity: row for row, entity in enumerate(entities.column("entity_id").to_pylist())}
    members = [[row_of[member] for member in inside] for inside in communities.column("members").to_pylist()]
    bounds = np.searchsorted(found.community, np.arange(communities.num_rows + 1))
    texts = found.texts.take(pa.array(found.text)).to_pylist()
    rows = []
    for community, inside in enumerate(members):
        # Names in order of text, not of id: the work must not depend on ids.
        order = sorted(inside, key=lambda entity: (names[entity], entity))
        position = {entity: at for at, entity in enumerate(order)}
        evidence = [
            {
                "text": texts[v],
                "members": sorted(position[e] for e in found.entities[found.entity_indptr[v] : found.entity_indptr[v + 1]]),
            }
            for v in range(bounds[community], bounds[community + 1])
        ]
        rows.append(([names[entity] for entity in order], evidence))
    return pa.table(
        {
            "row_id": communities.column("community_id"),
            "names": pa.array([row[0] for row in rows], list_of(TEXT)),
            "evidence": pa.array([row[1] for row in rows], list_of(_EVIDENCE)),
        }
    )


def _assemble(tables: Tables, results: pa.Table, config: SummarizeConfig) -> dict[str, pa.Table]:
    done = results.filter(pc.equal(results.column("state"), "ok"))
    columns: dict[str, list[Any]] = {name: [] for name in schemas.SUMMARIES.schema.names}
    for community, order, text, spans in _bound_sentences(tables, done):
        for name, value in zip(columns, (community, order, text, spans), strict=True):
            columns[name].append(value)
    summaries = schemas.SUMMARIES.build(columns)
    if config.method == "llm":
        vectors = done.rename_columns({"row_id": "community_id"}).select(schemas.SUMMARY_VECTORS.schema.names)
        vectors = vectors.cast(schemas.SUMMARY_VECTORS.schema)
    else:
        vectors = _mean_vectors(tables, summaries)
    return {"summaries": summaries, "summary_vectors": schemas.SUMMARY_VECTORS.sort(vectors)}


def _mean_vectors(tables: Tables, summaries: pa.Table) -> pa.Table:
    """Return the normalised mean of the vectors of each summary's sentences, of the first place of each; none without any."""
    sentences, embeddings = tables["sentences"], tables["embeddings"]
    embeddings = embeddings.filter(pc.equal(embeddings.column("kind"), "sentence"))
    vector_of = dict(zip(*(embeddings.column(name).to_pylist() for name in ("item_id", "vector_id")), strict=True))
    places = zip(*(sentences.column(name).to_pylist() for name in ("chunk_id", "start", "sentence_id")), strict=True)
    sentence_at = {(chunk_id, start): sentence_id for chunk_id, start, sentence_id in places}
    wanted: dict[str, list[str]] = {}
    for community, spans in zip(*(summaries.column(name).to_pylist() for name in ("community_id", "spans")), strict=True):
        vector_id = vector_of.get(sentence_at[spans[0]["chunk_id"], spans[0]["start"]])
        if vector_id is not None:
            wanted.setdefault(community, []).append(vector_id)
    ids = sorted({vector_id for found in wanted.values() for vector_id in found})
    rows = pc.index_in(pa.array(ids, STRING), value_set=tables["vectors"].column("vector_id"))
    taken = tables["vectors"].column("vector").take(rows).combine_chunks()
    matrix = taken.flatten().to_numpy(zero_copy_only=False).reshape(len(ids), -1) if ids else np.empty((0, 0), np.float32)
    at = {vector_id: row for row, vector_id in enumerate(ids)}
    means = [matrix[[at[vector_id] for vector_id in found]].mean(axis=0) for found in wanted.values()]
    normal = [(mean / np.linalg.norm(mean)).astype(np.float32) for mean in means]
    return schemas.SUMMARY_VECTORS.build({"community_id": list(wanted), "vector": pa.array(normal, list_of(pa.float32()))})


def _bound_sentences(tables: Tables, done: pa.Table) -> Iterator[tuple[str, int, str, list[dict[str, Any]]]]:
    """Yield (community, order, text, spans) of every sentence: the places of the evidence that it rests on."""
    places = Places(tables["sentences"])
    for row in done.select(["row_id", "summary", "evidence"]).to_pylist():
        for order, sentence in enumerate(row["summary"]):
            texts = [row["evidence"][at]["text"] for at in sentence["evidence"]]
            yield row["row_id"], order, sentence["text"], [span for text in texts for span in places.of(text)]


def _engines(config: SummarizeConfig) -> tuple[str, ...]:
    return ("encoder", "llm") if config.method == "llm" else ()


def _texts(config: SummarizeConfig) -> dict[str, str]:
    if config.method != "llm":
        return {}
    schema = canonical_json(summary_schema(1, config))
    return {"summarize prompt": prompt_text(config.llm.prompt, _PROMPT_VALUES), "summarize schema": schema}


def _not_keyed(config: SummarizeConfig) -> dict[str, Any]:
    """Leave out the model's settings where it is not asked, and else the prompt's name: its text is keyed."""
    return {"llm": {"prompt"} if config.method == "llm" else True, "max_evidence": True}


STAGE = RowStage(
    number=9,
    name="summarize",
    version=1,
    reads=("communities", "entities", "links", "relations", "sentences", "embeddings", "vectors"),
    writes=(schemas.SUMMARIES, schemas.SUMMARY_VECTORS),
    cardinality=Cardinality.ONE_TO_MANY,
    engines=_engines,
    resources=Resources(gpus=1),
    not_keyed=_not_keyed,
    texts=_texts,
    uses_llm=True,
    payload=pa.schema([
        column("summary", list_of(_SENTENCE)),
        column("vector", list_of(pa.float32())),
    ]),
    content=_content,
    run=summarize,
    assemble=_assemble,
    passed=("evidence",),
)  # fmt: skip
