"""The query side: demands, retrieval, selection, grounding, sufficiency and answers, one module per numbered stage.

A worker holds one opened index as arrays (`repository`); the stages are pure functions over it.
"""
