"""Extractor `llm`: entities, statements and relations that a language model reads out of a chunk, by its discourse mode.

The sentences of the chunk are shown under labels S1, S2, ..., and every unit names the label of the sentence that states it:
its span is that sentence's, or, of an entity, its name's place there. A name that stands nowhere has no span. Nothing is judged
here: governance rejects what the text does not hold, so a chunk that tells the model what to extract gets no further than its
own words.

All chunks of a shard are asked in one call. A chunk without text of its own (a title alone) is not asked.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag.engines.generation import Generation, Message, TextGenerator
from gpu_rag.errors import ConfigError
from gpu_rag.ids import canonical_json
from gpu_rag.index.extractors import Chunk, Extraction, Failure
from gpu_rag.index.extractors.discourse import DISCOURSES, answer_schema, units
from gpu_rag.prompts import PromptName, prompt_text, render
from gpu_rag.prompts.shapes import Schema

_PROMPT_VALUES = ("title", "sentences", "types", "relation_types", "max_entities", "max_statements", "max_relations")


class ExtractPrompts(BaseModel):
    """Prompt of each discourse mode: name of a built-in one, or the path of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    narrative: PromptName = "extract_narrative"
    conceptual: PromptName = "extract_conceptual"
    argumentative: PromptName = "extract_argumentative"


class LlmExtractConfig(BaseModel):
    """What the model is asked.

    Attributes:
        prompts: By discourse mode.
        output_tokens: Budget of one answer; tokens.
        max_entities: Per chunk.
        max_statements: Events, definitions or claims per chunk.
        max_relations: Per chunk.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompts: ExtractPrompts = ExtractPrompts()
    output_tokens: PositiveInt = 2048
    max_entities: PositiveInt = 40
    max_statements: PositiveInt = 20
    max_relations: PositiveInt = 40


class Answer(NamedTuple):
    """What the model gave for one chunk, and the generations it took; none for a chunk that was not asked."""

    found: Extraction | Failure
    calls: tuple[Generation, ...] = ()


def extract_all(chunks: Mapping[str, Chunk], *, config: LlmExtractConfig, llm: TextGenerator) -> dict[str, Answer]:
    """Return the answer for each chunk, by its key.

    Raises:
        ConfigError: If not even the prompt without a chunk fits the model's context.
    """
    unknown = {key: chunk.discourse for key, chunk in chunks.items() if chunk.discourse not in DISCOURSES}
    asked = {key: chunk for key, chunk in chunks.items() if key not in unknown and has_text(chunk)}
    if asked:
        _check_room(config, llm)
    generations = llm.generate(
        [
            llm.request(
                key,
                extract_prompt(chunk, config),
                config.output_tokens,
                schema=extract_schema(chunk.discourse, len(chunk.sentences), config),
            )
            for key, chunk in asked.items()
        ]
    )
    answers = dict.fromkeys(chunks, Answer(Extraction([], [])))
    for key, discourse in unknown.items():
        answers[key] = Answer(Failure("invalid", f"unknown discourse mode {discourse!r}; there are {', '.join(DISCOURSES)}"))
    for key, chunk in asked.items():
        generation = generations[key]
        failure = Failure(generation.state, generation.reason)
        answers[key] = Answer(_extraction(chunk, generation) if generation.ok else failure, (generation,))
    return answers


def has_text(chunk: Chunk) -> bool:
    """Return whether a chunk holds more than its document's title, and is asked about."""
    return bool(chunk.sentences) and chunk.text.strip() != chunk.title.strip()


def extract_prompt(chunk: Chunk, config: LlmExtractConfig) -> tuple[Message, ...]:
    """Return the messages for one chunk; each sentence is one line, so that no text can pass for a label of another."""
    discourse = DISCOURSES[chunk.discourse]
    return render(
        getattr(config.prompts, chunk.discourse),
        title=_one_line(chunk.title),
        sentences=[_one_line(chunk.text[start:end]) for start, end in chunk.sentences],
        types=discourse.entity_types,
        relation_types=discourse.relation_types,
        max_entities=config.max_entities,
        max_statements=config.max_statements,
        max_relations=config.max_relations,
    )


def extract_schema(discourse: str, num_sentences: int, config: LlmExtractConfig) -> Schema:
    """Return the JSON schema of an answer; one per discourse mode and number of sentences, so that few are compiled."""
    return answer_schema(
        DISCOURSES[discourse],
        num_sentences,
        max_entities=config.max_entities,
        max_statements=config.max_statements,
        max_relations=config.max_relations,
    )


def extract_texts(config: LlmExtractConfig) -> dict[str, str]:
    """Return the texts that decide what the model is asked, for the stage's fingerprint: of all modes."""
    texts = {}
    for discourse in DISCOURSES:
        texts[f"extract prompt {discourse}"] = prompt_text(getattr(config.prompts, discourse), _PROMPT_VALUES)
        texts[f"extract schema {discourse}"] = canonical_json(extract_schema(discourse, 1, config))
    return texts


def _check_room(config: LlmExtractConfig, llm: TextGenerator) -> None:
    """Refuse a context that holds no chunk at all: every row would be too long, hours into a run."""
    empty = [extract_prompt(Chunk("", "", [], None, None, discourse), config) for discourse in DISCOURSES]
    room = llm.prompt_budget(config.output_tokens)
    for discourse, used in zip(DISCOURSES, llm.count_tokens(empty), strict=True):
        if used >= room:
            raise ConfigError(
                f"the {discourse} extraction prompt without a chunk takes {used} tokens, but {max(room, 0)} are left beside an "
                f"output of extract.llm.output_tokens={config.output_tokens} within the engine's context of "
                f"{llm.engine.max_context_tokens}; raise llm.max_context_tokens or lower extract.llm.output_tokens"
            )


def _extraction(chunk: Chunk, generation: Generation) -> Extraction:
    """Return the units of an answer that fits the schema."""
    found = units(chunk, generation.value, DISCOURSES[chunk.discourse])
    return found._replace(note="; ".join(note for note in (generation.reason, found.note) if note))


def _one_line(text: str) -> str:
    return " ".join(text.split())


__all__ = [
    "Answer",
    "ExtractPrompts",
    "LlmExtractConfig",
    "extract_all",
    "extract_prompt",
    "extract_schema",
    "extract_texts",
    "has_text",
]
