"""Prompts of the language model stages: one file each, in plain text, filled with jinja2.

A prompt file is a list of parts, each begun by a line that names its role:

    {# system #}
    You answer from the passages alone.
    {# user #}
    Question: {{ question }}

To change one, copy the file, edit it, and name it in the config by its path (`ground.llm.prompt: my/ground.jinja`); the head
of a built-in file says which values it may use. Values go in as they are: no text of a passage can open a part or be read as
a template. The text of a prompt is part of its stage's fingerprint.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError, TemplateSyntaxError, meta
from pydantic import BeforeValidator

from gpu_rag.engines.generation import Message
from gpu_rag.errors import ConfigError

_SUFFIX = ".jinja"
_ROLE = re.compile(r"^\{# *(system|user|assistant) *#\}[ \t]*$", re.MULTILINE)
_COMMENTS = re.compile(r"\{#.*?#\}", re.DOTALL)
# A prompt is one file: what it included would not be in its fingerprint, so there is nothing to include.
_environment = Environment(
    loader=DictLoader({}), undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
)


def render(name: str, /, **values: Any) -> tuple[Message, ...]:
    """Return the messages of a prompt, filled with values.

    Args:
        name: A built-in prompt such as `ground`, the path of a file that ends in .jinja, or a prompt's text itself.
        values: What the prompt may use; it need not use all.

    Raises:
        ConfigError: If there is no such prompt, or if it is not well formed or asks for a value that it is not given.
    """
    try:
        return tuple(Message(role, template.render(values)) for role, template in _parts(prompt_text(name)))
    except TemplateError as error:
        raise ConfigError(f"prompt {_shown(name)}: {error}") from error


def prompt_text(name: str, values: Collection[str] | None = None) -> str:
    """Return the text of a prompt, for fingerprints; what `name` may be is said at `render`.

    Raises:
        ConfigError: If there is no such prompt, or, where `values` are given, if it is not well formed or asks for another.
    """
    if "\n" in name:
        text = name
    elif name.endswith(_SUFFIX):
        text = _read(Path(name))
    else:
        text = _built_in(name)
    if values is not None:
        _parts(text)
        unknown = meta.find_undeclared_variables(_environment.parse(text)) - set(values)
        if unknown:
            raise ConfigError(f"prompt {_shown(name)} asks for {sorted(unknown)}; there are {sorted(values)}")
    return text


def _resolved(name: Any) -> Any:
    """Return a file's text for its path, checked: workers need not see the file, and no edit slips into a run half done."""
    if not isinstance(name, str):
        return name  # the type of the field is checked after this
    text = prompt_text(name)
    _parts(text)
    return text if name.endswith(_SUFFIX) else name


PromptName = Annotated[str, BeforeValidator(_resolved)]  # of a config's field: a path is replaced by the file's text


@lru_cache(maxsize=64)
def _parts(text: str) -> tuple[tuple[str, Any], ...]:
    """Return role and template of each part."""
    head, *found = _ROLE.split(text)
    if not found or _COMMENTS.sub("", head).strip():
        raise ConfigError(f"prompt {_shown(text)}: expected a line {{# system #}} or {{# user #}} before its text")
    try:
        bodies = [_environment.from_string(body.strip()) for body in found[1::2]]
    except TemplateSyntaxError as error:
        raise ConfigError(f"prompt {_shown(text)}: {error.message}") from error
    return tuple(zip(found[::2], bodies, strict=True))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompt file {path} cannot be read: {error}") from error


@lru_cache(maxsize=64)
def _built_in(name: str) -> str:
    folder = Path(__file__).parent
    path = folder / f"{name}{_SUFFIX}"
    if Path(name).name != name or not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob(f"*{_SUFFIX}")))
        raise ConfigError(f"no prompt {name!r}; there are: {known}; a file of your own ends in {_SUFFIX}")
    return _read(path)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:60] + "...")


__all__ = ["PromptName", "prompt_text", "render"]
