"""Offline, batched GraphRAG: a corpus in, cited answers or refusals out."""

__version__ = "0.1.0"
