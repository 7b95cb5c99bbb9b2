"""Outputs of language models, parsed and held against what was asked for.

With a grammar in the engine an invalid output cannot come; a server without one, a batch service, or a grammar that is
silently off can send anything. Whatever comes ends in a value or in `InvalidOutputError`, never in an exception of a parser.

One rule repairs: array items that do not fit their schema are left out and named, the others are kept, since one bad entity
must not cost the good ones. Everything else that does not fit makes the output invalid.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from gpu_rag.ids import canonical_json
from gpu_rag.spans import clean_text

_MAX_CHARS = 1_000_000
_SHOWN_CHARS = 60
_FENCE = "```"


class InvalidOutputError(Exception):
    """The output is not what was asked for; the message says where."""


def checked_choice(text: str, choices: Sequence[str]) -> str:
    """Return the choice that the output is, white space around it aside.

    Raises:
        InvalidOutputError: If it is none of them.
    """
    answer = text.strip()
    if answer not in choices:
        raise InvalidOutputError(f"output {_shown(answer)} is none of {len(choices)} choices")
    return answer


def checked_json(text: str, schema: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the value that the output is, and what was left out of it.

    Raises:
        InvalidOutputError: If the output is not JSON (a byte order mark or one code fence around it aside), has a key twice
            or a number that is none, or does not fit the schema other than in items of arrays.
    """
    value = _parsed(text)
    validator = _validator(canonical_json(schema))
    left_out: list[str] = []
    while True:
        errors = list(validator.iter_errors(value))
        if not errors:
            return value, left_out
        doomed: dict[tuple[str | int, ...], str] = {}
        for error in errors:
            place = _item(error)
            if place is None:
                raise InvalidOutputError(f"output at {error.json_path}: {_shown(error.message)}")
            doomed.setdefault(place, error.json_path)
        for place in sorted(doomed, key=lambda path: (len(path), path[:-1], path[-1]), reverse=True):
            left_out.append(f"left out {'.'.join(map(str, place))}")
            _remove(value, place)


def _parsed(text: str) -> Any:
    if len(text) > _MAX_CHARS:
        raise InvalidOutputError(f"output of {len(text)} characters")
    body = text.removeprefix("\ufeff").strip()
    if body.startswith(_FENCE) and body.endswith(_FENCE) and len(body) > 2 * len(_FENCE):
        body = body[len(_FENCE) : -len(_FENCE)].removeprefix("json").strip()
    if not body:
        raise InvalidOutputError("output is empty")
    try:
        return _clean(json.loads(body, object_pairs_hook=_once, parse_constant=_no_number))
    except json.JSONDecodeError as error:
        raise InvalidOutputError(f"output is not JSON: {error.msg} at character {error.pos}: {_shown(body)}") from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, too deep a nesting
        raise InvalidOutputError(f"output is not JSON: {_shown(str(error))}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise InvalidOutputError("output has a key twice in one object")
    return values


def _clean(value: Any) -> Any:
    """Return the value with lone surrogates in its strings replaced, which no table can hold."""
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return clean_text(value) if isinstance(value, str) else value


def _no_number(name: str) -> Any:
    raise InvalidOutputError(f"output holds {name}, which is no number")


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def _item(error: Any) -> tuple[str | int, ...] | None:
    """Return the path of the innermost array item that the error lies in, None if it lies in none.

    An array that is too long loses what is beyond its limit.
    """
    path = tuple(error.absolute_path)
    if error.validator == "maxItems":
        return (*path, error.validator_value)
    for depth in range(len(path), 0, -1):
        if isinstance(path[depth - 1], int):
            return path[:depth]
    return None


def _remove(value: Any, path: tuple[str | int, ...]) -> None:
    for part in path[:-1]:
        value = value[part]
    last = path[-1]
    assert isinstance(last, int)
    if last < len(value):
        del value[last]


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


__all__: list[str] = ["InvalidOutputError", "checked_choice", "checked_json"]
