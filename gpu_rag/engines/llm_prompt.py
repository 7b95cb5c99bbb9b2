"""Prompts as a model sees them: conversations through its chat template, as tokens, and where a marked span lies in them.

What is counted is what is sent: the same template, the same tokenizer, the same ids.
"""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gpu_rag.engines.generation import GenerationRequest, Message, PromptSpan
from gpu_rag.engines.require import require
from gpu_rag.errors import ConfigError
from gpu_rag.spans import clean_text

_KEPT_TOKENS = 8_000_000  # of prompts that were counted and are sent next; 32 MB
_MARK = "\ue000\uf8ff\ue000"  # private use: no text has it, no template changes it
_TEMPLATE_TOKENS = 8  # per message, for the estimate: roles and separators
_CHARS_PER_TOKEN = 2  # cautious: English has four and more

Conversation = Sequence[Message]


class TokenCounter(Protocol):
    """Whatever can say how many tokens a conversation takes."""

    def count(self, conversations: Sequence[Conversation]) -> list[int]:
        """Return the prompt tokens of each conversation."""


class ChatTokenizer:
    """A model's own tokenizer and chat template."""

    def __init__(self, folder: Path) -> None:
        """Read the tokenizer from a model's folder.

        Raises:
            ConfigError: If there is none, or it has no chat template.
        """
        transformers = require("transformers", extra="cpu")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise ConfigError(f"no tokenizer in {folder}: {error}") from error
        if not self._tokenizer.chat_template:
            raise ConfigError(f"the tokenizer in {folder} has no chat template")
        self._control = tuple(self._tokenizer.all_special_tokens)
        self._kept: OrderedDict[Conversation, array[int]] = OrderedDict()
        self._num_kept = 0
        question = [Message("user", "?")]
        open_, closed = self.render(question), self.render(question, reply=False)
        self._reply_start = open_[len(closed) :] if open_.startswith(closed) else ""

    @property
    def end_token(self) -> int | None:
        """The token that ends a reply."""
        token: int | None = self._tokenizer.eos_token_id
        return token

    def render(self, conversation: Conversation, *, reply: bool = True) -> str:
        """Return the conversation as the template writes it; with `reply`, up to where the reply starts."""
        messages = [{"role": message.role, "content": clean_text(message.content)} for message in conversation]
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply)
        return text

    def prompt_ids(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Return each conversation's tokens; those asked for lately are kept."""
        keys = [tuple(conversation) for conversation in conversations]
        new = [key for key in dict.fromkeys(keys) if key not in self._kept]
        plain = [key for key in new if not self._spells_control(key)]
        if plain:
            encoded = self._tokenizer([self.render(key) for key in plain], add_special_tokens=False)["input_ids"]
            self._keep(dict(zip(plain, encoded, strict=True)))
        self._keep({key: self._encode(key)[0] for key in new if self._spells_control(key)})
        found = [self._kept[key].tolist() for key in keys]
        while self._num_kept > _KEPT_TOKENS:
            self._num_kept -= len(self._kept.popitem(last=False)[1])
        return found

    def count(self, conversations: Sequence[Conversation]) -> list[int]:
        """Return the prompt tokens of each conversation."""
        return [len(ids) for ids in self.prompt_ids(conversations)]

    def span_tokens(self, conversation: Conversation, span: PromptSpan) -> range | None:
        """Return the positions in the prompt of the tokens that hold the span's characters.

        A token that also holds a neighbour (the space before a word) counts. None if the template changes the text there.
        """
        marked = list(conversation)
        role, content = marked[span.message]
        marked[span.message] = Message(
            role, _MARK.join((content[: span.start], content[span.start : span.end], content[span.end :]))
        )
        pieces = self.render(marked).split(_MARK)
        if len(pieces) != 3 or "".join(pieces) != self.render(conversation):
            return None
        start, end = len(pieces[0]), len(pieces[0]) + len(pieces[1])
        offsets = self._encode(conversation)[1]
        inside = [row for row, (first, last) in enumerate(offsets) if first < end and last > start]
        return range(inside[0], inside[-1] + 1) if inside else range(0)

    def reply_ids(self, text: str) -> list[int]:
        """Return the tokens of a text as the start of a reply: some tokenizers write a word differently at a text's start."""
        alone: list[int] = self._tokenizer(self._reply_start, add_special_tokens=False)["input_ids"]
        joined: list[int] = self._tokenizer(self._reply_start + text, add_special_tokens=False)["input_ids"]
        if joined[: len(alone)] == alone:
            return joined[len(alone) :]
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _spells_control(self, conversation: Conversation) -> bool:
        return any(token in message.content for message in conversation for token in self._control)

    def _encode(self, conversation: Conversation) -> tuple[list[int], list[tuple[int, int]]]:
        """Return a prompt's tokens and the characters of the rendered text that each covers.

        A passage may spell a control token, such as the one that ends a message. What stands in a message is text: it must
        not end it, so such messages are tokenized apart from the template, with control tokens read as characters.
        """
        text = self.render(conversation)
        pieces = [text]
        if self._spells_control(conversation):
            marked = [Message(message.role, _MARK + message.content + _MARK) for message in conversation]
            split = self.render(marked).split(_MARK)
            pieces = split if "".join(split) == text else pieces
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        start = 0
        for number, piece in enumerate(pieces):
            encoded = self._tokenizer(
                piece, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=number % 2 == 1
            )
            ids += encoded["input_ids"]
            offsets += [(start + first, start + last) for first, last in encoded["offset_mapping"]]
            start += len(piece)
        return ids, offsets

    def _keep(self, prompts: Mapping[Conversation, Sequence[int]]) -> None:
        for key, ids in prompts.items():
            self._kept[key] = array("i", ids)
            self._num_kept += len(ids)


class EstimatedTokens:
    """A token per two characters: more than any text of a Latin script has, so that what fits by it fits."""

    def count(self, conversations: Sequence[Conversation]) -> list[int]:
        """Return an upper estimate of each conversation's prompt tokens."""
        return [
            sum(-(-len(message.content) // _CHARS_PER_TOKEN) + _TEMPLATE_TOKENS for message in conversation) + _TEMPLATE_TOKENS
            for conversation in conversations
        ]


def too_long(request: GenerationRequest, prompt_tokens: int, max_context_tokens: int) -> str:
    """Return why prompt and output do not fit the context together, empty if they do."""
    if prompt_tokens + request.sampling.max_tokens <= max_context_tokens:
        return ""
    return f"prompt of {prompt_tokens} tokens and {request.sampling.max_tokens} of output, {max_context_tokens} fit"


__all__ = ["ChatTokenizer", "EstimatedTokens", "TokenCounter", "too_long"]
