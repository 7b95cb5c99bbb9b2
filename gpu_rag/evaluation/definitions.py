"""What each metric means, in one sentence, under the name it has in metrics.json.

The report and the terminal take names, order, groups and explanations from here, so no metric is printed without its
definition. "Recall" is always retrieval recall on document ids, never token recall of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_rag.evaluation.retrieval import RECALL_DEPTHS
from gpu_rag.schemas import STATES


@dataclass(frozen=True)
class Definition:
    """A metric's group, kind of value (`share` in [0, 1], `count`, or `number`) and meaning."""

    group: str
    kind: str
    text: str


GROUPS = ("retrieval", "answers", "boundary", "grounding", "rows", "tokens", "other")

NOTES = {
    "retrieval": "Recall on document ids, not token recall of an answer; means over questions with gold documents.",
    "answers": "Means over answerable questions with a gold answer; a refusal or an unprocessed row counts 0.",
    "boundary": "A row that was not processed is neither answered nor refused.",
    "grounding": "An annotation is valid if its quote stands verbatim in a selected passage that its demand retrieved.",
    "rows": "The states add up to the questions; states without a row are left out.",
    "tokens": "Of the query stages, failures and retries included, also what an earlier run of the same folder spent.",
}

DEFINITIONS: dict[str, Definition] = {
    **{
        f"recall@{k}": Definition(
            "retrieval",
            "share",
            f"Share of a question's gold documents among the first {k} distinct documents of its ranking (macro mean).",
        )
        for k in RECALL_DEPTHS
    },
    **{
        f"max_recall@{k}": Definition(
            "retrieval",
            "share",
            f"Recall@{k} of a perfect ranking; below 1 where questions have more than {k} gold documents.",
        )
        for k in RECALL_DEPTHS
    },
    "num_with_supports": Definition("retrieval", "count", "Questions with gold documents."),
    "num_repeated_documents": Definition(
        "retrieval", "count", "Ranking rows whose document stands higher in the same ranking; the first one counts."
    ),
    "exact_match": Definition("answers", "share", "Short answer equals a gold answer in the official SQuAD normal form."),
    "f1": Definition("answers", "share", "Token F1 in the official SQuAD normal form, best of the gold answers."),
    "strict": Definition(
        "answers",
        "share",
        "Strict accuracy: short answer equals a gold answer in the Unicode-aware normal form (case folded, without "
        "punctuation of any script, without articles unless nothing would be left).",
    ),
    "lenient": Definition(
        "answers", "share", "Lenient accuracy: a gold answer stands in the short answer as whole words, or equals it."
    ),
    "unicode_f1": Definition("answers", "share", "Token F1 in the Unicode-aware normal form, best of the gold answers."),
    "num_with_gold": Definition("answers", "count", "Answerable questions with a gold answer."),
    "bbs": Definition(
        "boundary",
        "share",
        "Boundary-balanced score: harmonic mean of lenient and correct_refusal, 0 if both are 0; undefined without "
        "unanswerable questions or without gold answers.",
    ),
    "correct_refusal": Definition("boundary", "share", "Share of the unanswerable questions that were refused."),
    "false_answer": Definition("boundary", "share", "Share of the unanswerable questions that were answered."),
    "false_refusal": Definition("boundary", "share", "Share of the answerable questions that were refused."),
    "answered": Definition("boundary", "share", "Share of all questions that were answered."),
    "refused": Definition("boundary", "share", "Share of all questions that were refused; a failure is no refusal."),
    "num_questions": Definition("boundary", "count", "Questions evaluated."),
    "num_answered": Definition("boundary", "count", "Questions answered."),
    "num_refused": Definition("boundary", "count", "Questions refused."),
    "num_answerable": Definition("boundary", "count", "Questions labelled answerable."),
    "num_unanswerable": Definition("boundary", "count", "Questions labelled unanswerable."),
    "num_unlabelled": Definition("boundary", "count", "Questions without that label; in neither group."),
    "demands_completed": Definition(
        "grounding", "share", "Share of all evidence demands with at least one valid verbatim annotation (micro)."
    ),
    "questions_all_completed": Definition(
        "grounding", "share", "Share of the questions with demands that have all of them completed."
    ),
    "questions_any_completed": Definition(
        "grounding", "share", "Share of the questions with demands that have at least one completed."
    ),
    "num_demands": Definition("grounding", "count", "Evidence demands of all questions."),
    "answers_cited": Definition("grounding", "share", "Share of the answered questions with at least one citation."),
    "citations_verbatim": Definition(
        "grounding", "share", "Share of the citations whose quote is the source text at their offsets."
    ),
    "num_citations": Definition("grounding", "count", "Citations of all answers."),
    **{f"rows_{state}": Definition("rows", "count", f"Questions whose row has the state {state}.") for state in STATES},
    "llm_calls": Definition("tokens", "count", "Requests to the language model, every try counted."),
    "llm_invalid": Definition("tokens", "count", "Requests whose output was cut or not what was asked for."),
    "llm_valid_rate": Definition("tokens", "share", "Share of the requests whose output was whole and as asked for."),
    "tokens_in": Definition("tokens", "count", "Prompt tokens, those from the prefix cache included."),
    "tokens_cached": Definition("tokens", "count", "Prompt tokens that the engine had in its prefix cache."),
    "prefix_cache_share": Definition("tokens", "share", "tokens_cached of tokens_in."),
    "tokens_out": Definition("tokens", "count", "Output tokens."),
    "tokens_retried": Definition("tokens", "count", "Tokens, in and out, of tries that were followed by another."),
    "tokens_per_question": Definition("tokens", "number", "Tokens, in and out, per question."),
    "model_loads": Definition("tokens", "count", "How often this run loaded the model; one per worker."),
}

_UNKNOWN = Definition("other", "number", "Reported by the run itself.")


def definition(name: str) -> Definition:
    """Return the definition of a metric; one that the run itself reported is in the group `other`."""
    return DEFINITIONS.get(name, _UNKNOWN)


def grouped(metrics: Mapping[str, float | None]) -> dict[str, list[str]]:
    """Return the metric names by group, groups and names in the order of this module, unknown names at the end."""
    known = [name for name in DEFINITIONS if name in metrics]
    names = known + sorted(name for name in metrics if name not in DEFINITIONS)
    groups = {group: [name for name in names if definition(name).group == group] for group in GROUPS}
    return {group: members for group, members in groups.items() if members}


def format_value(name: str, value: float | None) -> str:
    """Return a metric as text: shares in percent, counts with thousands separators, undefined ones as "undefined"."""
    if value is None:
        return "undefined"
    kind = definition(name).kind
    if kind == "share":
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if kind == "count" or float(value).is_integer() else f"{value:,.4g}"
