"""Profile by a language model: form, topics, discourse mode and boundary, as JSON from fixed choices.

The model is shown the title, the headings that the rules found and three excerpts, of the beginning, the middle and the end:
what a prompt costs does not grow with the document. Sections stay those of the rules, since a model that sees excerpts cannot
place them; it says whether what they allow as a boundary is one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, PositiveInt

from gpu_rag.engines.generation import Generation, Message, TextGenerator
from gpu_rag.errors import ConfigError
from gpu_rag.ids import canonical_json
from gpu_rag.index.profile_rules import DISCOURSES, FORMS, MAX_TOPICS, Profile
from gpu_rag.prompts import PromptName, prompt_text, render
from gpu_rag.prompts.shapes import SHORT_TEXT, Schema, closed
from gpu_rag.spans import is_blank

_MAX_HEADINGS = 40
_MAX_TITLE = 200  # characters of a title or heading that are shown
_PROMPT_VALUES = ("title", "headings", "excerpts", "forms", "discourses", "boundaries", "max_topics")


class LlmProfileConfig(BaseModel):
    """What the model is asked.

    Attributes:
        prompt: Name of a built-in prompt, or the path of a file.
        output_tokens: Budget of one answer; tokens.
        excerpt_chars: Characters of the text that are shown, half of them from its beginning.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: PromptName = "profile"
    output_tokens: PositiveInt = 256
    excerpt_chars: PositiveInt = 4000


class Answer(NamedTuple):
    """A document's profile, who gave it, the state of its row, and the generations it took."""

    profile: Profile
    method: str
    state: str = "ok"
    reason: str = ""
    calls: tuple[Generation, ...] = ()


def profile_all(
    documents: Mapping[str, tuple[str, str]], profiles: Mapping[str, Profile], *, config: LlmProfileConfig, llm: TextGenerator
) -> dict[str, Answer]:
    """Return the answer for each document, (title, text) by its key; one that fails keeps its profile by the rules.

    Raises:
        ConfigError: If not even the prompt without a document fits the model's context.
    """
    if documents:
        _check_room(config, llm)
    generations = llm.generate(
        [
            llm.request(
                key,
                profile_prompt(title, text, profiles[key], config),
                config.output_tokens,
                schema=profile_schema(profiles[key].boundary),
            )
            for key, (title, text) in documents.items()
        ]
    )
    answers = {}
    for key in documents:
        generation = generations[key]
        if generation.ok:
            answers[key] = Answer(_read(profiles[key], generation), "llm", reason=generation.reason, calls=(generation,))
        else:
            answers[key] = Answer(profiles[key], "rules", generation.state, f"llm: {generation.reason}", (generation,))
    return answers


def profile_prompt(title: str, text: str, profile: Profile, config: LlmProfileConfig) -> tuple[Message, ...]:
    """Return the messages for one document; everything of it stands in lines of its own."""
    return render(
        config.prompt,
        title=_one_line(title)[:_MAX_TITLE],
        headings=[_one_line(section.title)[:_MAX_TITLE] for section in profile.sections[:_MAX_HEADINGS]],
        excerpts=[_one_line(part) for part in _excerpts(text, config.excerpt_chars)],
        forms=FORMS,
        discourses=DISCOURSES,
        boundaries=_boundaries(profile.boundary),
        max_topics=MAX_TOPICS,
    )


def profile_schema(boundary: str) -> Schema:
    """Return the JSON schema of an answer; one per boundary that the rules found."""
    return closed(
        form={"type": "string", "enum": list(FORMS)},
        discourse={"type": "string", "enum": list(DISCOURSES)},
        topics={"type": "array", "items": {**SHORT_TEXT, "minLength": 1}, "maxItems": MAX_TOPICS},
        boundary={"type": "string", "enum": _boundaries(boundary)},
    )


def profile_texts(config: LlmProfileConfig) -> dict[str, str]:
    """Return the texts that decide what the model is asked, for the stage's fingerprint."""
    schema = canonical_json(profile_schema("chapter"))
    return {"profile prompt": prompt_text(config.prompt, _PROMPT_VALUES), "profile schema": schema}


def _check_room(config: LlmProfileConfig, llm: TextGenerator) -> None:
    """Refuse a context that holds no document at all: every row would be too long, hours into a run."""
    empty = Profile("article", (), "narrative", (), "none")
    (used,) = llm.count_tokens([profile_prompt("", "", empty, config)])
    room = llm.prompt_budget(config.output_tokens)
    if used >= room:
        raise ConfigError(
            f"the profile prompt without a document takes {used} tokens, but {max(room, 0)} are left beside an output of "
            f"profile.llm.output_tokens={config.output_tokens} within the engine's context of "
            f"{llm.engine.max_context_tokens}; raise llm.max_context_tokens or lower profile.llm.output_tokens"
        )


def _read(profile: Profile, generation: Generation) -> Profile:
    """Return the profile of an answer that fits the schema; where it gives no topics, those of the rules stay."""
    value = generation.value
    topics = dict.fromkeys(topic for topic in (_one_line(topic) for topic in value["topics"]) if not is_blank(topic))
    return replace(
        profile,
        form=value["form"],
        topics=tuple(topics) or profile.topics,
        discourse=value["discourse"],
        boundary=value["boundary"],
    )


def _boundaries(found: str) -> list[str]:
    return ["none"] if found == "none" else [found, "none"]


def _excerpts(text: str, chars: int) -> list[str]:
    if len(text) <= chars:
        return [text]
    quarter = chars // 4
    middle = (len(text) - quarter) // 2
    return [text[: chars - 2 * quarter], text[middle : middle + quarter], text[len(text) - quarter :]]


def _one_line(text: str) -> str:
    return " ".join(text.split())


__all__ = ["Answer", "LlmProfileConfig", "profile_all", "profile_prompt", "profile_schema", "profile_texts"]
