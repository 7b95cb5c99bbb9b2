"""Names without a model: capitalised spans, dates, and longest-match lookup of known names.

Shared by the index (mentions, links) and the query side (names of a question). Pure Python; offsets count code points
of the text given. What is returned is always the text's own slice.

Scripts: capitals decide wherever a script has them (Latin, Greek, Cyrillic, Armenian ...). A run of a script without
capitals (Chinese, Arabic, Hindi ...) inside a text that has them is taken as a name; in a text written mostly in such a
script nothing marks a name but quotation marks and brackets, so only what stands in those is taken.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_rag.spans import normal_form
from gpu_rag.words import CASELESS, FUNCTION_WORDS, MARKS, PART, UNSPACED


class NameSpan(NamedTuple):
    """A name in a text: `name == text[start:end]`; `type` is `name` or `date`."""

    start: int
    end: int
    name: str
    type: str


_CONNECTING = """
of the de del della di da do dos das du des la le les el los las y e et und von van der den zu zum zur af av
bin ibn al ben ter ten and in on to for
"""
_CONNECTORS = frozenset(_CONNECTING.split())
CUTS = frozenset(("and", "in", "on", "to", "for"))  # where a span is also cut: Paris in France
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_CALENDAR = frozenset(
    f"{_MONTHS}|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
    .casefold().split("|")
)  # fmt: skip
_ABBREVIATED = """
mr mrs ms dr st ste mt ft jr sr prof gen col lt capt sgt cpl maj adm rev fr hon gov sen rep pres vs no vol op messrs
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_MAX_WORDS = 12  # a longer run of capitals is a heading; its parts between cuts may still be names

_SHORT_MONTHS = r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?"
_MONTH = rf"(?:(?:{_MONTHS})\b|{_SHORT_MONTHS})"
_OTHER_MONTHS = (
    "janvier|f\u00e9vrier|mars|avril|mai|juin|juillet|ao\u00fbt|septembre|octobre|novembre|d\u00e9cembre|"
    "Januar|J\u00e4nner|Februar|M\u00e4rz|Mai|Juni|Juli|Oktober|Dezember|"
    "enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|"
    "gennaio|febbraio|aprile|maggio|giugno|luglio|settembre|ottobre|dicembre|"
    "janeiro|fevereiro|mar\u00e7o|maio|junho|julho|setembro|outubro|dezembro|"
    "\u044f\u043d\u0432\u0430\u0440\u044f|\u0444\u0435\u0432\u0440\u0430\u043b\u044f|\u043c\u0430\u0440\u0442\u0430|"
    "\u0430\u043f\u0440\u0435\u043b\u044f|\u043c\u0430\u044f|\u0438\u044e\u043d\u044f|\u0438\u044e\u043b\u044f|"
    "\u0430\u0432\u0433\u0443\u0441\u0442\u0430|\u0441\u0435\u043d\u0442\u044f\u0431\u0440\u044f|"
    "\u043e\u043a\u0442\u044f\u0431\u0440\u044f|\u043d\u043e\u044f\u0431\u0440\u044f|\u0434\u0435\u043a\u0430\u0431\u0440\u044f"
)
_ERA = r"(?:BCE?|CE|AD|B\.C\.|A\.D\.)(?!\w)"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_NUMBER_OF_MONTH = r"(?:0?[1-9]|1[0-2])"
_DATE = re.compile(
    rf"(?<![\w.,/-])(?:(?:{_DAY}\s?[-\u2013]\s?)?{_DAY}(?:st|nd|rd|th)?(?:\s+of)?\s+{_MONTH},?\s+\d{{4}}\b"
    rf"|\d{{4}}-\d{{2}}-\d{{2}}\b"
    rf"|{_DAY}\.{_NUMBER_OF_MONTH}\.\d{{4}}\b(?!\.\d)|{_DAY}/{_NUMBER_OF_MONTH}/\d{{4}}\b|{_NUMBER_OF_MONTH}/{_DAY}/\d{{4}}\b"
    rf"|\d{{4}}/{_NUMBER_OF_MONTH}/{_DAY}\b"
    rf"|{_DAY}\.?\s+(?:de\s+)?(?:{_OTHER_MONTHS})\s+(?:de\s+)?\d{{4}}\b"
    rf"|\d{{4}},?\s+{_MONTH}\s+{_DAY}(?:st|nd|rd|th)?\b(?!,?\s*\d{{4}})"
    rf"|\d{{1,3}}(?:,?\d{{3}})?\s?{_ERA})"
    rf"|\b{_MONTH}\s+{_DAY}(?:\s?[-\u2013]\s?{_DAY})?(?:st|nd|rd|th)?(?:,\s*|\s+)\d{{4}}\b"
    rf"|\b{_MONTH},?\s+\d{{4}}\b"
    rf"|\b(?:AD|A\.D\.)\s?\d{{1,4}}\b"
    r"|(?<!\d)\d{4}\s?[\u5e74\ub144](?:\s?\d{1,2}\s?[\u6708\uc6d4](?:\s?\d{1,2}\s?[\u65e5\uc77c])?)?"
)
_YEAR = re.compile(r"(?<![\w.,$])(?:1\d{3}|20\d{2})s?(?![\w%]|[.,]\d|\s?B\.?C)")


