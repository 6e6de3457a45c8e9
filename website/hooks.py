"""What MkDocs calls while it builds the site (`hooks` in `mkdocs.yml`)."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import commands, configuration, links


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs`, and the files that pages link to."""
    pages = [links.ROOT / path for path in links.PAGES]
    docs = [Path(path) for file in files.documentation_pages() if (path := file.abs_src_path)]
    style = links.ROOT / "website" / "site.css"
    for file in (*pages, style, *sorted(links.linked_files([*docs, *pages]))):
        files.append(File.generated(config, links.place_of(file), abs_src_path=str(file)))
    for module in (configuration, commands):
        files.append(File.generated(config, module.PLACE, content=module.page()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page with its links as they are in the site."""
    del config, files
    source = page.file.abs_src_path
    return links.for_site(markdown, Path(source)) if source else markdown
