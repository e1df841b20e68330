"""What the pages take from the code when they are built: tables of options, and the results of benchmarks.

`<!-- command: NAME -->` becomes the usage, the arguments and the options of a command, as the command line knows them.
`<!-- results -->` becomes a list of the files in benchmarks/results, which are pages of their own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COMMAND = re.compile(r"^<!-- command: (.+?) -->$", re.MULTILINE)
RESULT_LIST = re.compile(r"^<!-- results -->$", re.MULTILINE)


def commands() -> dict[str, Any]:
    """Every command by its words: `run`, …, `ps serve`."""
    import typer

    from heterps.cli.main import app

    def inside(group: Any, before: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, command in group.commands.items():
            words = f"{before} {name}".strip()
            found |= inside(command, words) if hasattr(command, "commands") else {words: command}
        return found

    return inside(typer.main.get_command(app), "")


def describe(words: str, command: Any) -> str:
    """A command as Markdown: what it does, how it is called, and its options."""
    context = command.context_class(command)
    shown = [each for each in command.params if not each.hidden and each.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    needed = [each.get_help_record(context)[0] for each in options if each.required]
    usage = ["heterps", words, *(_argument(each) for each in arguments), *needed]
    if len(needed) < len(options):
        usage.append("[OPTIONS]")
    table = ["| argument or option | |", "| --- | --- |"]
    for each in [*arguments, *options]:
        left, about = each.get_help_record(context)
        name = _argument(each) if each in arguments else left
        table.append(f"| `{name}` | {_about(about)}{' May be repeated.' if each.multiple else ''} |")
    return "\n".join([_plain(command.help or ""), "", "```text", " ".join(usage), "```", "", *table])


def on_files(files: Any, config: Any) -> Any:
    """Adds a page for each file of results, newest first."""
    from mkdocs.structure.files import File

    pages = []
    for path in sorted(RESULTS.glob("*.md")):
        page = f"results/{path.name}"
        files.append(File.generated(config, page, content=path.read_text()))
        pages.append({_title(path): page})
    numbers = next(item["Numbers"] for item in config.nav if "Numbers" in item)
    numbers[1:] = pages
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts what the markers stand for in their place."""
    known = commands() if COMMAND.search(markdown) else {}
    markdown = COMMAND.sub(lambda found: describe(found[1], known[found[1]]), markdown)
    listed = "\n".join(f"- [{_title(path)}](results/{path.name})" for path in sorted(RESULTS.glob("*.md")))
    return RESULT_LIST.sub(lambda _: listed, markdown)


def _title(path: Path) -> str:
    return path.read_text().splitlines()[0].removeprefix("# ")


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _about(text: str) -> str:
    """The help of an option, with what the command line notes in brackets behind it as a sentence."""
    about, _, notes = _plain(text).rpartition(" [") if text.endswith("]") else (_plain(text), "", "")
    given = re.match(r"default: ([^;\]]*)", notes)
    return about + (f" Default: `{given[1]}`." if given else "") + (" Needed." if "required" in notes else "")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