_WORD = re.compile(rf"(?:[^\W\d_{UNSPACED}]\.){{2,}}|{PART}(?:(?:['\u2019\-\u2010\u2011\u2013&/]|\.(?=[a-z0-9])){PART})*")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)", re.IGNORECASE)
_POSSESSIVE = re.compile(r"['\u2019][sS]$")
_CASELESS_RUN = re.compile(
    rf"[{CASELESS}][{CASELESS}{MARKS}\u3005\u30fc\u200c\u200d]*"
    rf"(?:[ \u00b7\u30fb][{CASELESS}][{CASELESS}{MARKS}\u3005\u30fc\u200c\u200d]*)*"
)
_QUOTED = re.compile(
    "\u300c([^\u300c\u300d\n]{1,40})\u300d|\u300e([^\u300e\u300f\n]{1,40})\u300f|\u300a([^\u300a\u300b\n]{1,40})\u300b"
    "|\u3008([^\u3008\u3009\n]{1,40})\u3009|\u3010([^\u3010\u3011\n]{1,40})\u3011|\u201c([^\u201c\u201d\n]{1,40})\u201d"
    "|\u201e([^\u201e\u201c\u201d\n]{1,40})[\u201c\u201d]"
    '|\u00ab([^\u00ab\u00bb\n]{1,40})\u00bb|"([^"\n]{1,40})"'
)
_KATAKANA_NAME = re.compile("[\u30a1-\u30fa\u30fc]+(?:[\u30fb\uff1d=][\u30a1-\u30fa\u30fc]+)+")  # as only names from abroad are
_LONGEST_RUN = 40  # characters of a run without capitals that still may be one name


def spot_names(text: str) -> list[NameSpan]:
    """Return the names and dates in a text by (start, end), each span once; spans may contain one another.

    A capitalised span takes up to two lower-case connectors in a row (University of the Arts), loses function words at
    both ends and a final possessive, and is given whole and cut at `and`, `in`, `on`, `to`, `for` and at an inner
    possessive. Dates are given whole, and their years too. A month, a weekday, a function word or a single letter alone
    is no name.
    """
    found: dict[tuple[int, int], str] = {}
    dates = []
    for match in _DATE.finditer(text):
        found[match.span()] = "date"
        dates.append(match.span())
    for match in _YEAR.finditer(text):
        found.setdefault(match.span(), "date")
    for start, end in [*_capitalised(text, dates), *_without_case(text)]:
        found.setdefault((start, end), "name")
    return [NameSpan(start, end, text[start:end], kind) for (start, end), kind in sorted(found.items())]


class _Word(NamedTuple):
    start: int
    end: int
    folded: str
    capital: bool
    leads: bool


