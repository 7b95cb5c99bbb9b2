"""Stage 01 by a language model: the facts that a question needs, as ordered demands.

Source: LineageRAG, "Evidence-Demand Induction" (eq. 2 and 3).
"""

import re
from collections.abc import Callable, Sequence

from pydantic import PositiveInt

from gpu_rag.engines.generation import TextGenerator
from gpu_rag.prompts import PromptName, render
from gpu_rag.prompts.shapes import LONG_TEXT, Schema, closed, label_of, labels
from gpu_rag.query.prompted.ask import Asked, PromptConfig, Row, failed, noted

_REFERENCE = re.compile(r"#(\d+)")
DEMAND_VALUES = ("question", "max_demands")


class DemandPromptConfig(PromptConfig):
    """How a language model is asked for demands."""

    prompt: PromptName = "demand"
    output_tokens: PositiveInt = 512


def demand_schema(max_demands: int) -> Schema:
    """Return the schema of the answer; one for all questions, so an item can name a later one, which is then dropped."""
    uses = {"type": "array", "items": label_of("D", max_demands - 1), "maxItems": max_demands - 1}
    item = closed(description=LONG_TEXT, uses=uses)
    return closed(demands={"type": "array", "items": item, "minItems": 1, "maxItems": max_demands})


def ask_demands(
    questions: Sequence[str],
    llm: TextGenerator,
    config: DemandPromptConfig,
    max_demands: int,
    form: Callable[[str, str], str],
    whole: Callable[[str], list[Row]],
) -> Asked:
    """Return the demands of each question.

    A blank description, or one that was given before, is dropped, and a reference to it with it; the others are numbered
    anew. Where none is left, the question itself is the one demand.

    Args:
        questions: Texts.
        llm: The model.
        config: Prompt and budget.
        max_demands: How many demands a question may have.
        form: (question, description) -> what the demand is retrieved with.
        whole: question -> the demands that stand for it as a whole.
    """
    schema = demand_schema(max_demands)
    prompts = [render(config.prompt, question=question, max_demands=max_demands) for question in questions]
    answers = llm.generate(
        [llm.request(str(row), prompt, config.output_tokens, schema=schema) for row, prompt in enumerate(prompts)]
    )
    asked = Asked([], [], [])
    for row, question in enumerate(questions):
        generation = answers[str(row)]
        asked.calls.append([generation])
        if not generation.ok:
            asked.values.append(failed(generation))
            asked.notes.append("")
            continue
        demands, dropped = _demands(question, generation.value["demands"], form)
        asked.values.append(demands or whole(question))
        asked.notes.append(noted(generation.reason, dropped, "" if demands else "no usable demand"))
    return asked


def _demands(question: str, items: Sequence[Row], form: Callable[[str, str], str]) -> tuple[list[Row], str]:
    """Return the demands that stay, and what was dropped."""
    kept: dict[str, int] = {}  # label that the model used -> number now
    numbers: dict[str, int] = {}  # description -> number
    demands: list[Row] = []
    blank = repeated = references = 0
    for label, item in zip(labels("D", len(items)), items, strict=True):
        description = " ".join(item["description"].split())
        if not any(character.isalnum() for character in description):
            blank += 1
            continue
        if description.casefold() in numbers:
            repeated += 1
            kept[label] = numbers[description.casefold()]
            continue
        number = numbers[description.casefold()] = len(demands) + 1
        named = [*item["uses"], *(f"D{k}" for k in _REFERENCE.findall(description))]
        earlier = {kept[name] for name in named if name in kept}
        references += len({name for name in named if name not in kept})
        description = _REFERENCE.sub(lambda match: _renumbered(match, kept), description)
        kept[label] = number
        demands.append(
            {
                "demand_id": f"D{number}",
                "description": description,
                "query": form(question, description),
                "inputs": [f"x{k}" for k in sorted(earlier)],
                "outputs": [f"x{number}"],
            }
        )
    counted = {"blank demands": blank, "repeated demands": repeated, "references to no earlier demand": references}
    return demands, noted(*(f"left out {count} {what}" for what, count in counted.items() if count))


def _renumbered(match: re.Match[str], kept: dict[str, int]) -> str:
    """Return a reference `#k` with what is now that demand's number; one to no earlier demand stays, it may be no reference."""
    number = kept.get(f"D{match.group(1)}")
    return match.group() if number is None else f"#{number}"
