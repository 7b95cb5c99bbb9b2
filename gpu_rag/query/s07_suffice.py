"""Query stage 07, suffice: does the evidence bear an answer, s(q, E) in {0, 1}.

Input:  `question`, `demands`, `selection` and `annotations`.
Output: `schemas.SUFFICIENCIES`, 1:1, with every feature of the score.
Device: the encoder's, and the language model's with `llm`.
Source: PAGE-RAG, evidence-bounded answering. The score is a sum of clipped z-scores with unit weights, which held
across corpora where fitted weights did not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from gpu_rag import schemas
from gpu_rag.engines.encoder import Encoder
from gpu_rag.engines.generation import TextGenerator
from gpu_rag.query.evidence import idf_shares, most_similar, sentence_at, sentence_rows, titled, unit_rows
from gpu_rag.query.frame import Failed, query_stage, result_table
from gpu_rag.query.prompted.ask import keyed_texts, not_keyed
from gpu_rag.query.prompted.evidence_prompt import EVIDENCE_VALUES
from gpu_rag.query.prompted.suffice import LIKELIHOOD_VALUES, SufficePromptConfig, Verdict, ask_verdicts
from gpu_rag.query.repository import Repository
from gpu_rag.query.text_features import content_words, is_negated, name_words, split_words

Row = dict[str, Any]
UNCALIBRATED = "uncalibrated"
_CLIP = 2.0


class Scale(NamedTuple):
    """Mean and deviation of a feature, and the sign with which it counts."""

    mean: float
    deviation: float
    sign: float = 1.0


SCALES = {
    "sentence_cosine": Scale(0.602, 0.129),
    "window_cosine": Scale(0.63, 0.12),
    "best_match": Scale(0.69, 0.16),
    "word_coverage": Scale(0.594, 0.247),
    "bm25_share": Scale(0.161, 0.068),
    "name_coverage": Scale(0.852, 0.294),
    "negation_mismatch": Scale(0.046, 0.209, -1.0),
}  # rounded constants of earlier measurements, none of this corpus; a feature adds sign * clip((value - mean) / deviation)


class SufficeConfig(BaseModel):
    """When evidence suffices.

    Attributes:
        method: `features` (no LLM). `llm`: these and a language model's yes or no (`prompted.suffice`); its log-odds of yes
            are one more summand of the score, clipped like the others, and what is not likelier yes than no is below the
            threshold whatever the sum.
        threshold: Score at or above which evidence suffices, in summed deviations. Uncalibrated: over squad2_500 and novels3
            together the boundary-balanced score is flat from -3 to 0.5 (0.235 to 0.239); of these, -2 refuses few answerable
            questions. Shares on the two sets flatter it. Refused on squad2_500: 31 % of the unanswerable questions, all
            adversarial, and 15 % of the answerable ones. On novels3, whose questions are long, all of the foreign ones and
            67 % of the answerable ones: another corpus shifts the shares, and needs its own calibration.
        min_demand_coverage: Share of demands that must have an annotation.
        min_name_coverage: Share of the question's names, numbers and quoted strings (by idf) that the passages must
        hold.
        llm: How the language model is asked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["features", "llm"] = "features"
    threshold: float = Field(default=-2.0, allow_inf_nan=False)
    min_demand_coverage: float = Field(default=1.0, ge=0, le=1)
    min_name_coverage: float = Field(default=0.7, ge=0, le=1)
    llm: SufficePromptConfig = SufficePromptConfig()


def suffice(
    work: pa.Table, *, config: SufficeConfig, repository: Repository, encoder: Encoder, llm: TextGenerator | None = None
) -> pa.Table:
    """Return for each question whether its evidence suffices, the score, and the reason if not.

    Reasons: `no_evidence` (no passage is selected), `open_demand`, `below_threshold`, in this order.
    """
    questions = work.select(["question", "demands", "selection", "annotations"]).to_pylist()
    payload = schemas.SUFFICIENCIES.schema.field("sufficiency")
    features = _features(questions, repository, encoder)
    if config.method == "llm":
        assert llm is not None
        asked = ask_verdicts(questions, repository, llm, config.llm)
        values = [
            verdict if isinstance(verdict, Failed) else _decide(question, found, config, verdict)
            for question, found, verdict in zip(questions, features, asked.values, strict=True)
        ]
        return result_table(work, payload, values, asked.calls, asked.notes)
    values = [_decide(question, found, config) for question, found in zip(questions, features, strict=True)]
    return result_table(work, payload, values)


def _decide(question: Row, features: dict[str, float], config: SufficeConfig, verdict: Verdict | None = None) -> Row:
    annotated = {annotation["demand_id"] for annotation in question["annotations"]}
    open_demands = [d["demand_id"] for d in question["demands"] if d["demand_id"] not in annotated]
    coverage = 1 - len(open_demands) / len(question["demands"]) if question["demands"] else 0.0
    score = sum(
        scale.sign * float(np.clip((features[name] - scale.mean) / scale.deviation, -_CLIP, _CLIP))
        for name, scale in SCALES.items()
    )
    denied = False
    if verdict is not None:
        score += float(np.clip(verdict.log_odds, -_CLIP, _CLIP))
        denied = verdict.log_odds <= 0
        features = features | verdict.features
    if not question["selection"]:
        reason = "no_evidence"
    elif coverage < config.min_demand_coverage:
        reason = "open_demand"
    else:
        enough = score >= config.threshold and features["name_coverage"] >= config.min_name_coverage
        reason = "" if enough and not denied else "below_threshold"
    return {
        "sufficient": not reason,
        "score": score,
        "threshold": config.threshold,
        "calibration": UNCALIBRATED,
        "reason": reason,
        "open_demands": open_demands,
        "features": [{"name": name, "value": value} for name, value in (features | {"demand_coverage": coverage}).items()],
    }


