"""The page as text: whole, alone, and safe whatever the run's names are."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from heterps.report.colours import PALETTE
from heterps.report.data import read_run
from heterps.report.page import SCRIPTS, STYLES, embed, render_page
from tests.report.runs import EVIL, make_run


class Elements(HTMLParser):
    """Elements with their attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("script", "style") and data.strip():
            self.texts.append((self.lasttag, data))


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return read_run(make_run(tmp_path_factory.mktemp("runs") / "<b>evil & co", steps=30, evil=True))


def test_names_cannot_leave_the_data(evil: dict[str, Any]) -> None:
    page = render_page(evil)
    assert EVIL in json.dumps(evil, ensure_ascii=False)
    tags = [tag for tag, _ in Elements(page).found]
    assert tags.count("script") == 2
    assert not {"img", "b", "iframe", "object"} & {*tags}
    assert "onerror=" not in page.replace(r"onerror=window.broken", "")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert json.loads(data) == {"live": False, "report": evil}


def test_nothing_is_loaded_from_anywhere(evil: dict[str, Any]) -> None:
    for live in (False, True):
        elements = Elements(render_page(evil, live=live)).found
        assert [value for _, attrs in elements for key, value in attrs.items() if key in ("src", "href")] == ["data:,"]
    sources = [(files("heterps.report") / "html" / name).read_text() for name in (*STYLES, *SCRIPTS, "template.html")]
    addresses = {found for source in sources for found in re.findall(r"(?:https?:)?//[\w.]+\.\w+[^\s\"']*", source)}
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name of SVG's, which nobody fetches"
    assert not any(re.search(r"@import|url\(", source) for source in sources)


def test_markup_is_never_made_of_text() -> None:
    for name in SCRIPTS:
        source = (files("heterps.report") / "html" / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", source), name


def test_the_policy_names_what_may_run(evil: dict[str, Any]) -> None:
    parsed = Elements(render_page(evil))
    (policy,) = (attrs["content"] for tag, attrs in parsed.found if tag == "meta" and "http-equiv" in attrs)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    script = max((text for tag, text in parsed.texts if tag == "script"), key=lambda text: "use strict" in text)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_embedding_keeps_the_value() -> None:
    value = {"a": "</script>&<!--\u2028\ud800", "b": [1.5, None, True]}
    text = embed(value)
    assert not {"<", ">", "&", "\u2028"} & {*text}
    assert text.isascii()
    assert json.loads(text) == value


def test_the_page_is_a_file_that_can_be_written(evil: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(render_page(evil), encoding="utf-8")
    assert (tmp_path / "report.html").stat().st_size < 400_000


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("pair", PALETTE)
def test_text_can_be_read_on_every_type(pair: tuple[str, str]) -> None:
    """WCAG's contrast, from its definition: 4.5 and more is readable."""
    assert 1.05 / (_luminance(pair[0]) + 0.05) >= 4.5
    assert (_luminance(pair[1]) + 0.05) / (_luminance("#0b1018") + 0.05) >= 4.5
