"""JSON schemas of what language models answer, put together from few parts.

Everything is bounded and closed, and ids are labels of what was shown.
"""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

# The only two bounds of free text in answers. A grammar costs xgrammar seconds for the first bound of some 200 characters and
# milliseconds where its automaton is known, which it is for an equal bound or one below 128: so few bounds, not the best ones.
LONG_TEXT: Schema = {"type": "string", "maxLength": 240}
SHORT_TEXT: Schema = {"type": "string", "maxLength": 100}
NAME: Schema = {**SHORT_TEXT, "minLength": 1}


def labels(letter: str, count: int) -> list[str]:
    """Return `count` labels such as P1, P2, ..."""
    return [f"{letter}{number}" for number in range(1, count + 1)]


def label_position(label: str) -> int:
    """Return the position that a label stands for: 0 for P1."""
    return int(label[1:]) - 1


def label_of(letter: str, count: int) -> Schema:
    """Return the schema of one of the first `count` labels."""
    return {"type": "string", "enum": labels(letter, count)}


def one_of(*values: str) -> Schema:
    """Return the schema of one of the given words."""
    return {"type": "string", "enum": list(values)}


def closed(**properties: Schema) -> Schema:
    """Return the schema of an object that has exactly these properties, in this order."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


__all__ = ["LONG_TEXT", "NAME", "SHORT_TEXT", "Schema", "closed", "label_of", "label_position", "labels", "one_of"]
