"""Texts that were read, kept in a file of JSON lines, and what differs between two readings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.corpus import ALL, Corpus

Texts = Sequence[str | None]


def write_texts(file: Path, corpus: Corpus, texts: Texts) -> None:
    """One line a page: {"file", "text"}, the text null where reading failed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for page, text in zip(corpus.pages, texts, strict=True):
            lines.write(json.dumps({"file": page.row["file"], "text": text}, ensure_ascii=False) + "\n")
    print(f"texts written to {file}")


def read_texts(file: Path, corpus: Corpus) -> list[str | None]:
    """The texts of the corpus's pages; exits when one of them is not in the file."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    found = {row["file"]: row["text"] for row in rows}
    lacking = [page.row["file"] for page in corpus.pages if page.row["file"] not in found]
    if lacking:
        sys.exit(f"{file} has no text of {len(lacking)} pages, such as {lacking[0]}.")
    return [found[page.row["file"]] for page in corpus.pages]


def differences(corpus: Corpus, before: Texts, after: Texts) -> Iterator[str]:
    """A line for each page that reads differently, then one with the F1 and CER of both readings."""
    different = 0
    for page, old, new in zip(corpus.pages, before, after, strict=True):
        if old != new:
            different += 1
            gained = corpus.hits(page, new or "") - corpus.hits(page, old or "")
            yield f"{page.row['file']} ({page.kind}): {gained:+} tokens right, {_changed_lines(old, new)}"
    old_tally, new_tally = (corpus.tally(texts)[ALL] for texts in (before, after))
    yield (
        f"{different} of {len(corpus.pages)} pages read differently; F1 {old_tally.f1:.4f} before, "
        f"{new_tally.f1:.4f} now ({new_tally.f1 - old_tally.f1:+.4f}); CER {old_tally.cer:.4f}, {new_tally.cer:.4f}"
    )


def _changed_lines(old: str | None, new: str | None) -> str:
    """How many lines of each reading the other lacks."""
    before, after = (set((text or "").splitlines()) for text in (old, new))
    if before == after:
        return "the same lines in another order"
    return f"{len(before - after)} lines gone, {len(after - before)} new"
