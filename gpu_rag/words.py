"""Function words, and the shapes of letters and words that regular expressions over any script need."""

import unicodedata
from collections.abc import Sequence

_ENGLISH = """
a about above after again against ago all almost along already also although always am among an and another
any anyone anything are around as at away be became because become been before began being below beneath
beside besides between beyond both but by can could despite did do does doing done down due during each either
else ever every everyone everything except few finally first following for former from further had has have
having he hence her here hers herself him himself his how however i if in including indeed initially inside
instead into is it its itself just last later latter less like likewise located many me meanwhile might more
moreover most mostly much must my near nearly neither never nevertheless next no nobody none nor not nothing
notwithstanding now of off often on once one only onto or originally other others otherwise our ours out
outside over own per perhaps please rather same several shall she should similarly since so some someone
something sometimes soon still such than that the their theirs them themselves then there thereafter therefore
these they this those though three through throughout thus to today together too toward towards two under
unlike until unless up upon us usually very via was we well were what whatever when whenever where whereas
wherever whether which while who whoever whom whose why with within without would yes yet you your yours
"""
_OTHER_LANGUAGES = """
aber als auch auf aus bei dem den des ein eine einer eines es im ist mit nach nicht sind und wie wir zu zum
zur au aux avec ce ces cette dans elle et ils leur ne nous ou par pas pour que qui une como cuando ella era
esta este fue pero por sus y che gli nel nella sono
\u0432 \u0432\u043e \u043d\u0430 \u043d\u043e \u043d\u0435 \u043e\u043d \u043e\u043d\u0430 \u043e\u043d\u0438
\u043e\u043d\u043e \u044d\u0442\u043e \u043a\u0430\u043a \u043f\u043e \u043f\u0440\u0438 \u0447\u0442\u043e
\u0434\u043b\u044f \u0438\u0437 \u043e\u0442 \u0437\u0430 \u0438 \u0438\u043b\u0438 \u0430 \u043a \u0441
\u0443 \u043e \u0435\u0433\u043e \u0435\u0451 \u0438\u0445 \u0431\u044b\u043b \u0431\u044b\u043b\u0430
\u0431\u044b\u043b\u043e \u0431\u044b\u043b\u0438
"""
# Left out are the ones that as often begin or end a name: Will Smith, Brian May, Los Angeles, Die Hard.
FUNCTION_WORDS = frozenset(_ENGLISH.split()) | frozenset(_OTHER_LANGUAGES.split())


def _character_classes() -> tuple[str, str]:
    """Return regex classes (without brackets) of the letters without case and of the combining marks."""
    letters, marks = [], []
    for code in range(0x80, 0x10000):
        category = unicodedata.category(chr(code))
        if category == "Lo":
            letters.append(code)
        elif category in ("Mn", "Mc"):
            marks.append(code)
    return _ranges(letters) + "\U00020000-\U0003ffff", _ranges(marks)


def _ranges(codes: Sequence[int]) -> str:
    """Return sorted code points as the ranges of a regex class."""
    parts: list[str] = []
    first = previous = codes[0]
    for code in [*codes[1:], -1]:
        if code != previous + 1:
            parts.append(f"{chr(first)}-{chr(previous)}")
            first = code
        previous = code
    return "".join(parts)


CASELESS, MARKS = _character_classes()  # inside a regex class
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d"
    "\U00020000-\U0003ffff"
)  # inside a regex class: scripts without spaces between words, or (Hangul) with particles glued to them
_INSIDE = f"\\w{MARKS}\u00ad\u200b-\u200d\u2060"
# A word: letters and digits with their combining and invisible characters; ends where an unspaced script begins.
PART = rf"[^\W_{UNSPACED}](?:(?![{UNSPACED}])[{_INSIDE}])*"
