"""The page: one file of HTML with its styles, its script and its data, that loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from typing import Any

from heterps.report import colours

STYLES = ("base.css", "parts.css")
SCRIPTS = ("base.js", "chart.js", "plan.js", "run.js", "app.js")


def render_page(data: dict[str, Any], *, live: bool = False) -> str:
    """A report's data as a page. A live one asks for `data.json` beside it again and again; any other asks for nothing.

    Only this script and this style may run, which the policy names by their hashes. Names from the run's files enter
    as JSON that cannot end its element, and from there the page only as text.
    """
    style = "\n" + colours.css() + "\n".join(map(_read, STYLES))
    script = '\n"use strict";\n' + "\n".join(map(_read, SCRIPTS))
    parts = {
        "policy": policy(style, script, live=live),
        "title": escape(f"{data['run']['name']} · heterps"),
        "style": style,
        "data": embed({"live": live, "report": data}),
        "script": script,
    }
    page = _read("template.html")
    pieces = page.split("{{")
    return pieces[0] + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def policy(style: str, script: str, *, live: bool) -> str:
    """The content security policy: nothing from elsewhere, no other script, no other style."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def embed(value: Any) -> str:
    """JSON that can stand in a script element: plain ASCII without any `<`, `>` or `&`."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _read(name: str) -> str:
    return (files("heterps.report") / "html" / name).read_text(encoding="utf-8")
