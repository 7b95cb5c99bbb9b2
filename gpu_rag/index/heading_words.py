"""The words that make a line a heading, in the languages of the corpora seen so far, and the values of numbers."""

from typing import Literal

Kind = Literal["markdown", "part", "chapter", "scene", "named", "roman", "numbered", "caps"]

# Alternatives of a regular expression, in lower case.
UNITS: dict[Kind, str] = {
    "part": (
        "part|book|volume|partie|livre|tome|teil|buch|parte|libro"
        "|\u0447\u0430\u0441\u0442\u044c|\u043a\u043d\u0438\u0433\u0430|\u0442\u043e\u043c"
    ),
    "chapter": (
        "chapter|act|canto|letter|stave|kapitel|chapitre|cap[i\u00ed]tulo|capitolo"
        "|\u0433\u043b\u0430\u0432\u0430|\u043f\u0438\u0441\u044c\u043c\u043e"
    ),
    "scene": "scene|szene|sc[e\u00e8]ne|escena|\u0441\u0446\u0435\u043d\u0430",
}
ANY_UNIT = "|".join(UNITS.values())
KIND_OF_CJK: dict[str, Kind] = {
    **dict.fromkeys("\u90e8\u5377\u7de8\u7f16\ubd80", "part"),
    **dict.fromkeys("\u7ae0\u56de\u8a71\u8bdd\uc7a5", "chapter"),
    **dict.fromkeys("\u5834\u573a", "scene"),
}
_CARDINALS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
twenty
"""
_ORDINALS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth sixteenth
seventeenth eighteenth nineteenth twentieth
"""
ORDINALS = "|".join(_ORDINALS.split())
NUMBERS = rf"\d{{1,3}}|[ivxlcdm]{{1,9}}|{'|'.join(_CARDINALS.split())}|{ORDINALS}"
_NUMBER_WORDS = {word: value for words in (_CARDINALS, _ORDINALS) for value, word in enumerate(words.split(), 1)}
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_ROMAN_SIGNS = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"), (9, "ix"),
    (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip
_CJK_DIGITS = {char: value for value, char in enumerate("\u96f6\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d")}
_CJK_DIGITS |= {"\u3007": 0, "\u4e24": 2}
_CJK_SCALE = {"\u5341": 10, "\u767e": 100, "\u5343": 1000}
CJK_NUMERALS = "".join([*_CJK_DIGITS, *_CJK_SCALE])  # inside a regex class

OUTER_NAMES = (  # head a part of the whole; alternatives of a regular expression
    "preface|foreword|prologue|epilogue|afterword|introduction|introductory note|contents|table of contents|appendix"
    "|\u043f\u0440\u0435\u0434\u0438\u0441\u043b\u043e\u0432\u0438\u0435|\u0432\u0432\u0435\u0434\u0435\u043d\u0438\u0435|\u0437\u0430\u043a\u043b\u044e\u0447\u0435\u043d\u0438\u0435"
    "|\u044d\u043f\u0438\u043b\u043e\u0433|\u043f\u0440\u043e\u043b\u043e\u0433|einleitung|vorwort|\u5e8f\u7ae0?|\u524d\u8a00"
    "|\u76ee\u5f55|\u76ee\u6b21|\u5c3e\u58f0"
)
INNER_NAMES = (  # may come in every chapter
    "abstract|background|related work|methods?|methodology|materials and methods|results|discussion|conclusions?|references"
    "|bibliography|acknowledge?ments?|summary|executive summary|glossary|index|notes|review questions"
)
CONTENTS = ("contents", "\u0441\u043e\u0434\u0435\u0440\u0436\u0430\u043d\u0438\u0435", "\u76ee\u5f55", "\u76ee\u6b21")


def number_of(text: str) -> int:
    """Return the value of digits, an English number word or a Roman number; 0 for none of them."""
    folded = text.lower()
    if folded.isdecimal():
        return int(folded)
    if folded in _NUMBER_WORDS:
        return _NUMBER_WORDS[folded]
    values = [_ROMAN[char] for char in folded]
    value = sum(-v if v < after else v for v, after in zip(values, [*values[1:], 0], strict=True))
    return value if _roman_form(value) == folded else 0


def cjk_number_of(text: str) -> int:
    """Return the value of digits, or of numerals as Chinese and Japanese write them."""
    if text.isdecimal():
        return int(text)
    total, digit = 0, 0
    for char in text:
        if char in _CJK_SCALE:
            total += max(digit, 1) * _CJK_SCALE[char]
            digit = 0
        else:
            digit = 10 * digit + _CJK_DIGITS[char]
    return total + digit


def _roman_form(value: int) -> str:
    parts = []
    for amount, sign in _ROMAN_SIGNS:
        parts.append(sign * (value // amount))
        value %= amount
    return "".join(parts)


__all__ = [
    "ANY_UNIT",
    "CJK_NUMERALS",
    "CONTENTS",
    "INNER_NAMES",
    "KIND_OF_CJK",
    "NUMBERS",
    "ORDINALS",
    "OUTER_NAMES",
    "UNITS",
    "Kind",
    "cjk_number_of",
    "number_of",
]
