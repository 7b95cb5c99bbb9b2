"""Query stage 06, ground: verbatim spans of the selected passages for every demand.

Input:  `question`, `demands`, `pool` (true provenance, whatever the selector was shown) and `selection`.
Output: `schemas.ANNOTATIONS`, 1:1; a demand without an annotation is open.
Device: the encoder's; the language model's with `llm`.
Source: LineageRAG, "Source grounding" (eq. 8 and 9).
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.engines.generation import TextGenerator
from gpu_rag.query.answer_spans import rank_spans
from gpu_rag.query.evidence import TokenBank, match_sentences, most_similar, retrieved_by, sentence_rows, titled
from gpu_rag.query.frame import Failed, query_stage, result_table
from gpu_rag.query.prompted.ask import keyed_texts, not_keyed, noted
from gpu_rag.query.prompted.evidence_prompt import EVIDENCE_VALUES
from gpu_rag.query.prompted.ground import GROUND_VALUES, GroundPromptConfig, ask_spans, ground_schema
from gpu_rag.query.repository import Repository

Row = dict[str, Any]
TYPES = ("supports",)
_REFERENCE = re.compile(r"#(\d+)")
_DEMANDS_AT_ONCE = 64  # bounds the memory of token vectors: about 1 MB a demand
_HEAD_CHARS = 80  # of a quote, where no short span stands out as the produced value


class GroundConfig(BaseModel):
    """How spans are found.

    Attributes:
        method: `encoder` (no LLM): whole sentences by late interaction and word coverage (`evidence.match_sentences`).
            `llm`: those that a language model names (`prompted.ground`); of the next three it reads `max_spans` alone.
        max_sentences: Sentences of a demand that are matched word by word, those most similar to it as a whole. The cost
            grows with it; the exact match of squad2_500 is 0.326 with 12, 0.318 with 8.
        max_spans: Annotations a demand may have, the best first. Only the one that states the value produces it.
        min_score: A sentence below this is no evidence, in [0, 1]; a demand without one at or above stays open. With 0.3
            open: 0.4 % of the answerable questions of squad2_500, 7 % of those of novels3, 70 % of its foreign ones.
        llm: How the language model is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["encoder", "llm"] = "encoder"
    max_sentences: PositiveInt = 12
    max_spans: PositiveInt = 4
    min_score: float = Field(default=0.3, ge=0, le=1)
    llm: GroundPromptConfig = GroundPromptConfig()


def ground(
    work: pa.Table,
    *,
    config: GroundConfig,
    repository: Repository,
    encoder: Encoder | None = None,
    llm: TextGenerator | None = None,
) -> pa.Table:
    """Return the valid annotations of each question, by demand and score."""
    payload = schemas.ANNOTATIONS.schema.field("annotations")
    questions = work.select(["question", "demands", "pool", "selection"]).to_pylist()
    if config.method == "llm":
        assert llm is not None
        asked = ask_spans(questions, repository, llm, config.llm, config.max_spans)
        admitted = [_admitted(*row, repository) for row in zip(questions, asked.values, asked.notes, strict=True)]
        return result_table(work, payload, [value for value, _ in admitted], asked.calls, [note for _, note in admitted])
    assert encoder is not None
    proposals = _by_encoder(questions, config, repository, encoder)
    values = [_admitted(question, proposed, "", repository)[0] for question, proposed in zip(questions, proposals, strict=True)]
    return result_table(work, payload, values)


def _admitted(question: Row, proposed: list[Row] | Failed, note: str, repository: Repository) -> tuple[Any, str]:
    """Return the valid ones of the proposed annotations, and the note with how many were not."""
    if isinstance(proposed, Failed):
        return proposed, ""
    valid = [annotation for annotation in proposed if is_valid(annotation, question, repository)]
    invalid = len(proposed) - len(valid)
    return valid, noted(note, f"left out {invalid} annotations that are not valid" if invalid else "")


def is_valid(annotation: Row, question: Row, repository: Repository) -> bool:
    """Return whether an annotation may stand (design 6.6, eq. 9).

    Its passage is selected; its span has a word character and is the source's own slice, inside that passage; its
    type and its variables are the demand's; and its demand retrieved the passage.
    """
    demand = next((d for d in question["demands"] if d["demand_id"] == annotation["demand_id"]), None)
    selected = {item["chunk_id"] for item in question["selection"]}
    if demand is None or annotation["chunk_id"] not in selected or annotation["chunk_id"] not in repository.chunk_index:
        return False
    chunk = repository.chunk_index[annotation["chunk_id"]]
    start, end, quote = annotation["start"], annotation["end"], annotation["quote"]
    source = repository.source_text(annotation["doc_id"])
    return bool(
        annotation["doc_id"] == repository.chunk_doc_ids[chunk]
        and repository.chunk_starts[chunk] <= start < end <= repository.chunk_ends[chunk]
        and source[start:end] == quote
        and any(character.isalnum() for character in quote)
        and annotation["type"] in TYPES
        and all(binding["variable"] in demand["inputs"] for binding in annotation["consumes"])
        and all(binding["variable"] in demand["outputs"] for binding in annotation["produces"])
        and annotation["chunk_id"] in retrieved_by(demand["demand_id"], question["pool"])
    )