def _features(questions: list[Row], repository: Repository, encoder: Encoder) -> list[dict[str, float]]:
    """Return the features of each question; 0 throughout where no passage is selected."""
    vectors = encoder.encode([question["question"] for question in questions], kind="query").vectors
    selected = sorted({repository.chunk_index[item["chunk_id"]] for q in questions for item in q["selection"]})
    chunk_stems = {chunk: _stems(chunk, repository) for chunk in selected}
    return [
        _evidence_features(question, vector, chunk_stems, repository) if question["selection"] else dict.fromkeys(SCALES, 0.0)
        for question, vector in zip(questions, vectors, strict=True)
    ]


def _evidence_features(
    question: Row, vector: np.ndarray, chunk_stems: Mapping[int, frozenset[str]], repository: Repository
) -> dict[str, float]:
    text = question["question"]
    words = content_words(text)
    shares = idf_shares(repository, words)
    chunk_ids = [item["chunk_id"] for item in question["selection"]]
    chunks = [repository.chunk_index[chunk_id] for chunk_id in chunk_ids]
    similar = int(most_similar(vector, sentence_rows(repository, chunk_ids), 1, repository)[0])
    cited = max(question["annotations"], key=lambda annotation: annotation["score"], default=None)
    best = similar if cited is None else sentence_at(cited["chunk_id"], cited["start"], repository)
    around = _with_neighbours(best, repository)
    stems = {word.stem for sentence in titled(repository, around) for word in split_words(sentence)}
    stated = float(shares @ np.array([word.stem in stems for word in words], dtype=np.float32))
    idf = repository.lexical.chunks.idf([word.stem for word in words])
    bm25 = repository.lexical.chunks.scores([text])[0, chunks].max()
    negated = is_negated(text) != is_negated(repository.sentence_texts[best])
    return {
        "sentence_cosine": float(repository.sentence_vectors[similar] @ vector),
        "window_cosine": max(_window_cosine(chunk, vector, repository) for chunk in chunks),
        "best_match": _best_match(question),
        "word_coverage": stated,
        "bm25_share": float(bm25 / (2.2 * idf.sum())) if words else 0.0,
        "name_coverage": _name_coverage(text, chunks, chunk_stems, repository),
        "negation_mismatch": float(negated and stated >= 0.5),
    }


def _window_cosine(chunk: int, vector: np.ndarray, repository: Repository) -> float:
    """Return the best cosine of three sentences in a row, as the mean of their vectors; a chunk may be far longer."""
    vectors = repository.sentence_vectors[repository.sentence_indptr[chunk] : repository.sentence_indptr[chunk + 1]]
    if not len(vectors):
        return 0.0
    padded = np.pad(vectors, ((1, 1), (0, 0)))
    return float((unit_rows(padded[:-2] + padded[1:-1] + padded[2:]) @ vector).max())


def _best_match(question: Row) -> float:
    """Return the mean over the demands of their best annotation's score, 0 for an open one."""
    best = dict.fromkeys((demand["demand_id"] for demand in question["demands"]), 0.0)
    for annotation in question["annotations"]:
        best[annotation["demand_id"]] = max(best[annotation["demand_id"]], annotation["score"])
    return sum(best.values()) / max(len(best), 1)


def _with_neighbours(row: int, repository: Repository) -> list[int]:
    """Return a sentence and the ones before and after it in its chunk."""
    chunk = repository.sentence_chunks[row]
    first, last = repository.sentence_indptr[chunk], repository.sentence_indptr[chunk + 1]
    return [near for near in (row - 1, row, row + 1) if first <= near < last]


def _stems(chunk: int, repository: Repository) -> frozenset[str]:
    """Return the stems of a chunk's title and text."""
    text = f"{repository.chunk_titles[chunk]}\n{repository.chunk_texts[chunk]}"
    return frozenset(word.stem for word in split_words(text))


def _name_coverage(question: str, chunks: list[int], stems: Mapping[int, frozenset[str]], repository: Repository) -> float:
    """Return the idf share of the words of the question's names, numbers and quoted strings that the passages hold."""
    names = name_words(question)
    if not names:
        return 1.0
    stated = frozenset().union(*(stems[chunk] for chunk in chunks))
    return float(sum(s for word, s in zip(names, idf_shares(repository, names), strict=True) if word.stem in stated))


def _engines(config: SufficeConfig) -> tuple[str, ...]:
    return ("encoder", "llm", "repository") if config.method == "llm" else ("encoder", "repository")


def _texts(config: SufficeConfig) -> Mapping[str, str]:
    if config.method != "llm":
        return {}
    prompts: dict[str, tuple[str, Sequence[str]]] = {
        "prompt": (config.llm.prompt, ()),
        "evidence": (config.llm.evidence, EVIDENCE_VALUES),
    }
    if config.llm.likelihood:
        prompts["likelihood"] = (config.llm.likelihood_prompt, LIKELIHOOD_VALUES)
    return keyed_texts(**prompts)


STAGE = query_stage(
    number=7,
    name="suffice",
    version=2,
    reads=("question", "demands", "selection", "annotations"),
    after=schemas.ANNOTATIONS,
    writes=schemas.SUFFICIENCIES,
    run=suffice,
    engines=_engines,
    texts=_texts,
    not_keyed=not_keyed("prompt", "evidence", "likelihood_prompt"),
    uses_llm=True,
)
