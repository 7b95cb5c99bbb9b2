"""Other names that a text states outright, and near cases that state none."""

import pytest

from gpu_rag.aliases import lead_alias, stated_aliases
from gpu_rag.names import spot_names


def pairs(text: str) -> list[tuple[str, str]]:
    found = stated_aliases(text, spot_names(text), [(0, len(text))])
    assert all(text[alias.start : alias.end] == alias.name for alias in found)
    return [(alias.name, alias.alias) for alias in found]


def lead(title: str, text: str) -> str | None:
    source = f"{title}\n{text}"
    return lead_alias(title, source, spot_names(source), [(len(title) + 1, len(source))])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The World Health Organization (WHO) is here.", [("World Health Organization", "WHO")]),
        ("It asked NATO (North Atlantic Treaty Organization).", [("NATO", "North Atlantic Treaty Organization")]),
        ("the Ministry of Defence (MoD) said", [("Ministry of Defence", "MoD")]),
        ("by the National Aeronautics and Space Administration (NASA; founded 1958)",
         [("National Aeronautics and Space Administration", "NASA")]),
        ("has acquired immune deficiency syndrome (AIDS) and", [("AIDS", "acquired immune deficiency syndrome")]),
        ("the United Nations (U.N.) met", [("United Nations", "U.N.")]),
        ("\u0421\u043e\u044e\u0437 \u0421\u043e\u0432\u0435\u0442\u0441\u043a\u0438\u0445 \u0420\u0435\u0441\u043f\u0443\u0431\u043b\u0438\u043a (\u0421\u0421\u0420)",
         [("\u0421\u043e\u044e\u0437 \u0421\u043e\u0432\u0435\u0442\u0441\u043a\u0438\u0445 \u0420\u0435\u0441\u043f\u0443\u0431\u043b\u0438\u043a", "\u0421\u0421\u0420")]),
    ],
)  # fmt: skip
def test_an_acronym_and_its_expansion_are_one(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "the World Health Organization (WTO) said",  # other initials
        "the Health Organization of the World (WHO) said",  # other order
        "Portland (OR) is wet",  # fewer words than letters
        "He (Smith) left Paris (France).",  # no acronym
        "the World Health Organization, and later WHO (in Geneva)",
        "the Royal World Health Organization (WHO) said",  # the name has a word more
    ],
)
def test_what_the_initials_do_not_spell_is_no_acronym(text: str) -> None:
    assert pairs(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Robert Zimmerman, known professionally as Bob Dylan, sings.", [("Robert Zimmerman", "Bob Dylan")]),
        ("Robert Zimmerman (born May 24, 1941), better known as Bob Dylan, sings.", [("Robert Zimmerman", "Bob Dylan")]),
        ("David Hayward-Jones (UK: /x/; born 8 (or 9) January 1947), known by his stage name David Bowie, sang.",
         [("David Hayward-Jones", "David Bowie")]),
        ("They visit Brest (also known as Brest-Litovsk) often.", [("Brest", "Brest-Litovsk")]),
        ("Ireland, also known as the Republic of Ireland, is an island.", [("Ireland", "Republic of Ireland")]),
        ("New York, often called \"Gotham City\", is large.", []),  # weak: a nickname that anyone may give
        ("Sri Lanka, formerly called Ceylon, is an island.", [("Sri Lanka", "Ceylon")]),
        ("Myanmar was formerly known as Burma.", [("Myanmar", "Burma")]),
        ("The Boys (aka The Guys) is a film.", [("Boys", "Guys")]),
        ("the ghost town of Cascade City aka Cascade is near", [("Cascade City", "Cascade")]),
        ("Othel Thompson, better known by his stage name Trae Tha Truth (or simply Trae), raps.",
         [("Othel Thompson", "Trae"), ("Othel Thompson", "Trae Tha Truth")]),
        ("Bonnie Tyler (born Gaynor Hopkins; 8 June 1951) sings.", [("Bonnie Tyler", "Gaynor Hopkins")]),
        ("Kate Sheppard (n\u00e9e Catherine Wilson Malcolm; 1848) led.", [("Kate Sheppard", "Catherine Wilson Malcolm")]),
        ("the Taj Mahal Casino (formerly Trump Plaza) closed", [("Taj Mahal Casino", "Trump Plaza")]),
        ("New South Wales (abbreviated as NSW) is a state.", [("New South Wales", "NSW")]),
    ],
)  # fmt: skip
def test_a_name_that_the_text_gives_to_another_is_its_alias(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Tom Kenny (best known as SpongeBob SquarePants) hosts.",
        "Thomas Hinds is known for Hinds County.",
        "It lies near Brescia, in a valley also known as Val Trompia.",  # the valley is
        "He met Anna Smith, also known as Paris Hilton.",  # who of the two? the name does not begin the sentence
        "Later, Smith also called Jones.",  # a verb
        "Anna Smith (with Bob Jones, also known as Bobby Jones) won.",  # of the second
        "Renato Bartilotti (born June 11, 1976) plays.",
        "Renato Bartilotti (born in New York) plays.",
        "Nancy Kassebaum (n\u00e9e Landon; born 1932) is retired.",  # a surname alone names a family
        "Mackenzie School (formerly of Deep River High) is old.",
        "Paris, known as Paris, is large.",  # itself
        "It was known as Gorsium.",
    ],
)
def test_near_cases_give_none(text: str) -> None:
    assert pairs(text) == []


def test_the_full_name_of_the_title_is_read_off_the_first_sentence() -> None:
    assert lead("Madonna", "Madonna Louise Ciccone (born August 16, 1958) is an American singer.") == "Madonna Louise Ciccone"
    assert lead("Ai (poet)", "Ai Ogawa (born 1947) was a poet.") == "Ai Ogawa"
    assert (
        lead("Bill Clinton", "William Jefferson Clinton (born 1946) is an American politician.") == "William Jefferson Clinton"
    )
    assert lead("Catholic Church", "The Roman Catholic Church is the largest church.") == "Roman Catholic Church"


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("Madonna", "Madonna is a singer."),  # the same
        ("France national team", "France is a country."),  # less than the title
        ("East London", "Greater London is a region."),  # an end in common, but no person
        ("Madonna", "Madonna Louise Ciccone sings."),  # says nothing of what she is
        ("Apollo 11", "Apollo 11 Mission is a film."),  # a number tells apart
        ("", "Madonna Louise Ciccone is a singer."),
    ],
)
def test_what_is_not_another_form_of_the_title_is_not_its_alias(title: str, text: str) -> None:
    assert lead(title, text) is None


def test_aliases_are_linear_in_the_text() -> None:
    text = "Anna Bell (also known as Ann) met " * 2000
    assert len(stated_aliases(text, spot_names(text), [(0, len(text))])) == 2000
    for repeated in ("also ", "known as (", "A a "):
        assert stated_aliases(repeated * 20_000, [], []) == []
    assert stated_aliases("(" * 20_000 + "A (" * 5000, [], []) == []
