"""Log-probabilities of choices, from those of the tokens that tell them apart.

The probability of a choice is taken at the first token where the choices differ; before it they are one text. What follows
that token is not scored. Choices that share it (P1 and P10, where digits are tokens) share its probability equally.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Token = TypeVar("Token", bound=Hashable)


def first_difference(choices: Mapping[str, Sequence[Token]]) -> tuple[int, dict[str, Token]]:
    """Return the position at which the choices first differ, and each one's token there; none is the start of another."""
    position = 0
    while len({tokens[position] for tokens in choices.values()}) == 1:
        position += 1
    return position, {choice: tokens[position] for choice, tokens in choices.items()}


def choice_logprobs(tokens: Mapping[str, Token], logprobs: Mapping[Token, float]) -> dict[str, float]:
    """Return each choice's log-probability, normalised over the choices.

    Args:
        tokens: The token that stands for each choice.
        logprobs: Log-probability of every one of these tokens, natural logarithm.
    """
    sharing = list(tokens.values())
    scores = {choice: logprobs[token] - math.log(sharing.count(token)) for choice, token in tokens.items()}
    top = max(scores.values())
    if top == -math.inf:
        return dict.fromkeys(scores, -math.log(len(scores)))
    total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
    return {choice: score - total for choice, score in scores.items()}


__all__ = ["choice_logprobs", "first_difference"]
