"""Splits a line's text into words, by script.

A word stands between spaces and includes the punctuation that touches it, such as `harbour,` or `$14.50`. In Chinese
and kana each character and full-width mark is a word: `共480页，` has the words `共`, `480`, `页` and `，`. A segmenter
joins neighbouring Chinese characters to words.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import Final, cast

Segmenter = Callable[[str], Iterator[str]]  # cuts a text of Chinese characters into words, one after the other

_CHINESE: Final = "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_ALONE: Final = (
    "\u3001-\u3004\u3008-\u3020\u302a-\u312f\u31f0-\u31ff！（），：；？"  # kana, and marks as wide as characters
)

_WORD: Final = re.compile(f"[{_ALONE}]|(?P<chinese>[{_CHINESE}]+)|[^\\s{_ALONE}{_CHINESE}]+")


def by_character(text: str) -> Iterator[str]:
    """The default segmenter: each Chinese character is a word."""
    return iter(text)


def word_begins(text: str, segment: Segmenter = by_character) -> list[int]:
    """Where each word of a line begins, in code points; it ends at the next word or at a space."""
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
    # jieba's `initialize` does the same, but trusts a cache file in the shared temporary folder that anybody may write.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return cast("Segmenter", tokenizer.cut)
