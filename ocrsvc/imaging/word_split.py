"""Splits a line's text into words, by script.

Words are separated by spaces and include adjacent punctuation, such as `harbour,` or `$14.50`. Each Chinese or kana
character and full-width mark is a word (`共`, `480`, `页`, `，` in `共480页，`), unless a segmenter joins Chinese ones.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import Final, cast

Segmenter = Callable[[str], Iterator[str]]  # splits a text of Chinese characters into consecutive words

_CHINESE: Final = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_ALONE: Final = "\u3001-\u3004\u3008-\u3020\u302a-\u312f\u31f0-\u31ff！（），：；？"  # kana, wide marks: each a word

_WORD: Final = re.compile(f"[{_ALONE}]|(?P<chinese>[{_CHINESE}]+)|[^\\s{_ALONE}{_CHINESE}]+")


def by_character(text: str) -> Iterator[str]:
    """The default segmenter: each Chinese character is a word."""
    return iter(text)


def word_begins(text: str, segment: Segmenter = by_character) -> list[int]:
    """Indices of the first code points of a line's words; a word ends at the next word or at a space."""
    begins: list[int] = []
    for match in _WORD.finditer(text):
        lengths = list(map(len, segment(match[0]))) if match["chinese"] else [0]
        begins += accumulate(lengths[:-1], initial=match.start())
    return begins


@cache
def open_jieba() -> Segmenter:
    """Open jieba (https://github.com/fxsjy/jieba, MIT) with its own dictionary. Raises ModuleNotFoundError."""
    import jieba

    tokenizer = jieba.Tokenizer()
    # Replaces jieba's `initialize`, which trusts a cache file in the temporary folder that any user may write.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return cast("Segmenter", tokenizer.cut)
