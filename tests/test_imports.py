"""Imports flow one way: see "The shape of the code" in the design. Walks the syntax trees, so nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import heterps.errors

PACKAGE = Path(heterps.errors.__file__).parent

ORDER = (
    "errors", "units", "_callable", "_native", "documents", "storage", "plan", "catalog", "schedule", "telemetry",
    "models", "data", "store", "ps", "runtime", "profile", "report", "job", "loop", "api", "__init__", "cli",
    "__main__",
)  # fmt: skip
"""Parts of the package, lowest first. A part imports itself and what stands before it."""

FORBIDDEN = {("runtime", "schedule"): "the runtime knows plans only through plan.py"}


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    line: int
    lazy: bool
    """True inside a function: it runs late, so it makes no cycle, but the direction holds for it too."""

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def read_sources(root: Path) -> dict[str, str]:
    """Sources by dotted path, `heterps.schedule.__init__` for a package."""
    paths = sorted(root.rglob("*.py"))
    return {".".join(path.relative_to(root.parent).with_suffix("").parts): path.read_text() for path in paths}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def find_imports(sources: Mapping[str, str]) -> list[Import]:
    """Every import of heterps by heterps. `from a import b` names the module a.b where there is one, else a."""
    modules = {path.removesuffix(".__init__") for path in sources} | {f"heterps.{part}" for part in ORDER}
    found = []
    for path, source in sources.items():
        package, importer = path.rpartition(".")[0], path.removesuffix(".__init__")
        for node, lazy in walk(ast.parse(source), lazy=False):
            for name in imported_names(node, package, modules):
                if name.split(".")[0] == "heterps":
                    found.append(Import(importer, name, node.lineno, lazy))  # type: ignore[attr-defined]
    return found


def walk(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, lazy
        yield from walk(child, lazy=lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def imported_names(node: ast.AST, package: str, modules: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        return [name if (name := f"{base}.{alias.name}") in modules else base for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(name := node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return [name.value] if called in ("import_module", "__import__") and isinstance(name.value, str) else []
    return []


def wrong_directions(imports: list[Import]) -> list[str]:
    wrong = []
    for found in imports:
        here, there = part_of(found.importer), part_of(found.imported)
        if unknown := {here, there} - set(ORDER):
            wrong.append(f"{found}: {', '.join(unknown)} has no place in ORDER yet")
        elif ORDER.index(there) > ORDER.index(here):
            wrong.append(f"{found}: {there} stands above {here}")
        elif (here, there) in FORBIDDEN:
            wrong.append(f"{found}: {FORBIDDEN[here, there]}")
    return wrong


def find_cycle(imports: list[Import]) -> list[str]:
    """The modules of one cycle of module-level imports, first and last the same; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for found in imports:
        if not found.lazy:
            graph.setdefault(found.importer, set()).add(found.imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_point_one_way():
    imports = find_imports(read_sources(PACKAGE))
    assert len(imports) > 20, "the checker sees too little"
    assert not wrong_directions(imports), "\n".join(wrong_directions(imports))


def test_no_cycles():
    assert find_cycle(find_imports(read_sources(PACKAGE))) == []


def test_every_module_has_its_place():
    known = {part_of(path) for path in read_sources(PACKAGE)}
    assert known <= set(ORDER), f"add {known - set(ORDER)} to ORDER, where the design puts it"


def test_the_design_is_what_is_checked():
    """The order itself, so that a slip in ORDER cannot pass what the design forbids."""
    rank = ORDER.index
    assert all(rank("schedule") < rank(part) for part in ("telemetry", "models", "data", "store", "ps", "runtime"))
    assert rank("plan") < rank("schedule")
    assert rank("report") < rank("api") < rank("__init__") < rank("cli")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("heterps.schedule.cost", "import heterps.runtime"),
        ("heterps.schedule.cost", "from heterps.runtime.stage import Stage"),
        ("heterps.schedule.cost", "from heterps import telemetry"),
        ("heterps.schedule.cost", "from .. import runtime"),
        ("heterps.schedule.cost", "from ..runtime import stage"),
        ("heterps.schedule.rl.policy", "from ...runtime.stage import Stage"),
        ("heterps.schedule.cost", "def f():\n    from heterps.runtime import stage"),
        ("heterps.schedule.cost", "class A:\n    async def f(self):\n        import heterps.runtime.stage as s"),
        ("heterps.schedule.cost", "try:\n    import heterps.data\nexcept ImportError:\n    pass"),
        ("heterps.schedule.cost", "from importlib import import_module\nimport_module('heterps.runtime')"),
        ("heterps.schedule.cost", "import heterps"),
        ("heterps.schedule.cost", "from heterps import train"),
        ("heterps.runtime.stage", "from heterps.schedule.cost import evaluate"),
        ("heterps.plan", "from heterps.schedule import cost"),
        ("heterps.errors", "from heterps.units import GIGA"),
        ("heterps.api", "import heterps.cli.main"),
        ("heterps.__init__", "from heterps.cli import main"),
        ("heterps.schedule.__init__", "from ..runtime import stage"),
        ("heterps.errors", "import heterps.unheard_of"),
        ("heterps.unheard_of", "import heterps.errors"),
    ],
)
def test_checker_finds_a_wrong_direction(module: str, source: str):
    assert len(wrong_directions(find_imports({module: source}))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("heterps.schedule.cost", "from heterps.plan import Profile\nfrom heterps import _native, units\nimport numpy"),
        ("heterps.schedule.cost", "from heterps.schedule.goal import Goal\nfrom .goal import Goal\nfrom . import goal"),
        ("heterps.runtime.stage", "from heterps.plan import Plan\nfrom ..store import SparseTable"),
        ("heterps.api", "from heterps.schedule import plan\nfrom heterps.report import table"),
        ("heterps.cli.main", "from heterps import api, __version__\nimport heterps"),
        ("heterps.__init__", "from heterps.api import plan, train"),
        ("heterps.schedule.__init__", "from .cost import evaluate\nfrom ..plan import Plan"),
        ("heterps.errors", "import difflib\nprint('heterps.runtime')\nimport heterpsx"),
    ],
)
def test_checker_accepts_the_right_direction(module: str, source: str):
    assert wrong_directions(find_imports({module: source})) == []


def test_checker_finds_cycles():
    good = {
        "heterps.schedule.__init__": "from heterps.schedule.a import f",
        "heterps.schedule.a": "from heterps.schedule.b import g",
        "heterps.schedule.b": "def g():\n    from heterps.schedule.a import f",
    }
    assert find_cycle(find_imports(good)) == []
    direct = good | {"heterps.schedule.b": "from heterps.schedule import a"}
    assert {*find_cycle(find_imports(direct))} == {"heterps.schedule.a", "heterps.schedule.b"}
    through_package = good | {"heterps.schedule.b": "if True:\n    from . import f"}
    assert "heterps.schedule" in find_cycle(find_imports(through_package))
