"""Links between files of the repository, as links between pages of the site.

In the repository a page may link to any file, e.g. to a preset. In the site the folder `docs` is
the top, a few files outside of it are pages, and every other linked file keeps its path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files outside of `docs` that are pages -> their place in the site."""

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#:]+)(#[^)\s]*)?\)")


def place_of(file: Path) -> str:
    """Return the place of a file of the repository in the site."""
    path = file.relative_to(ROOT).as_posix()
    return PAGES.get(path) or path.removeprefix("docs/")


def for_site(text: str, page: Path) -> str:
    """Return the text of a page with its links to files as they are in the site.

    Args:
        text: Markdown.
        page: file of the page in the repository.
    """

    def changed(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if not target.is_file():  # e.g. code that looks like a link
            return link[0]
        path = os.path.relpath(place_of(target), Path(place_of(page)).parent)
        return f"{link[1]}{path}{link[3] or ''})"

    return LINK.sub(changed, text)


def linked_files(pages: Iterable[Path]) -> set[Path]:
    """Return the files outside of `docs` that these pages link to and that are no pages."""
    targets = {
        (page.parent / path).resolve()
        for page in pages
        for _, path, _ in LINK.findall(page.read_text())
    }
    docs = ROOT / "docs"
    return {
        target
        for target in targets
        if target.is_file()
        and not target.is_relative_to(docs)
        and target.relative_to(ROOT).as_posix() not in PAGES
    }
