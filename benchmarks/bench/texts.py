"""Saves the texts of a run as JSON lines, and compares the texts of two runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.corpus import ALL, Corpus

Texts = Sequence[str | None]


def write_texts(file: Path, corpus: Corpus, texts: Texts) -> None:
    """Write a JSON line per page: {"file", "text"}, with a null text where reading failed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as lines:
        for page, text in zip(corpus.pages, texts, strict=True):
            lines.write(json.dumps({"file": page.row["file"], "text": text}, ensure_ascii=False) + "\n")
    print(f"texts written to {file}")


def read_texts(file: Path, corpus: Corpus) -> list[str | None]:
    """The texts of the corpus's pages; exits if one is missing from the file."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    found = {row["file"]: row["text"] for row in rows}
    missing = [page.row["file"] for page in corpus.pages if page.row["file"] not in found]
    if missing:
        sys.exit(f"{file} has no text for {len(missing)} pages, such as {missing[0]}.")
    return [found[page.row["file"]] for page in corpus.pages]


def differences(corpus: Corpus, before: Texts, after: Texts) -> Iterator[str]:
    """Yields a line for each page with a changed text, then one with F1 and CER of both runs."""
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
    """Describes how many lines the two texts do not share."""
    before, after = (set((text or "").splitlines()) for text in (old, new))
    if before == after:
        return "the same lines in another order"
    return f"{len(before - after)} lines gone, {len(after - before)} new"