def substituted(description: str, values: Mapping[str, str]) -> str:
    """Return a demand's description with each reference `#k` replaced by the value of `xk`, where that is known."""
    return _REFERENCE.sub(lambda match: values.get(f"x{match.group(1)}", match.group()), description)


def _by_encoder(questions: list[Row], config: GroundConfig, repository: Repository, encoder: Encoder) -> list[list[Row]]:
    """Return the annotations of each question; the k-th demands of all of them are grounded together."""
    proposals: list[list[Row]] = [[] for _ in questions]
    values: list[dict[str, str]] = [{} for _ in questions]
    for number in range(max((len(question["demands"]) for question in questions), default=0)):
        ready = [row for row, question in enumerate(questions) if number < len(question["demands"])]
        for first in range(0, len(ready), _DEMANDS_AT_ONCE):
            part = ready[first : first + _DEMANDS_AT_ONCE]
            asked = [_Asked.of(questions[row], number, values[row]) for row in part]
            for row, found in zip(part, _ground_demands(asked, config, repository, encoder), strict=True):
                proposals[row] += found
                for binding in (binding for annotation in found for binding in annotation["produces"]):
                    values[row].setdefault(binding["variable"], binding["value"])
    return proposals


class _Asked(NamedTuple):
    """A demand, what it asks once earlier values are known, those that it consumes, and the passages it may cite."""

    demand: Row
    text: str
    consumes: list[Row]
    chunk_ids: list[str]

    @classmethod
    def of(cls, question: Row, number: int, values: Mapping[str, str]) -> "_Asked":
        demand = question["demands"][number]
        known = {name: values[name] for name in demand["inputs"] if name in values}
        own = retrieved_by(demand["demand_id"], question["pool"])
        return cls(
            demand=demand,
            text=substituted(demand["description"], known),
            consumes=[{"variable": name, "value": value} for name, value in known.items()],
            chunk_ids=[item["chunk_id"] for item in question["selection"] if item["chunk_id"] in own],
        )


def _ground_demands(demands: list[_Asked], config: GroundConfig, repository: Repository, encoder: Encoder) -> list[list[Row]]:
    """Return the annotations of each demand, the best first."""
    vectors = encoder.encode([asked.text for asked in demands], kind="query").vectors
    candidates = [
        most_similar(vector, sentence_rows(repository, asked.chunk_ids), config.max_sentences, repository)
        for asked, vector in zip(demands, vectors, strict=True)
    ]
    texts = [text for asked, rows in zip(demands, candidates, strict=True) for text in (asked.text, *titled(repository, rows))]
    bank = TokenBank(encoder, texts)
    return [_annotations(asked, rows, config, bank, repository) for asked, rows in zip(demands, candidates, strict=True)]


def _annotations(asked: _Asked, rows: np.ndarray, config: GroundConfig, bank: TokenBank, repository: Repository) -> list[Row]:
    """Return the best sentences; the one that states the demand's value is always among them, and produces it."""
    scores = match_sentences(asked.text, rows, bank, repository)
    best = np.argsort(-scores, kind="stable")
    best = best[scores[best] >= config.min_score]
    rows, scores = rows[best], scores[best]
    kept = list(range(min(len(rows), config.max_spans)))
    produces: list[Row] = []
    stating = -1
    if len(rows) and asked.demand["outputs"]:
        spans = rank_spans(asked.text, rows.tolist(), scores.tolist(), bank, repository)
        stating = spans[0].sentence if spans else 0
        quote = repository.sentence_texts[rows[stating]]
        value = quote[spans[0].start : spans[0].end] if spans else quote[:_HEAD_CHARS]
        produces = [{"variable": name, "value": value} for name in asked.demand["outputs"]]
        kept = kept if stating in kept else [*kept[:-1], stating]
    return [
        _annotation(asked, int(rows[place]), float(scores[place]), produces if place == stating else [], repository)
        for place in kept
    ]


def _annotation(asked: _Asked, sentence: int, score: float, produces: list[Row], repository: Repository) -> Row:
    chunk = int(repository.sentence_chunks[sentence])
    return {
        "demand_id": asked.demand["demand_id"],
        "chunk_id": repository.chunk_ids[chunk],
        "doc_id": repository.chunk_doc_ids[chunk],
        "start": int(repository.sentence_starts[sentence]),
        "end": int(repository.sentence_ends[sentence]),
        "quote": repository.sentence_texts[sentence],
        "type": "supports",
        "consumes": asked.consumes,
        "produces": produces,
        "score": score,
    }


def _engines(config: GroundConfig) -> tuple[str, ...]:
    return ("llm" if config.method == "llm" else "encoder", "repository")


def _texts(config: GroundConfig) -> Mapping[str, str]:
    if config.method != "llm":
        return {}
    schema = ground_schema(config.llm.spans, 1, 1, 2, config.max_spans)
    prompts = {"prompt": (config.llm.prompt, GROUND_VALUES), "evidence": (config.llm.evidence, EVIDENCE_VALUES)}
    return keyed_texts(schema, **prompts)


STAGE = query_stage(
    number=6,
    name="ground",
    version=2,
    reads=("question", "demands", "pool", "selection"),
    after=schemas.SELECTIONS,
    writes=schemas.ANNOTATIONS,
    run=ground,
    engines=_engines,
    texts=_texts,
    not_keyed=not_keyed("prompt", "evidence"),
    uses_llm=True,
)
