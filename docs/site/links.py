"""Checks a built site: every link leads somewhere, and no page loads anything from another host.

Sphinx knows the links that it made; this reads what a browser would read, so that templates, docstrings and raw HTML
are checked too. Must never use the network: addresses of other hosts are not visited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
LOADING_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch"}
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """What a page offers, links to and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = IN_STYLES.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and LOADING_RELATIONS & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        if tag in LOADS and LOADS[tag] in values:
            self.loads.append(values[LOADS[tag]])


def problems(site: Path) -> list[str]:
    """A sentence for each dead link and each thing that would be loaded from another host."""
    site = site.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [problem for path, page in pages.items() for problem in _of_page(site, path, page, pages)]
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.svg")]):
        name = path.relative_to(site)
        found += [f"{name} loads {url}" for url in IN_STYLES.findall(path.read_text(encoding="utf-8"))]
    return found


def _of_page(site: Path, path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    name = path.relative_to(site)
    for url in page.loads:
        parts = urlsplit(url)
        if parts.netloc or parts.scheme not in ("", "data"):
            yield f"{name} loads {url} from another host"
        elif not parts.scheme and not _target(path, parts.path).is_file():
            yield f"{name} loads {url}, which does not exist"
    for url in page.links:
        parts = urlsplit(url)
        if parts.netloc or parts.scheme:
            continue
        target = _target(path, parts.path)
        if not target.is_file():
            yield f"{name} links to {url}, which does not exist"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{name} links to {url}, and there is no such anchor in that page"


def _target(path: Path, link: str) -> Path:
    return (path.parent / unquote(link)).resolve() if link else path
