"""Query stage 06, ground: verbatim spans of the selected passages for every demand.

Input:  `question`, `demands`, `pool` (true provenance, whatever the selector was shown) and `selection`.
Output: `schemas.ANNOTATIONS`, 1:1; a demand without an annotation is open.
Device: the encoder's.
Source: LineageRAG, "Source grounding" (eq. 8 and 9).
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.query.answer_spans import rank_spans
from gpu_rag.query.evidence import TokenBank, match_sentences, sentence_rows, titled
from gpu_rag.query.frame import query_stage, result_table
from gpu_rag.query.repository import Repository

Row = dict[str, Any]
TYPES = ("supports",)
_HEAD_CHARS = 80  # of a quote, where no short span stands out as the produced value


class GroundConfig(BaseModel):
    """How spans are found.

    Attributes:
        method: `encoder` (no LLM): whole sentences by late interaction and word coverage (`evidence.match_sentences`).
        max_spans: Annotations a demand may have, the best first.
        min_score: A sentence below this is no evidence, in [0, 1]; a demand without one at or above stays open. With 0.3
            open: 0.4 % of the answerable questions of squad2_500, 5 % of those of novels3, 67 % of its foreign ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["encoder"] = "encoder"
    max_spans: PositiveInt = 4
    min_score: float = Field(default=0.3, ge=0, le=1)


def ground(work: pa.Table, *, config: GroundConfig, repository: Repository, encoder: Encoder) -> pa.Table:
    """Return the valid annotations of each question, by demand and score."""
    questions = work.select(["question", "demands", "pool", "selection"]).to_pylist()
    proposals = _METHODS[config.method](questions, config, repository, encoder)
    values = [
        [annotation for annotation in proposed if is_valid(annotation, question, repository)]
        for question, proposed in zip(questions, proposals, strict=True)
    ]
    return result_table(work, schemas.ANNOTATIONS.schema.field("annotations"), values)


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


def retrieved_by(demand_id: str, pool: list[Row]) -> set[str]:
    """Return the ids of the passages that a demand retrieved."""
    return {
        candidate["chunk_id"] for candidate in pool if any(event["demand_id"] == demand_id for event in candidate["events"])
    }


def _by_encoder(questions: list[Row], config: GroundConfig, repository: Repository, encoder: Encoder) -> list[list[Row]]:
    """Return the best sentences of each demand among the selected passages that it retrieved."""
    candidates: list[list[np.ndarray]] = []
    texts: list[str] = []
    for question in questions:
        candidates.append([])
        for demand in question["demands"]:
            own = retrieved_by(demand["demand_id"], question["pool"])
            chunks = [item["chunk_id"] for item in question["selection"] if item["chunk_id"] in own]
            candidates[-1].append(sentence_rows(repository, chunks))
            texts += [demand["description"], *titled(repository, candidates[-1][-1])]
    bank = TokenBank(encoder, texts)
    proposals: list[list[Row]] = []
    for question, by_demand in zip(questions, candidates, strict=True):
        proposals.append([])
        values: dict[str, str] = {}
        for demand, rows in zip(question["demands"], by_demand, strict=True):
            scores = match_sentences(demand["description"], rows, bank, repository)
            best = [row for row in np.argsort(-scores, kind="stable")[: config.max_spans] if scores[row] >= config.min_score]
            found = [_annotation(demand, int(rows[row]), float(scores[row]), values, bank, repository) for row in best]
            for binding in found[0]["produces"] if found else ():
                values.setdefault(binding["variable"], binding["value"])
            proposals[-1] += found
    return proposals


def _annotation(
    demand: Row, sentence: int, score: float, values: dict[str, str], bank: TokenBank, repository: Repository
) -> Row:
    """Return one sentence as an annotation; it consumes what earlier demands' best annotations produced."""
    chunk = int(repository.sentence_chunks[sentence])
    quote = repository.sentence_texts[sentence]
    title = repository.chunk_titles[chunk]
    spans = rank_spans(demand["description"], [quote], [title], [score], bank, repository) if demand["outputs"] else []
    value = quote[spans[0].start : spans[0].end] if spans else quote[:_HEAD_CHARS]
    return {
        "demand_id": demand["demand_id"],
        "chunk_id": repository.chunk_ids[chunk],
        "doc_id": repository.chunk_doc_ids[chunk],
        "start": int(repository.sentence_starts[sentence]),
        "end": int(repository.sentence_ends[sentence]),
        "quote": quote,
        "type": "supports",
        "consumes": [{"variable": name, "value": values[name]} for name in demand["inputs"] if name in values],
        "produces": [{"variable": name, "value": value} for name in demand["outputs"]],
        "score": score,
    }


_METHODS: dict[str, Callable[[list[Row], GroundConfig, Repository, Encoder], list[list[Row]]]] = {"encoder": _by_encoder}

STAGE = query_stage(
    number=6,
    name="ground",
    version=1,
    reads=("question", "demands", "pool", "selection"),
    after=schemas.SELECTIONS,
    writes=schemas.ANNOTATIONS,
    run=ground,
    engines=("encoder", "repository"),
)
