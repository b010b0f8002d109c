"""Languages: which of them a recognizer's characters can write.

The letters are the main exemplar characters of Unicode's CLDR 42 (https://cldr.unicode.org, Unicode licence), less
those that ordinary print does without: vowel signs of Arabic, letters of loanwords and of old spelling. Of Chinese,
Japanese and Korean, where CLDR lists thousands, there is a sample of what most pages have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LATIN: Final = "abcdefghijklmnopqrstuvwxyz"
_CYRILLIC: Final = "абвгдежзийклмнопрстуфхцчшъыьэюя"
_KANA: Final = (
    "あいうえおかがきぎくぐけげこごさざしじすずせぜそぞただちぢっつづてでとどなにぬねのはばぱひびぴふぶぷへべぺほぼぽ"
    "まみむめもやゃゆゅよょらりるれろわをん"
    "アイウェエオカガキギクグケゲコゴサザシジスズセゼソゾタダチヂッツヅテデトドナニヌネノハバパヒビピフブプヘベペホボポ"
    "マミムメモヤャユュヨョラリルレロワン"
)
_DEVANAGARI: Final = "ँंःअआइईउऊऋएऐओऔकखगघचछजझञटठडढणतथदधनपफबभमयरलवशषसहािीुूृेैोौ्"

LETTERS: Final[dict[str, str]] = {
    "zh": "的一是不了人我在有他这为大来个中上们到说国和时道出要于下得可你年会对开关发见长门问间东车马",
    "zh-hant": "的一是不了人我在有他這為大來個中上們到說國和時道出要於下得可你年會對開關發見長門問間東車馬",
    "ja": _KANA + "日本人年大出会社国時学生気円込働駅円県",
    "ko": "가고그기나는니다대도들라로를리마만면무사서세수스습시아었에어여요용원으은을의이인일있자정제조주지하한해",
    "ru": _CYRILLIC + "ёщ",
    "uk": "абвгдежзийклмнопрстуфхцчшщьюяєіїґ",
    "be": "абвгдежзйклмнопрстуфхцчшыьэюяёіў",
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "sr": "абвгдежзиклмнопрстуфхцчшђјљњћџ",
    "mk": "абвгдежзиклмнопрстуфхцчшѓѕјљњќџ",
    "kk": _CYRILLIC + "ёщіғқңүұһәө",
    "ky": _CYRILLIC + "ёщңүө",
    "mn": _CYRILLIC + "ёүө",
    "el": "αβγδεζηθικλμνξοπρςστυφχψωάέήίόύώϊϋΐΰ",
    "ar": "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
    "fa": "آابتثجحخدذرزسشصضطظعغفقلمنهوپچژکگی",
    "ur": "ءابتثجحخدذرزسشصضطظعغفقلمنوٹپچڈڑژکگھہیے",
    "he": "אבגדהוזחטיךכלםמןנסעףפץצקרשת",
    "hi": _DEVANAGARI,
    "mr": _DEVANAGARI + "ळ",
    "ne": _DEVANAGARI,
    "th": "กขคฆงจฉชซฌญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรฤลวศษสหฬอฮะัาำิีึืุูเแโใไๅๆ็่้๊๋์",
    "ta": "ஃஅஆஇஈஉஊஎஏஐஒஓகஙசஜஞடணதநனபமயரறலளழவஷஸஹாிீுூெேைொோௌ்",
    "te": "ంఃఅఆఇఈఉఊఋఎఏఐఒఓఔకఖగఘచఛజఝఞటఠడఢణతథదధనపఫబభమయరలళవశషసహాిీుూృెేైొోౌ్",
    "kn": "ಂಃಅಆಇಈಉಊಋಎಏಐಒಓಔಕಖಗಘಚಛಜಝಞಟಠಡಢಣತಥದಧನಪಫಬಭಮಯರಲಳವಶಷಸಹಾಿೀುೂೃೆೇೈೊೋೌ್",
    "ka": "აბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰ",
    "hy": "աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆ",
    "en": _LATIN,
    "de": _LATIN + "äöüß",
    "fr": _LATIN + "àâæçèéêëîïôùûüÿœ",
    "es": _LATIN + "áéíñóúü",
    "pt": _LATIN + "àáâãçéêíòóôõú",
    "it": _LATIN + "àèéìòóù",
    "nl": _LATIN + "áäéëíïóöúü",
    "sv": _LATIN + "äåéö",
    "da": _LATIN + "åæéø",
    "nb": _LATIN + "àåæéòóôø",
    "fi": _LATIN + "äåöšž",
    "is": _LATIN + "áæéíðóöúýþ",
    "et": _LATIN + "äõöüšž",
    "lv": _LATIN + "āčēģīķļņšūž",
    "lt": _LATIN + "ąčėęįšūųž",
    "pl": _LATIN + "óąćęłńśźż",
    "cs": _LATIN + "áéíóúýčďěňřšťůž",
    "sk": _LATIN + "áäéíóôúýčďĺľňŕšťž",
    "sl": _LATIN + "čšž",
    "hr": _LATIN + "ćčđšž",
    "sr-latn": _LATIN + "ćčđšž",
    "hu": _LATIN + "áéíóöúüőű",
    "ro": _LATIN + "âîășț",
    "tr": _LATIN + "çöüğİış",
    "az": _LATIN + "çöüğİışə",
    "vi": _LATIN + "àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ",
    "id": _LATIN,
    "ms": _LATIN,
    "tl": _LATIN + "ñ",
    "sw": _LATIN,
    "af": _LATIN + "áâèéêëîïôöû",
    "sq": _LATIN + "çë",
    "eu": _LATIN + "çñ",
    "ca": _LATIN + "àçèéíïòóúü",
    "gl": _LATIN + "áéíïñóúü",
    "cy": _LATIN + "àáâäèéêëìíîïòóôöùúûüýÿŵŷẁẃẅỳ",
    "ga": _LATIN + "áéíóú",
    "mt": _LATIN + "àèìòùċġħż",
    "eo": _LATIN + "ĉĝĥĵŝŭ",
}
"""By language: the small letters without which it cannot be written, Latin ones last."""


def languages_of(characters: Iterable[str]) -> tuple[str, ...]:
    """The languages all of whose letters, small and capital, are among a recognizer's characters.

    That a letter can be read does not say how well: only a measurement does.

    Args:
        characters: The texts of its classes; one may be longer than a letter.

    Returns:
        Tags in small letters: first those of scripts that few recognizers have, so English comes after Russian.
    """
    known = {letter for text in characters for letter in text}
    return tuple(tag for tag, letters in LETTERS.items() if all(_can_write(letter, known) for letter in letters))


def _can_write(letter: str, known: set[str]) -> bool:
    """Whether a letter and, where that is one letter too, its capital are known."""
    capital = letter.upper()
    return letter in known and (len(capital) > 1 or capital in known)
