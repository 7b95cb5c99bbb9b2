"""Kinds of names by their own form, and forms that say nothing."""

import pytest

from gpu_rag.name_types import name_type


@pytest.mark.parametrize(
    ("before", "name", "expected"),
    [
        ("saw ", "Mr. Holmes", "person"),
        ("saw ", "Sir Winston Churchill", "person"),
        ("saw ", "Sir John Kennedy Medal", None),
        ("saw ", "Mrs Feather's Diary", None),
        ("the ", "Professor of Pathology", None),
        ("saw ", "DR Class 23", None),
        ("at ", "Yale University", "organization"),
        ("at ", "University of Turin", "organization"),
        ("at ", "University", None),
        ("the ", "Chancellor of Yale University", None),
        ("saw ", "Mr. Holmes of Yale University", None),
        ("by ", "Acme Inc.", "organization"),
        ("by ", "Acme County", None),
        ("in the city of ", "Boston", "place"),
        ("in the City of ", "God", None),
        ("in the capacity of ", "Boston", None),
        ("in the town of ", "Paris and Lyon", None),
        ("saw ", "Sherlock Holmes", None),
    ],
)
def test_only_a_form_that_is_nearly_never_anything_else_gives_a_type(before: str, name: str, expected: str | None) -> None:
    assert name_type(f"{before}{name} again", len(before), len(before) + len(name)) == expected
