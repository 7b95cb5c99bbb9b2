"""English words that tell discourse modes apart, and words too common to be a topic."""

_PAST_WORDS = """
was were had did said went came saw took got made told knew thought found gave left felt kept stood ran began brought met
heard sat spoke wrote fell held led rose drove broke sent lost paid laid slept sank swam threw woke won wore shut cut read
drew flew grew hid lay rode sang shook struck taught understood became sold bought fought caught built born
"""
_NOT_PAST_WORDS = """
need indeed speed seed feed weed breed hundred red bed shed wed sacred naked wicked kindred
"""
_PRESENT_WORDS = """
is are has have does can means includes include contains contain consists refers uses use shows show lies stands runs makes
gives takes becomes occurs provides allows requires causes produces belongs depends
"""
_THIRD_PERSON_WORDS = """
he she him her his hers himself herself they them their
"""
_FIRST_OR_SECOND_PERSON_WORDS = """
i me my mine we us our ours you your yours
"""
_TIME_WORDS = """
then suddenly when after before later soon afterwards yesterday next until meanwhile presently night morning evening
"""
_ARGUE_WORDS = """
therefore thus hence because should ought must however although unless argue argues argued claim claims evidence conclude
conclusion reason reasons believe opinion objection surely perhaps wrong prove proves proof suppose question
cannot merely nevertheless nonetheless moreover admit deny
"""
_COMMON_WORDS = """
day days year years time times man men way thing things little great good old long part new made like come went say says said
may ask give used known called found need many such see well know look looked back put let set seem seemed shall will people
work illustration chapter page mr mrs miss sir don't didn't couldn't it's i'm that's hundred thousand two three four five six
seven eight nine ten half
"""

PAST = frozenset(_PAST_WORDS.split())  # of verbs that do not end in -ed
NOT_PAST = frozenset(_NOT_PAST_WORDS.split())  # end in -ed all the same
PRESENT = frozenset(_PRESENT_WORDS.split())
THIRD_PERSON = frozenset(_THIRD_PERSON_WORDS.split())
FIRST_OR_SECOND_PERSON = frozenset(_FIRST_OR_SECOND_PERSON_WORDS.split())
TIME = frozenset(_TIME_WORDS.split())
ARGUE = frozenset(_ARGUE_WORDS.split())
COMMON = frozenset(_COMMON_WORDS.split())

__all__ = ["ARGUE", "COMMON", "FIRST_OR_SECOND_PERSON", "NOT_PAST", "PAST", "PRESENT", "THIRD_PERSON", "TIME"]