def _capitalised(text: str, dates: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of capitalised names that do not run into a date."""
    spans: list[tuple[int, int]] = []
    run: list[_Word] = []  # starts and ends with a name word once connectors at its end are dropped
    pending = 0  # connectors at the end of the run
    previous_end = 0
    next_date = 0
    for match in _WORD.finditer(text):
        start, end = match.span()
        while next_date < len(dates) and dates[next_date][1] <= start:
            next_date += 1
        in_date = next_date < len(dates) and dates[next_date][0] < end
        word = match.group()
        folded = word.casefold()
        first = word[0]
        capital = first.isupper() or first.istitle() or (len(word) > 2 and word[1].isupper() and first.islower())
        number = first.isdigit() and _YEAR.fullmatch(word) is None
        if run and (in_date or not _joins(text[previous_end:start], run[-1])):
            spans += _cut(text, run[: len(run) - pending])
            run, pending = [], 0
        if in_date:
            continue
        if capital or (number and (not run or pending == 0) and (run or _leads(word))):
            run.append(_Word(start, end, folded, capital, _leads(word)))
            pending = 0
        elif run and folded in _CONNECTORS and pending < 2:
            run.append(_Word(start, end, folded, False, False))
            pending += 1
        elif run:
            spans += _cut(text, run[: len(run) - pending])
            run, pending = [], 0
        previous_end = end
    if run:
        spans += _cut(text, run[: len(run) - pending])
    return spans


def _joins(gap: str, before: _Word) -> bool:
    """Return whether a name may go on over the gap: one space, or a full stop after an initial or abbreviation."""
    if gap in (" ", "\u00a0", " & "):
        return True
    return gap in (". ", ".\u00a0") and (before.end - before.start == 1 or before.folded in _ABBREVIATIONS)


def _leads(word: str) -> bool:
    """Return whether a word that starts with a digit may begin a name: 20th (Century Fox), 12Stone, no bare number."""
    return _ORDINAL.fullmatch(word) is not None or any(c.isupper() for c in word)


def _cut(text: str, run: Sequence[_Word]) -> list[tuple[int, int]]:
    """Return the spans of a run of words: the whole, and its parts between cuts."""
    parts: list[list[_Word]] = [[]]
    for word in run:
        if word.folded in CUTS:
            parts.append([])
            continue
        parts[-1].append(word)
        if _POSSESSIVE.search(word.folded):
            parts.append([])
    spans = [_strip(text, run)] if len(run) <= _MAX_WORDS else []
    if len(parts) > 1:
        spans += [_strip(text, part) for part in parts if len(part) <= _MAX_WORDS]
    return [span for span in spans if span]


def _strip(text: str, words: Sequence[_Word]) -> tuple[int, int] | None:
    """Return the span of the words less function words at its ends and a final possessive, None if that is no name."""
    first, last = 0, len(words)
    while first < last and (words[first].folded in FUNCTION_WORDS or not (words[first].capital or words[first].leads)):
        first += 1
    while last > first and words[last - 1].folded in FUNCTION_WORDS:
        last -= 1
    kept = words[first:last]
    if not any(word.capital and word.folded not in _CALENDAR for word in kept):
        return None
    start, end = kept[0].start, kept[-1].end
    possessive = _POSSESSIVE.search(text[start:end])
    if possessive:
        end = start + possessive.start()
    if sum(c.isalnum() for c in text[start:end]) < 2:
        return None
    return start, end


def _without_case(text: str) -> list[tuple[int, int]]:
    """Return the names in scripts without capitals: runs in a cased text, what is quoted or bracketed in a caseless."""
    runs = [match.span() for match in _CASELESS_RUN.finditer(text)]
    num_caseless = sum(end - start for start, end in runs)
    if not num_caseless:
        return []
    num_letters = sum(c.isalpha() for c in text)
    if 4 * num_caseless <= num_letters:
        return [(start, end) for start, end in runs if 2 <= end - start <= _LONGEST_RUN]
    spans = []
    for match in _QUOTED.finditer(text):
        start, end = match.span(match.lastindex or 0)
        if any(c.isalnum() for c in text[start:end]):
            spans.append((start, end))
    spans += [match.span() for match in _KATAKANA_NAME.finditer(text)]
    return spans


_TOKEN = re.compile(rf"[{UNSPACED}]|{PART}")
_CAMEL = re.compile(r"(?<=[a-z]{2})(?=[A-Z])")
_TRAILING_PARENTHESIS = re.compile(r"\s*\([^()]*\)\s*$")
_MAX_TOKENS = 32  # longer names are clauses, looked up by nobody; the bound keeps matching linear in the text


def without_parenthesis(name: str) -> str:
    """Return the name without a parenthesis at its end (Mercury (planet)), or the name if nothing else is left."""
    return _TRAILING_PARENTHESIS.sub("", name).strip() or name


class _Tokens(NamedTuple):
    """Tokens of a text, as columns; `within` and `unfinished` have those that do not start and do not end a word."""

    starts: list[int]
    ends: list[int]
    codes: list[int]
    within: set[int]
    unfinished: set[int]


_NO_NAMES: list[tuple[int, str, str]] = []
_Words = dict[str, "int | tuple[tuple[int, int, int], ...]"]  # code of a word, or start, end and code of its parts


class Gazetteer:
    """Longest-match lookup of many names in a text, by folded tokens: case, punctuation and white space do not count.

    A name that ends in a parenthesis is found without it too. CamelCase is found split and whole. Several names with
    equal tokens (St. Louis, St Louis) are all found. One word in lower case is no name, with an article or without
    (four, the doctor), unless the text has no capitals at all, as questions may; names of one function word are never
    found.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Build the lookup; the index of a name is its place in `names`."""
        self._codes: dict[str, int] = {}  # by folded token
        self._function_words: set[int] = set()  # their codes
        self._next: dict[int, int] = {}  # node << 32 | code of a token -> node; node 0 is where names begin
        self._names: dict[int, list[tuple[int, str, str]]] = {}  # node -> names that end there, and the punctuation around
        split: _Words = {}
        whole: _Words = {}
        for index, name in enumerate(names):
            for form in sorted({name, without_parenthesis(name)}):
                self._add(form, self._tokens(form, split, camel=True, learn=True), index)
                self._add(form, self._tokens(form, whole, camel=False, learn=True), index)
        self._words: _Words = {}

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """Return (start, end, name index) of the names in a text, in order, longest at each place, without overlap."""
        tokens = self._tokens(text, self._words, camel=True, learn=False)
        codes, num_tokens, step, named = tokens.codes, len(tokens.codes), self._next.get, self._names
        cased = text != text.lower()
        found: list[tuple[int, int, int]] = []
        at = 0
        while at < num_tokens:
            node = step(codes[at]) if codes[at] >= 0 and at not in tokens.within else None
            last, names = at, _NO_NAMES
            ahead = at
            while node is not None:
                if (
                    node in named
                    and ahead not in tokens.unfinished
                    and not (cased and self._is_common(text, tokens, at, ahead))
                ):
                    last, names = ahead, named[node]
                ahead += 1
                node = step(node << 32 | codes[ahead]) if ahead < num_tokens and codes[ahead] >= 0 else None
            start, end = tokens.starts[at], tokens.ends[last]
            for index, before, after in names:  # a name's own punctuation at its ends belongs to it
                first = start - len(before) if text.endswith(before, 0, start) else start
                found.append((first, end + len(after) if text.startswith(after, end) else end, index))
            at = last + 1
        return found

    def _add(self, form: str, tokens: _Tokens, index: int) -> None:
        codes = tokens.codes
        if not 0 < len(codes) <= _MAX_TOKENS or (len(codes) == 1 and codes[0] in self._function_words):
            return
        node = 0
        for code in codes:
            node = self._next.setdefault(node << 32 | code, len(self._next) + 1)
        names = self._names.setdefault(node, [])
        if not names or names[-1][0] != index:
            names.append((index, form[: tokens.starts[0]], form[tokens.ends[-1] :]))

    def _tokens(self, text: str, words: _Words, *, camel: bool, learn: bool) -> _Tokens:
        """Return the tokens of a text; where they are not learnt, a token of no name has code -1."""
        tokens = _Tokens([], [], [], set(), set())
        starts, ends, codes, within, unfinished = tokens
        for match in _TOKEN.finditer(text):
            word = match.group()
            pieces = words.get(word)
            if pieces is None:
                pieces = words[word] = self._pieces(word, camel, learn)
            if isinstance(pieces, int):
                starts.append(match.start())
                ends.append(match.end())
                codes.append(pieces)
                continue
            within.update(range(len(codes) + 1, len(codes) + len(pieces)))
            unfinished.update(range(len(codes), len(codes) + len(pieces) - 1))
            for left, right, code in pieces:
                starts.append(match.start() + left)
                ends.append(match.start() + right)
                codes.append(code)
        return tokens

    def _pieces(self, word: str, camel: bool, learn: bool) -> "int | tuple[tuple[int, int, int], ...]":
        """Return the code of a word, or (start, end, code) of its parts between capitals."""
        edges = [0, *(cut.start() for cut in _CAMEL.finditer(word)), len(word)] if camel else [0, len(word)]
        if len(edges) == 2:
            return self._code(word, learn)
        return tuple((left, right, self._code(word[left:right], learn)) for left, right in itertools.pairwise(edges))

    def _code(self, word: str, learn: bool) -> int:
        folded = normal_form(word)
        if not learn:
            return self._codes.get(folded, -1)
        code = self._codes.setdefault(folded, len(self._codes))
        if folded in FUNCTION_WORDS:
            self._function_words.add(code)
        return code

    def _is_common(self, text: str, tokens: _Tokens, first: int, last: int) -> bool:
        """Return whether the tokens have one word besides function words and it is written in lower case."""
        content = [at for at in range(first, last + 1) if tokens.codes[at] not in self._function_words] or [last]
        return len(content) == 1 and text[tokens.starts[content[0]]].islower()
