"""What a run would take, before anything is spent: rows, tokens and GPU-hours per stage.

The corpus is chunked here, in this process, and the prompts are the real ones, written by the stages' own code; nothing is
kept, no model is loaded, no worker started. Of many chunks or questions a sample is rendered and its sums are scaled up.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpu_rag.config import Config
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.evaluation.chunked import chunked_here
from gpu_rag.evaluation.dry_llm import EXPECTED_SHARE, DryEngine, Sent, shared_tokens
from gpu_rag.evaluation.estimate_questions import SAMPLE_QUESTIONS, ask_sample, distinct_questions
from gpu_rag.index import s04_extract, s05_embed
from gpu_rag.index.extractors import Failure
from gpu_rag.index.extractors.llm import extract_all, has_text
from gpu_rag.index.s01_ingest import read_corpus
from gpu_rag.query.questions import read_questions
from gpu_rag.stage import work_keys

SAMPLE_CHUNKS = 2000
_CHARS_PER_TOKEN = 4  # of an encoder, on English
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class StageEstimate:
    """What one stage would ask a language model.

    Attributes:
        label: Stage, such as `04_extract`.
        rows: Distinct rows that it gets.
        calls: Requests for them.
        prompt_tokens: Expected.
        prompt_tokens_at_most: For questions: with passages as long as those at the 95 % quantile.
        shared_tokens: Of the expected ones, what an engine with a prefix cache has computed before.
        output_tokens: Expected.
        output_tokens_at_most: All budgets used up.
        too_long: Rows whose prompt does not fit the context.
    """

    label: str
    rows: int
    calls: int
    prompt_tokens: int
    prompt_tokens_at_most: int
    shared_tokens: int
    output_tokens: int
    output_tokens_at_most: int
    too_long: int


@dataclass(frozen=True)
class Estimate:
    """What a run would take.

    Attributes:
        documents: In the corpus.
        chunks: In the corpus.
        questions: Distinct ones, 0 without a file of them.
        stages: Those that ask a language model.
        embedding_texts: Distinct texts of chunks and sentences.
        embedding_tokens: Of these.
        gpu_hours: Expected, and at most; None where the config names no rates or nothing is asked.
        notes: What the figures rest on.
    """

    documents: int
    chunks: int
    questions: int
    stages: tuple[StageEstimate, ...]
    embedding_texts: int
    embedding_tokens: int
    gpu_hours: tuple[float, float] | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def estimate_run(corpus: Path, config: Config, *, questions: Path | None = None, limit: int | None = None) -> Estimate:
    """Return what indexing a corpus, and answering a file of questions over it, would take.

    Args:
        corpus: A file or folder (see `s01_ingest`).
        config: The sections of both pipelines.
        questions: None: only the index is estimated.
        limit: Only the first documents, and the first questions.

    Raises:
        InputError: On a malformed corpus or question file.
        ConfigError: If the model's context holds not even an extraction prompt without a chunk.
    """
    source = read_corpus(corpus, config.ingest, limit)
    tables = {
        "documents": source.documents,
        "recorded_chunks": source.recorded_chunks,
        "recorded_extraction": source.recorded_extraction,
    }
    tables |= chunked_here(tables, config)
    asked = distinct_questions(read_questions(questions, limit)) if questions is not None else []
    engine = DryEngine(config.llm)
    stages = []
    if "llm" in s04_extract.STAGE.engines_for(config.extract):
        stages.append(_extraction(tables, config, engine))
    if asked and tables["chunks"].num_rows:
        stages += _answering(asked, tables, config, engine)
    num_texts, num_tokens = _embedding(tables, config)
    return Estimate(
        documents=source.documents.num_rows,
        chunks=tables["chunks"].num_rows,
        questions=len(asked),
        stages=tuple(stages),
        embedding_texts=num_texts,
        embedding_tokens=num_tokens,
        gpu_hours=_gpu_hours(stages, config.llm),
        notes=tuple(_notes(stages, config, engine)),
    )


def _extraction(tables: dict[str, pa.Table], config: Config, engine: DryEngine) -> StageEstimate:
    stage = s04_extract.STAGE
    content = stage.content(tables, config.extract)
    rows = dict(zip(work_keys(content, "estimate"), content.to_pylist(), strict=True))
    chunks = {key: s04_extract.content_chunk(rows[key]) for key in sorted(rows)}
    asked = [key for key, chunk in chunks.items() if has_text(chunk)]
    sample = {key: chunks[key] for key in asked[:SAMPLE_CHUNKS]}  # keys are hashes: the first of them are any
    answers = extract_all(sample, config=config.extract.llm, llm=engine.llm)
    too_long = sum(isinstance(answer.found, Failure) for answer in answers.values())
    sent = engine.take()
    return _scaled(stage.label, len(rows), len(asked) / max(len(sample), 1), sent, sent, shared_tokens(sent, {}), too_long)


def _answering(questions: Sequence[str], tables: dict[str, pa.Table], config: Config, engine: DryEngine) -> list[StageEstimate]:
    expected = ask_sample(questions, tables, config, engine, quantile=None)
    long = ask_sample(questions, tables, config, engine, quantile=0.95)
    factor = len(questions) / min(len(questions), SAMPLE_QUESTIONS)
    earlier: dict[str, list[str]] = {}
    stages = []
    for label, sample in expected.items():
        shared = shared_tokens(sample.sent, earlier)
        for item in sample.sent:
            earlier.setdefault(item.row, []).append(item.text)
        stages.append(_scaled(label, len(questions), factor, sample.sent, long[label].sent, shared, long[label].too_long))
    return stages


def _scaled(
    label: str, rows: int, factor: float, expected: Sequence[Sent], at_most: Sequence[Sent], shared: int, too_long: int
) -> StageEstimate:
    def total(count: int) -> int:
        return round(factor * count)

    prompts, longest = (sum(item.prompt_tokens for item in sent) for sent in (expected, at_most))
    return StageEstimate(
        label=label,
        rows=rows,
        calls=total(len(expected)),
        prompt_tokens=total(prompts),
        prompt_tokens_at_most=total(max(prompts, longest)),  # a prompt that had to be shortened can be the shorter one
        shared_tokens=total(shared),
        output_tokens=total(sum(item.expected_output_tokens for item in expected)),
        output_tokens_at_most=total(sum(item.request.sampling.max_tokens for item in expected)),
        too_long=total(too_long),
    )


def _embedding(tables: dict[str, pa.Table], config: Config) -> tuple[int, int]:
    """Return how many distinct texts of chunks and sentences are embedded, and their tokens."""
    kinds = tuple(kind for kind in config.embed.kinds if kind in ("chunk", "sentence"))
    texts = s05_embed.STAGE.content(tables, config.embed.model_copy(update={"kinds": kinds})).column("text")
    chars = pc.sum(pc.utf8_length(texts)).as_py() or 0
    return len(texts), -(-chars // _CHARS_PER_TOKEN)


def _gpu_hours(stages: Sequence[StageEstimate], llm: LlmConfig) -> tuple[float, float] | None:
    reading, writing = llm.prompt_tokens_per_second, llm.output_tokens_per_second
    if not stages or reading is None or writing is None:
        return None
    expected = sum((s.prompt_tokens - s.shared_tokens) / reading + s.output_tokens / writing for s in stages)
    at_most = sum(s.prompt_tokens_at_most / reading + s.output_tokens_at_most / writing for s in stages)
    return expected / _SECONDS_PER_HOUR, at_most / _SECONDS_PER_HOUR


def _notes(stages: Sequence[StageEstimate], config: Config, engine: DryEngine) -> list[str]:
    """Return what the figures rest on, and what they leave out."""
    notes = [
        f"Embedding tokens: {_CHARS_PER_TOKEN} characters a token; names of entities and facts come on top, known only after "
        "extraction."
    ]
    if not stages:
        return ["No stage of this config asks a language model.", *notes]
    notes += [
        f"Prompt tokens: counted by {engine.counted_by}; at most {SAMPLE_CHUNKS} chunks and {SAMPLE_QUESTIONS} questions are "
        "rendered, the sums scaled up.",
        f"Output tokens: an answer in JSON is taken to use {EXPECTED_SHARE:.0%} of its budget; at most, all of it.",
        f"Left out: answers asked for again (llm.retries={config.llm.retries}), and what an earlier run has committed.",
    ]
    if any(stage.label != s04_extract.STAGE.label for stage in stages):
        notes.append(
            "Questions: two demands each where a model or the question file gives them, else one; pools as deep as "
            "merge.depth for each demand; passages of all lengths, and for `at most` those around the 95 % quantile."
        )
    if config.llm.prompt_tokens_per_second is None or config.llm.output_tokens_per_second is None:
        notes.append(
            "No GPU-hours: set llm.prompt_tokens_per_second and llm.output_tokens_per_second, the rates of one GPU "
            "(`gpu-rag bench llm` measures them)."
        )
    else:
        notes.append(
            f"GPU-hours: {config.llm.prompt_tokens_per_second:g} prompt and {config.llm.output_tokens_per_second:g} output "
            "tokens a second on one GPU, as the config says; `at most` without a prefix cache."
        )
    return notes


__all__ = ["SAMPLE_CHUNKS", "Estimate", "StageEstimate", "estimate_run"]
