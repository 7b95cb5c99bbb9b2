"""Evaluation: a run's tables against gold, as flat metrics, one row per question, and a static HTML report.

    text_metrics   one short answer against one gold: EM, F1, containment
    retrieval      one ranking against its gold supports: recall@k and the bound it can reach
    boundary       answer or refuse: the outcome class of a question, BBS
    grounding      demand completion, verbatim citations
    metrics        the whole run: `per_question`, `evaluate_run`
    definitions    what each metric means, shown wherever it is printed
    report         `write_report`: report.html, readable without network
    terminal       `metrics_table` for the console

Everything is joined by question id; nothing here computes a result, calls a model or reads an index.
"""
