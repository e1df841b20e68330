"""The documentation keeps up with the code: commands, names, keys, links, and code that runs."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import heterps
from heterps import plan as plans
from heterps.data import specs
from heterps.job import Checkpoint, Eval, Job, JobGoal, PlanChoice, Train
from heterps.profile.hardware import CoreRates, Gpu, Hardware
from heterps.profile.links import Links, Served
from heterps.profile.measurement import LayerTimes, Measurement
from heterps.runtime.result import Result
from heterps.store.config import STATE_FLOATS, Optimizer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    found = [(indent, body) for indent, kind, body in FENCE.findall(text_of(page)) if kind == language]
    return [re.sub(f"^{indent}", "", body, flags=re.MULTILINE) for indent, body in found]


def without_code(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """As the pages are built: words in lower case, joined by dashes."""
    heads = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", head).strip().lower() for head in heads)
    return {re.sub(r"[\s-]+", "-", head) for head in plain}


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestCommands:
    def test_every_command_has_its_section(self, hooks: ModuleType) -> None:
        text = text_of("commands.md")
        described = re.findall(r"^### heterps (.+)\n\n<!-- command: (.+) -->$", text, re.MULTILINE)
        assert all(head == marker for head, marker in described)
        assert {head for head, _ in described} == set(hooks.commands())

    def test_every_option_is_in_the_tables(self, hooks: ModuleType) -> None:
        built = hooks.on_page_markdown(text_of("commands.md"))
        assert "<!-- command" not in built
        for words, command in hooks.commands().items():
            section = built.split(f"### heterps {words}\n")[1].split("\n### ")[0]
            for parameter in command.params:
                for option in [] if parameter.hidden else [o for o in parameter.opts if o.startswith("-")]:
                    assert option in section or option == "--help", f"{words} {option}"

    @pytest.mark.parametrize("page", [page.name for page in PAGES])
    def test_commands_in_the_pages_exist(self, page: str, hooks: ModuleType) -> None:
        known = hooks.commands()
        for body in blocks(page, ""):
            for line in body.replace("\\\n", " ").splitlines():
                words = re.match(r"(?:\$ )?heterps ((?:ps )?[a-z]+)(?: |$)(.*)", line)
                if words is None:
                    continue
                assert words[1] in known, line
                options = {option for each in known[words[1]].params for option in [*each.opts, *each.secondary_opts]}
                for word in shlex.split(words[2], comments=True):
                    assert not word.startswith("--") or word in options, line


class TestNames:
    def test_every_public_name_is_in_the_api(self) -> None:
        described = set(re.findall(r"^::: (?:heterps|heterps\.api)\.(\w+)$", text_of("api.md"), re.MULTILINE))
        assert described >= set(heterps.__all__)

    def test_every_name_of_the_api_exists(self) -> None:
        for path in re.findall(r"^::: ([\w.]+)$", text_of("api.md"), re.MULTILINE):
            module, _, name = path.rpartition(".")
            assert hasattr(importlib.import_module(module), name), path

    def test_every_optimizer_and_option_is_explained(self) -> None:
        text = text_of("optimizers.md")
        for name in STATE_FLOATS:
            assert f"### `{name}`" in text
        for field in dataclasses.fields(Optimizer):
            assert f"`{field.name}`" in text

    def test_every_option_of_a_source_is_explained(self) -> None:
        text = text_of("own.md")
        for kind in specs.SOURCES.values():
            for field in dataclasses.fields(kind):
                if field.init and field.name not in specs._INTERNAL:
                    assert re.search(rf"`{field.name}[`:]", text), f"{kind.__name__}.{field.name}"


class TestFormats:
    @pytest.mark.parametrize(
        "kind",
        [plans.ResourceType, plans.Cluster, plans.Cost, plans.Layer, plans.Profile, plans.PlanType, plans.PlanStage,
         plans.ServerUnits, plans.Predicted, plans.Search, plans.Inputs, plans.Plan, Measurement, LayerTimes, Hardware,
         CoreRates, Gpu, Links, Served, JobGoal, Job],
    )  # fmt: skip
    def test_every_key_is_explained(self, kind: Any) -> None:
        text = text_of("formats.md")
        for key in kind.model_fields:
            assert re.search(rf"`(?:[\w.*]+\.)?{key}(?:\.\w+)?`", text), f"{kind.__name__}.{key}"

    @pytest.mark.parametrize(
        ("section", "kind"),
        [("train", Train), ("eval", Eval), ("checkpoint", Checkpoint), ("plan", PlanChoice)],
    )
    def test_every_key_of_a_job_is_explained(self, section: str, kind: Any) -> None:
        for key in kind.model_fields:
            assert f"`{section}.{key}`" in text_of("formats.md")

    def test_every_key_of_a_result_is_explained(self) -> None:
        result = Result(steps=1, samples=1, losses=[1.0], auc=None, eval_loss=None, evaluations=[], throughput=1.0,
                        seconds=1.0, stages=[], stopped="done")  # fmt: skip
        section = text_of("formats.md").split("### result.json")[1].split("\n### ")[0]
        for key in result.to_dict():
            assert f"`{key}`" in section

    def test_examples_of_files_are_valid(self) -> None:
        cluster, job = (yaml.safe_load(body) for body in blocks("formats.md", "yaml"))
        profile, plan = (json.loads(body) for body in blocks("formats.md", "json"))
        heterps.Cluster.from_dict(cluster)
        heterps.Job.from_dict(job)
        heterps.Profile.from_dict(profile)
        heterps.Plan.from_dict(plan)


class TestPages:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_relative_links_resolve(self, page: Path) -> None:
        for target in LINK.findall(without_code(page.read_text())):
            if re.match(r"[a-z]+://", target):
                continue
            name, _, anchor = target.partition("#")
            other = page.parent / name if name else page
            assert other.is_file(), f"{target}: no such file"
            assert not anchor or anchor in anchors(other), f"{target}: no such heading"

    def test_every_page_is_in_the_navigation(self) -> None:
        def pages(nav: Any) -> Iterator[str]:
            for item in nav:
                ((_, value),) = item.items()
                yield from [value] if isinstance(value, str) else pages(value)

        config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
        assert sorted(pages(config["nav"])) == [page.name for page in PAGES]

    def test_nothing_is_loaded_from_elsewhere(self) -> None:
        config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
        assert config["theme"]["highlightjs"] is False  # the theme would fetch it
        for path in [*DOCS.glob("*.css"), *DOCS.glob("*.js"), *DOCS.glob("*.svg")]:
            used = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http" not in used
            assert "@import" not in used


class TestSite:
    def test_it_builds_without_warnings_and_loads_nothing(self, tmp_path: Path) -> None:
        pytest.importorskip("mkdocs")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        built = sorted(tmp_path.rglob("*.html"))
        assert len(built) > len(PAGES)  # the results are pages too
        for page in built:
            loaded = re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="([^"]*)"', page.read_text())
            assert [target for target in loaded if target.startswith(("http", "//"))] == [], page.name


class TestQuickStart:
    def test_its_job_is_sound(self) -> None:
        (body,) = blocks("index.md", "yaml")
        job = Job.from_dict(yaml.safe_load(body))
        training, _ = job.sources()
        job.build(training).check_batch(job.example(training))

    def test_its_python_runs(self, capsys: pytest.CaptureFixture[str]) -> None:
        (body,) = blocks("index.md", "python")
        exec(compile(body, "index.md", "exec"), {})
        auc, throughput = map(float, capsys.readouterr().out.split())
        assert 0.5 < auc < 1
        assert throughput > 0

    def test_the_targets_it_names_exist(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        for target in re.findall(r"^make (\w+)", "\n".join(blocks("index.md", "")), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target

    @pytest.mark.parametrize("page", ["own.md", "optimizers.md"])
    def test_other_python_is_valid(self, page: str) -> None:
        for body in blocks(page, "python"):
            compile(body, page, "exec")

    def test_the_check_by_hand_holds(self) -> None:
        (body,) = blocks("optimizers.md", "python")
        exec(compile(body, "optimizers.md", "exec"), {})
