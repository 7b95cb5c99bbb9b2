"""Extractor `llm`: entities and relations that a language model reads out of a chunk.

The sentences of the chunk are shown under labels S1, S2, ..., and a relation names the label of the sentence that states it:
its span is that sentence's. A name's span is the first place where it stands in the chunk, none if it stands nowhere. Nothing
is judged here: governance rejects what the text does not hold, so a chunk that tells the model what to extract gets no further
than its own words.

All chunks of a shard are asked in one call. A chunk without text of its own (a title alone) is not asked.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag.engines.generation import Generation, Message, TextGenerator
from gpu_rag.errors import ConfigError
from gpu_rag.ids import canonical_json
from gpu_rag.index.extractors import Chunk, Extraction, Failure, Mention, Relation
from gpu_rag.prompts import PromptName, prompt_text, render
from gpu_rag.prompts.shapes import LONG_TEXT, SHORT_TEXT, Schema, closed, label_of, label_position
from gpu_rag.spans import find_span, is_blank

ENTITY_TYPES = ("person", "organization", "place", "work", "event", "date", "concept", "other")
_MAX_ALIASES = 5
_PROMPT_VALUES = ("title", "sentences", "types", "max_entities", "max_relations")


class LlmExtractConfig(BaseModel):
    """What the model is asked.

    Attributes:
        prompt: Name of a built-in prompt, or the path of a file.
        output_tokens: Budget of one answer; tokens.
        max_entities: Per chunk.
        max_relations: Per chunk.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: PromptName = "extract"
    output_tokens: PositiveInt = 2048
    max_entities: PositiveInt = 40
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
    asked = {key: chunk for key, chunk in chunks.items() if has_text(chunk)}
    if asked:
        _check_room(config, llm)
    generations = llm.generate(
        [
            llm.request(
                key, extract_prompt(chunk, config), config.output_tokens, schema=extract_schema(len(chunk.sentences), config)
            )
            for key, chunk in asked.items()
        ]
    )
    answers = dict.fromkeys(chunks, Answer(Extraction([], [])))
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
    return render(
        config.prompt,
        title=_one_line(chunk.title),
        sentences=[_one_line(chunk.text[start:end]) for start, end in chunk.sentences],
        types=ENTITY_TYPES,
        max_entities=config.max_entities,
        max_relations=config.max_relations,
    )


def extract_schema(num_sentences: int, config: LlmExtractConfig) -> Schema:
    """Return the JSON schema of an answer; one per number of sentences, since the labels are its only variable part."""
    name = {**SHORT_TEXT, "minLength": 1}
    entity = closed(
        name=name,
        type={"type": "string", "enum": list(ENTITY_TYPES)},
        description=LONG_TEXT,
        aliases={"type": "array", "items": name, "maxItems": _MAX_ALIASES},
    )
    relation = closed(subject=name, predicate=name, object=name, sentence=label_of("S", num_sentences))
    return closed(
        entities={"type": "array", "items": entity, "maxItems": config.max_entities},
        relations={"type": "array", "items": relation, "maxItems": config.max_relations},
    )


def extract_texts(config: LlmExtractConfig) -> dict[str, str]:
    """Return the texts that decide what the model is asked, for the stage's fingerprint."""
    schema = canonical_json(extract_schema(1, config))
    return {"extract prompt": prompt_text(config.prompt, _PROMPT_VALUES), "extract schema": schema}


def _check_room(config: LlmExtractConfig, llm: TextGenerator) -> None:
    """Refuse a context that holds no chunk at all: every row would be too long, hours into a run."""
    (used,) = llm.count_tokens([extract_prompt(Chunk("", "", [], None, None), config)])
    room = llm.prompt_budget(config.output_tokens)
    if used >= room:
        raise ConfigError(
            f"the extraction prompt without a chunk takes {used} tokens, but {max(room, 0)} are left beside an output of "
            f"extract.llm.output_tokens={config.output_tokens} within the engine's context of "
            f"{llm.engine.max_context_tokens}; raise llm.max_context_tokens or lower extract.llm.output_tokens"
        )


def _extraction(chunk: Chunk, generation: Generation) -> Extraction:
    """Return the units of an answer that fits the schema."""
    entities, aliases = [], []
    for entity in generation.value["entities"]:
        name, kind = entity["name"], entity["type"]
        others = [alias for alias in entity["aliases"] if not is_blank(alias)]
        start, end = find_span(chunk.text, name) or (None, None)
        entities.append(Mention(name, kind, start, end, description=entity["description"], aliases=others))
        for alias in others:
            place = find_span(chunk.text, alias)
            if place is not None:
                aliases.append(Mention(alias, kind, *place))
    relations = []
    for relation in generation.value["relations"]:
        start, end = chunk.sentences[label_position(relation["sentence"])]
        relations.append(Relation(relation["subject"], relation["predicate"], relation["object"], start, end))
    # Entities first: where one entity's alias is another's name, the unit with the description is kept.
    return Extraction(entities + aliases, relations, generation.reason)


def _one_line(text: str) -> str:
    return " ".join(text.split())


__all__ = [
    "ENTITY_TYPES",
    "Answer",
    "LlmExtractConfig",
    "extract_all",
    "extract_prompt",
    "extract_schema",
    "extract_texts",
    "has_text",
]
