"""Stage 08 by a language model: the sentences that an answer rests on, then the answer itself.

The explanation is made of the cited sentences, word for word, so nothing stands in it that the source does not say.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import PositiveInt

from gpu_rag.engines.generation import TextGenerator
from gpu_rag.prompts import PromptName
from gpu_rag.prompts.shapes import SHORT_TEXT, Schema, closed, label_of, label_position, labels
from gpu_rag.query.evidence import sentence_at
from gpu_rag.query.frame import Failed
from gpu_rag.query.prompted.ask import Asked, Row, failed, noted
from gpu_rag.query.prompted.evidence_prompt import Evidence, EvidencePromptConfig, instruct, show_evidence
from gpu_rag.query.repository import Repository

ANSWER_VALUES = ("findings",)
_MAX_CITES = 8
_SHOWN_ANNOTATIONS = 20  # within what `reserve_tokens` leaves


class AnswerPromptConfig(EvidencePromptConfig):
    """How a language model is asked for an answer."""

    prompt: PromptName = "answer"
    output_tokens: PositiveInt = 160


class Draft(NamedTuple):
    """What a model says.

    Attributes:
        answer: "" if it says nothing with a word character.
        sentences: Rows of the cited sentences, each once; none for an unsupported answer.
    """

    answer: str
    sentences: list[int]


def answer_schema(num_sentences: int) -> Schema:
    """Return the schema of the answer: citations first, so that the answer follows from them."""
    cites = {"type": "array", "items": label_of("S", num_sentences), "maxItems": _MAX_CITES}
    return closed(cites=cites, answer=SHORT_TEXT)


def ask_answers(questions: Sequence[Row], repository: Repository, llm: TextGenerator, config: AnswerPromptConfig) -> Asked:
    """Return the draft of each question, which has a selection.

    Args:
        questions: `question, demands, selection, annotations`.
        repository: Sentences and texts.
        llm: The model.
        config: Prompt and budgets.
    """
    shown = show_evidence(questions, repository, llm, config)
    requests = []
    for row, (question, evidence) in enumerate(zip(questions, shown, strict=True)):
        if isinstance(evidence, Evidence) and evidence.sentences:
            prompt = evidence.asked(instruct(config.prompt, findings=_findings(question, evidence, repository)))
            schema = answer_schema(len(evidence.sentences))
            requests.append(llm.request(str(row), prompt, config.output_tokens, schema=schema))
    answers = llm.generate(requests)
    asked = Asked([], [], [])
    for row, evidence in enumerate(shown):
        generation = answers.get(str(row))
        asked.calls.append([generation] if generation else [])
        asked.notes.append("")
        if isinstance(evidence, Failed):
            asked.values.append(evidence)
        elif generation is None:  # passages without a sentence answer nothing
            asked.values.append(Draft("", []))
        elif not generation.ok:
            asked.values.append(failed(generation))
        else:
            rows = [evidence.sentences[label_position(label)] for label in generation.value["cites"]]
            text = generation.value["answer"].strip()
            said = any(character.isalnum() for character in text)
            asked.values.append(Draft(text if said else "", list(dict.fromkeys(rows))))
            asked.notes[-1] = noted(evidence.note, generation.reason)
    return asked


def _findings(question: Row, evidence: Evidence, repository: Repository) -> list[dict[str, str]]:
    """Return what grounding found for each demand, each span once, in the labels of the prompt."""
    label_of_row = dict(zip(evidence.sentences, labels("S", len(evidence.sentences)), strict=True))
    found: dict[str, list[str]] = {demand["demand_id"]: [] for demand in question["demands"]}
    seen: set[tuple[str, int, int]] = set()
    for annotation in question["annotations"]:
        span = annotation["chunk_id"], annotation["start"], annotation["end"]
        label = label_of_row.get(sentence_at(annotation["chunk_id"], annotation["start"], repository))
        if label is None or span in seen or len(seen) == _SHOWN_ANNOTATIONS:  # None: its passage did not fit the prompt
            continue
        seen.add(span)
        values = ", ".join(binding["value"] for binding in annotation["produces"])
        found[annotation["demand_id"]].append(f"[{label}] {values}".rstrip())
    return [
        {"label": label, "found": "; ".join(items)}
        for label, items in zip(labels("D", len(found)), found.values(), strict=True)
    ]
