"""The page in a real browser: it draws itself, fits a phone, can be read in the dark, and follows a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps.report.data import read_run
from heterps.report.page import render_page
from heterps.report.serve import Follower, ReportServer
from tests.report.chromium import Chromium, needs_chromium
from tests.report.runs import EVIL, make_run, records, write_telemetry
from tests.report.test_plots import png_size

pytestmark = needs_chromium

SECTIONS = ["plan", "chain", "frontier", "comparison", "stages", "timeline", "curves", "store", "environment"]
CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (colour.startsWith("rgb") && (parts(colour)[3] ?? 1) === 1) return parts(colour);
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("#page *")) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || element.tagName === "title" || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), paper = light(ground(element));
    const ink = light(parts(element.tagName === "text" ? style.fill : style.color));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
})()"""
"""Texts whose contrast with what is behind them is below WCAG's 4.5 to 1."""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of reports: of a complete run, of one without a plan, of one with names that are attacks."""
    folder = tmp_path_factory.mktemp("pages")
    options: dict[str, dict[str, Any]] = {
        "full": {}, "local": {"rent": False}, "bare": {"planned": False}, "evil": {"evil": True}
    }  # fmt: skip
    for name, given in options.items():
        (folder / f"{name}.html").write_text(render_page(read_run(make_run(folder / name, steps=120, **given))))
    return {name: (folder / f"{name}.html").as_uri() for name in options}


def text_of(browser: Chromium, selector: str) -> str:
    return str(browser.run(f"document.querySelector({selector!r}).innerText"))


def test_every_section_is_drawn(browser: Chromium, pages: dict[str, str]) -> None:
    browser.view(1280)
    browser.open(pages["full"])
    assert browser.errors == []
    assert browser.asked == [pages["full"]]
    assert browser.run("[...document.querySelectorAll('main > section')].map((each) => each.id)") == SECTIONS
    assert browser.run("document.querySelectorAll('section.absent').length") == 0
    assert "7.00% below the 349,032/s predicted" in text_of(browser, ".verdict")
    assert text_of(browser, "#state") == "run is over"
    drawn = {name: browser.run(f"document.querySelectorAll('#{name} svg.chart').length") for name in SECTIONS}
    assert drawn == {**dict.fromkeys(SECTIONS, 0), "frontier": 1, "timeline": 1, "curves": 3, "store": 1}
    assert browser.run("document.querySelectorAll('#plan .stage').length") == 5
    assert browser.run("document.querySelectorAll('#timeline rect.span title').length") >= 100
    assert browser.run("document.querySelector('#frontier .band title').textContent").startswith("samples a second")
    assert "NaN" not in browser.run("document.body.innerHTML.replace(/<script[^]*?<[/]script>/g, '')")
    assert "undefined" not in text_of(browser, "#page")


def test_a_type_has_one_colour(browser: Chromium, pages: dict[str, str]) -> None:
    browser.open(pages["full"])
    colours = browser.run(
        """(() => { const found = {};
        for (const label of document.querySelectorAll('.type')) {
          const name = label.textContent.split(' ').pop();
          if (['cpu', 'v100'].includes(name)) (found[name] ??= new Set()).add(getComputedStyle(label.firstChild).backgroundColor);
        }
        for (const card of document.querySelectorAll('.stage header'))
          found[card.textContent.match(/cpu|v100/)[0]].add(getComputedStyle(card).backgroundColor);
        return Object.entries(found).map(([name, all]) => [name, [...all]]); })()"""  # noqa: E501
    )
    assert dict(colours) == {"cpu": ["rgb(37, 99, 235)"], "v100": ["rgb(180, 83, 9)"]}


@pytest.mark.parametrize("name", ["full", "local", "bare", "evil"])
@pytest.mark.parametrize("width", [320, 390, 820, 1280])
def test_it_fits_the_screen(browser: Chromium, pages: dict[str, str], name: str, width: int) -> None:
    browser.view(width, phone=width < 500)
    browser.open(pages[name])
    assert browser.errors == []
    assert browser.run(OVERFLOW) == 0
    if width <= 390:
        boxes = "[...document.querySelectorAll('.tile, .stage, section')].map((e) => e.getBoundingClientRect().right)"
        assert max(browser.run(boxes)) <= width
        lefts = (
            "new Set([...document.querySelectorAll('main > section')].map((e) => e.getBoundingClientRect().left)).size"
        )
        assert browser.run(lefts) == 1, "one column"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["full", "bare"])
def test_all_text_can_be_read(browser: Chromium, pages: dict[str, str], name: str, dark: bool) -> None:
    browser.view(1280, dark=dark)
    browser.open(pages[name])
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(14, 19, 27)" if dark else "rgb(243, 245, 248)")
    assert browser.run(CONTRAST) == []


def test_names_are_text_and_nothing_else(browser: Chromium, pages: dict[str, str]) -> None:
    browser.view(1280)
    browser.open(pages["evil"])
    assert browser.errors == []
    assert browser.run("window.broken") is None
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert EVIL.split("\u2028")[0] in browser.run("document.getElementById('page').textContent")


def test_the_policy_stops_what_the_page_does_not_bring(browser: Chromium, pages: dict[str, str]) -> None:
    browser.view(1280)
    browser.open(pages["full"])
    browser.run("globalThis.added = document.body.appendChild(document.createElement('script')), null")
    browser.run("added.append('window.broken = 3'), null")
    assert browser.run("window.broken") is None
    assert browser.run("fetch('http://127.0.0.1:9/').then(() => 'loaded', () => 'refused')") == "refused"
    browser.wait_for_error("Content Security Policy")


def test_screenshots_and_print(browser: Chromium, pages: dict[str, str], tmp_path: Path) -> None:
    browser.view(390, dark=True, phone=True)
    browser.open(pages["full"])
    browser.screenshot(tmp_path / "phone.png")
    width, height = png_size(tmp_path / "phone.png")
    assert width == 390
    assert height > 2000
    browser.view(1280, dark=True)
    browser.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run(CONTRAST) == []
    browser.call("Emulation.setEmulatedMedia", media="")


def test_charts_follow_the_width(browser: Chromium, pages: dict[str, str]) -> None:
    browser.view(1280)
    browser.open(pages["full"])
    before = browser.run("document.querySelector('#frontier svg').viewBox.baseVal.width")
    browser.view(700)
    browser.wait(f"document.querySelector('#frontier svg').viewBox.baseVal.width < {before} - 300")


def test_a_live_page_follows_the_run(browser: Chromium, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ReportServer(Follower(lambda: run), host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            browser.view(1280)
            browser.open(server.address)
            assert text_of(browser, "#state") == "waiting for the run"
            assert browser.run("document.querySelectorAll('section.absent').length") == len(SECTIONS)
            make_run(tmp_path / "made", steps=60, ended=False).rename(run)  # all its files at once
            browser.wait("document.getElementById('state').innerText === 'training'")
            assert browser.run("document.querySelectorAll('section.absent').length") == 0
            browser.run("window.kept = document.querySelector('#chain .chain')")
            write_telemetry(run / "telemetry.jsonl", records(steps=60, first=60), append=True)
            browser.wait("document.getElementById('state').innerText === 'run is over'")
            assert browser.run("window.kept === document.querySelector('#chain .chain')"), "what did not change stays"
            assert browser.errors == []
            assert all(address.startswith((server.address, "data:,")) for address in browser.asked)
        finally:
            server.shutdown()
            thread.join()
    browser.wait("document.getElementById('state').innerText === 'heterps watch has ended'")
