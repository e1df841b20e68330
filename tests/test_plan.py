"""The files that people and programs exchange: they load as documented, come back as saved, and say what is wrong."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from heterps.documents import Document
from heterps.errors import HeterPSError, InvalidInput
from heterps.plan import Cluster, Plan, Profile

# The three examples of the design, letter by letter.
CLUSTER_YAML = """\
types:
  cpu:  {device: cpu,  price_per_hour: 0.04, limit: 480, bandwidth_gbps: 2,   memory_gb: 10}
  v100: {device: cuda, price_per_hour: 2.42, limit: 32,  bandwidth_gbps: 100, memory_gb: 32}
parameter_server: cpu          # optional: the type that serves tables
"""

PROFILE_JSON = """\
{"format": "heterps.profile/1", "model": "ctrdnn", "batch_size": 4096,
 "layers": [{"name": "embedding", "kind": "embedding", "output_bytes": 6815744, "input_bytes": 851968,
             "state_bytes": 1280000000, "sharded": true,
             "costs": {"cpu":  {"compute_s": 0.021, "sync_s": 0.004, "alpha": 0.99, "beta": 0.97, "ps_s": 0.006},
                       "v100": {"compute_s": 0.009, "sync_s": 0.011, "alpha": 0.98, "beta": 0.95, "ps_s": 0.006}}}]}
"""

PLAN_JSON = """\
{"format": "heterps.plan/1", "model": "ctrdnn", "method": "rl", "placement": ["cpu", "v100", "v100"],
 "types": {"cpu": {"device": "cpu", "price_per_hour": 0.04}, "v100": {"device": "cuda", "price_per_hour": 2.42}},
 "stages": [{"first": 0, "last": 0, "type": "cpu", "units": 12}, {"first": 1, "last": 2, "type": "v100", "units": 2}],
 "parameter_server": {"type": "cpu", "units": 3},
 "predicted": {"throughput": 81234.5, "usd_per_hour": 5.44, "usd_per_million_samples": 0.0186},
 "search": {"seconds": 1.9, "evaluations": 5120, "lower_bound_usd_per_million_samples": 0.0186, "optimal": true},
 "inputs": {"profile_sha256": "…", "cluster_sha256": "…", "min_throughput": 80000.0}}
"""

EXAMPLES: list[tuple[type[Document], str, str, Callable[[str], Any]]] = [
    (Cluster, "cluster.yaml", CLUSTER_YAML, yaml.safe_load),
    (Profile, "profile.json", PROFILE_JSON, json.loads),
    (Plan, "plan.json", PLAN_JSON, json.loads),
]
each_example = pytest.mark.parametrize(("kind", "name", "text", "decode"), EXAMPLES, ids=["cluster", "profile", "plan"])


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(kind: type[Document], path: Path) -> str:
    """The message of the refusal, which always begins with the file's name and is one line."""
    with pytest.raises(InvalidInput) as caught:
        kind.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message.removeprefix(f"{path}: ")


def edited(text: str, *path: str | int, value: Any = None, remove: bool = False) -> dict[str, Any]:
    """The data of an example with one field set or removed."""
    data: dict[str, Any] = yaml.safe_load(text)
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return data


class TestExamples:
    @each_example
    def test_loads_exactly(self, tmp_path: Path, kind: type[Document], name: str, text: str, decode: Any):
        loaded = kind.load(write(tmp_path / name, text))
        assert loaded.to_dict() == decode(text)
        assert loaded.sha256 == hashlib.sha256(text.encode()).hexdigest()

    @each_example
    def test_comes_back_as_saved(self, tmp_path: Path, kind: type[Document], name: str, text: str, decode: Any):
        loaded = kind.load(write(tmp_path / name, text))
        again = tmp_path / f"again-{name}"
        loaded.save(again)
        assert kind.load(again) == loaded
        assert decode(again.read_text()) == decode(text)

    def test_attributes(self, tmp_path: Path):
        cluster = Cluster.load(write(tmp_path / "cluster.yaml", CLUSTER_YAML))
        assert cluster.parameter_server == "cpu"
        assert list(cluster.types) == ["cpu", "v100"]
        assert cluster.types["v100"].limit == 32
        profile = Profile.load(write(tmp_path / "profile.json", PROFILE_JSON))
        assert (profile.batch_size, profile.layers[0].name, profile.layers[0].sharded) == (4096, "embedding", True)
        assert profile.layers[0].costs["v100"].sync_s == 0.011
        plan = Plan.load(write(tmp_path / "plan.json", PLAN_JSON))
        assert plan.placement == ("cpu", "v100", "v100")
        assert [(stage.first, stage.last, stage.type, stage.units) for stage in plan.stages] == [
            (0, 0, "cpu", 12),
            (1, 2, "v100", 2),
        ]

    def test_defaults(self):
        least = {"format": "heterps.profile/1", "batch_size": 1, "layers": [{"name": "a", "costs": {"cpu": {
            "compute_s": 1, "sync_s": 0}}}]}  # fmt: skip
        layer = Profile.from_dict(least).layers[0]
        assert (layer.output_bytes, layer.state_bytes, layer.sharded) == (0, 0, False)
        cost = layer.costs["cpu"]
        assert (cost.alpha, cost.beta, cost.ps_s) == (1, 1, 0)
        offer = Cluster.from_dict({"types": {"cpu": {"device": "cpu", "price_per_hour": 1}}})
        kind = offer.types["cpu"]
        assert (kind.limit, kind.bandwidth_gbps, kind.memory_gb, offer.parameter_server) == (None, None, None, None)

    def test_a_plan_without_a_server_says_null(self):
        plan = Plan.from_dict(edited(PLAN_JSON, "parameter_server", remove=True))
        assert plan.to_dict()["parameter_server"] is None
        assert Plan.from_dict(plan.to_dict()) == plan

    def test_unknown_keys_are_kept_where_programs_write(self, tmp_path: Path):
        noted = edited(PROFILE_JSON, "measured_on", value={"host": "a", "runs": [1, 2]})
        noted["layers"][0]["costs"]["cpu"]["spread"] = 0.02
        Profile.from_dict(noted).save(tmp_path / "profile.json")
        assert json.loads((tmp_path / "profile.json").read_text()) == noted

    def test_bom_and_comments_are_no_mistakes(self, tmp_path: Path):
        plain = Profile.load(write(tmp_path / "a.json", PROFILE_JSON))
        assert Profile.load(write(tmp_path / "b.json", b"\xef\xbb\xbf" + PROFILE_JSON.encode())) == plain


names = st.text(min_size=1, max_size=12)
type_names = st.one_of(st.sampled_from(["cpu", "v100", "1e3", "-2E5", "null", "yes", "<<", "=", "~", "x" * 200]), names)
seconds = st.floats(0, 1e6)
shares = st.floats(0, 1)
sizes = st.one_of(st.integers(0, 2**62), st.floats(0, 1e18))
positive = st.floats(1e-9, 1e9)


def optional(**fields: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return fields


costs = st.fixed_dictionaries(
    {"compute_s": st.floats(1e-9, 1e6), "sync_s": seconds},
    optional=optional(alpha=shares, beta=shares, ps_s=seconds, source=names),
)
layers = st.fixed_dictionaries(
    {"name": names, "costs": st.dictionaries(type_names, costs, min_size=1, max_size=3)},
    optional=optional(kind=names, output_bytes=sizes, input_bytes=sizes, state_bytes=sizes, sharded=st.booleans()),
)
profiles = st.fixed_dictionaries(
    {
        "format": st.just("heterps.profile/1"),
        "batch_size": st.integers(1, 2**40),
        "layers": st.lists(layers, min_size=1, max_size=4),
    },
    optional=optional(model=names),
).map(Profile.from_dict)
offers = st.fixed_dictionaries(
    {"device": st.sampled_from(["cpu", "cuda"]), "price_per_hour": positive},
    optional=optional(limit=st.integers(1, 2**40), bandwidth_gbps=positive, memory_gb=positive),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    types = draw(st.dictionaries(type_names, offers, min_size=1, max_size=4))
    server = draw(st.none() | st.sampled_from(sorted(types)))
    return Cluster.from_dict({"types": types} | ({"parameter_server": server} if server is not None else {}))


class TestRoundTrips:
    @settings(max_examples=60, deadline=None)
    @given(document=st.one_of(profiles, clusters()))
    def test_save_and_load(self, tmp_path_factory: pytest.TempPathFactory, document: Document):
        suffix = ".yaml" if isinstance(document, Cluster) else ".json"
        path = tmp_path_factory.mktemp("round") / f"document{suffix}"
        before = document.sha256
        document.save(path)
        loaded = type(document).load(path)
        assert loaded == document
        assert hash(loaded) == hash(document)
        assert loaded.to_text() == document.to_text()
        assert loaded.sha256 == before == hashlib.sha256(path.read_bytes()).hexdigest()

    @settings(max_examples=30, deadline=None)
    @given(document=st.one_of(profiles, clusters()))
    def test_copies(self, document: Document):
        for twin in (pickle.loads(pickle.dumps(document)), copy.deepcopy(document), copy.copy(document)):
            assert twin == document
            assert hash(twin) == hash(document)
            assert twin.sha256 == document.sha256

    @each_example
    def test_copies_of_files_keep_the_hash(
        self, tmp_path: Path, kind: type[Document], name: str, text: str, decode: Any
    ):
        loaded = kind.load(write(tmp_path / name, text))
        for twin in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded), loaded.model_copy()):
            assert twin == loaded
            assert twin.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert copy.deepcopy(loaded) is not loaded

    def test_a_changed_copy_has_its_own_hash(self, tmp_path: Path):
        loaded = Profile.load(write(tmp_path / "profile.json", PROFILE_JSON))
        changed = loaded.model_copy(update={"model": "other"})
        assert changed != loaded
        assert changed.sha256 == hashlib.sha256(changed.to_text().encode()).hexdigest()

    def test_one_byte_changes_the_hash(self, tmp_path: Path):
        loaded = Profile.load(write(tmp_path / "a.json", PROFILE_JSON))
        spaced = Profile.load(write(tmp_path / "b.json", PROFILE_JSON + " "))
        assert loaded == spaced
        assert loaded.sha256 != spaced.sha256

    def test_equal_documents_have_equal_hashes(self):
        backwards = edited(CLUSTER_YAML, "parameter_server", value="cpu")
        backwards["types"] = dict(reversed(backwards["types"].items()))
        a, b = Cluster.from_dict(yaml.safe_load(CLUSTER_YAML)), Cluster.from_dict(backwards)
        assert a == b
        assert hash(a) == hash(b)
        assert a != Profile.from_dict(json.loads(PROFILE_JSON))

    def test_whole_bytes_are_written_as_whole_numbers(self):
        assert '"output_bytes": 6815744,' in Profile.from_dict(json.loads(PROFILE_JSON)).to_text()
        odd = Profile.from_dict(edited(PROFILE_JSON, "layers", 0, "output_bytes", value=1.5))
        assert '"output_bytes": 1.5,' in odd.to_text()


class TestFrozen:
    @each_example
    def test_attributes(self, kind: type[Document], name: str, text: str, decode: Any):
        document = kind.from_dict(decode(text))
        for field in type(document).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(document, field, getattr(document, field))
            with pytest.raises(ValidationError, match="frozen"):
                delattr(document, field)
        with pytest.raises(ValidationError, match="frozen"):
            document.something_new = 1  # type: ignore[attr-defined]

    def test_parts(self):
        profile = Profile.from_dict(json.loads(PROFILE_JSON))
        with pytest.raises(ValidationError, match="frozen"):
            profile.layers[0].name = "x"
        with pytest.raises(ValidationError, match="frozen"):
            profile.layers[0].costs["cpu"].compute_s = 1.0
        with pytest.raises(TypeError):
            profile.layers[0] = profile.layers[0]  # type: ignore[index]

    @pytest.mark.parametrize(
        "change",
        [
            lambda mapping: mapping.__setitem__("cpu", None),
            lambda mapping: mapping.__delitem__("cpu"),
            lambda mapping: mapping.update(cpu=None),
            lambda mapping: mapping.pop("cpu"),
            lambda mapping: mapping.popitem(),
            lambda mapping: mapping.clear(),
            lambda mapping: mapping.setdefault("new", None),
            lambda mapping: mapping.__ior__({"cpu": None}),
        ],
    )
    def test_mappings(self, change: Callable[[Any], None]):
        profile = Profile.from_dict(json.loads(PROFILE_JSON))
        cluster = Cluster.from_dict(yaml.safe_load(CLUSTER_YAML))
        plan = Plan.from_dict(json.loads(PLAN_JSON))
        for mapping in (profile.layers[0].costs, cluster.types, plan.types, copy.deepcopy(plan).types):
            before = dict(mapping)
            with pytest.raises(TypeError, match="frozen"):
                change(mapping)
            assert dict(mapping) == before

    def test_the_input_is_not_shared(self):
        data = json.loads(PROFILE_JSON)
        profile = Profile.from_dict(data)
        text = profile.to_text()
        data["layers"][0]["costs"]["cpu"]["compute_s"] = 5.0
        data["layers"].clear()
        assert profile.to_text() == text


NAN, INF = float("nan"), float("inf")
COST = ("layers", 0, "costs", "cpu")


class TestBadFields:
    """Every message names the file, the field and the value, and the rule it breaks."""

    @pytest.mark.parametrize("field", ["compute_s", "sync_s", "ps_s", "alpha", "beta"])
    @pytest.mark.parametrize("value", [-1, -1e-300, NAN, INF, -INF, "0.1", None, True, [1.0], 10**400], ids=repr)
    def test_costs(self, tmp_path: Path, field: str, value: Any):
        data = edited(PROFILE_JSON, *COST, field, value=value)
        message = refusal(Profile, write(tmp_path / "profile.json", json.dumps(data)))
        shown = repr(value) if len(repr(value)) < 60 else repr(value)[:50]
        assert message.startswith(f"layers[0].costs.cpu.{field} = {shown}")
        assert f"({field}: " in message, "the rule"

    @pytest.mark.parametrize("field", ["output_bytes", "input_bytes", "state_bytes"])
    @pytest.mark.parametrize("value", [-1, NAN, INF, "12", None, True, 10**400], ids=repr)
    def test_bytes(self, tmp_path: Path, field: str, value: Any):
        data = edited(PROFILE_JSON, "layers", 0, field, value=value)
        message = refusal(Profile, write(tmp_path / "profile.json", json.dumps(data)))
        shown = repr(value) if len(repr(value)) < 60 else repr(value)[:50]
        assert message.startswith(f"layers[0].{field} = {shown}")
        assert "0 or more" in message
        assert "more]" not in message, "one mistake is one mistake"

    @pytest.mark.parametrize("field", ["alpha", "beta"])
    @pytest.mark.parametrize("value", [1.0000001, 2, 97])
    def test_fractions(self, tmp_path: Path, field: str, value: float):
        data = edited(PROFILE_JSON, *COST, field, value=value)
        message = refusal(Profile, write(tmp_path / "profile.json", json.dumps(data)))
        assert message.startswith(f"layers[0].costs.cpu.{field} = {value!r}")
        assert "from 0 to 1" in message

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            (("format",), "heterps.profile/2", ["format = 'heterps.profile/2'", "heterps.profile/1"]),
            (("format",), "heterps.plan/1", ["format = 'heterps.plan/1'"]),
            (("batch_size",), 0, ["batch_size = 0", "1 or more"]),
            (("batch_size",), 4096.5, ["batch_size = 4096.5", "whole number"]),
            (("batch_size",), "4096", ["batch_size = '4096'"]),
            (("batch_size",), 10**400, ["batch_size = 1000000000"]),
            (("layers",), [], ["layers = []", "at least one"]),
            (("layers",), "embedding", ["layers = 'embedding'"]),
            (("layers", 0), 3, ["layers[0] = 3"]),
            (("layers", 0, "name"), "", ["layers[0].name = ''"]),
            (("layers", 0, "name"), 5, ["layers[0].name = 5"]),
            (("layers", 0, "sharded"), "yes", ["layers[0].sharded = 'yes'"]),
            (("layers", 0, "costs"), {}, ["layers[0].costs", "at least one type"]),
            (("layers", 0, "costs"), [1], ["layers[0].costs = [1]"]),
            (("layers", 0, "costs", "cpu"), 0.1, ["layers[0].costs.cpu = 0.1"]),
        ],
    )
    def test_profiles(self, tmp_path: Path, path: tuple[str | int, ...], value: Any, expected: list[str]):
        data = edited(PROFILE_JSON, *path, value=value)
        message = refusal(Profile, write(tmp_path / "profile.json", json.dumps(data)))
        assert all(part in message for part in expected), message

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            (("types",), {}, ["types", "at least one"]),
            (("types",), None, ["types = None"]),
            (("types", "cpu"), 0.04, ["types.cpu = 0.04"]),
            (("types", "cpu", "price_per_hour"), 0, ["types.cpu.price_per_hour = 0", "above 0"]),
            (("types", "cpu", "price_per_hour"), -0.04, ["types.cpu.price_per_hour = -0.04", "above 0"]),
            (("types", "cpu", "price_per_hour"), NAN, ["types.cpu.price_per_hour = nan"]),
            (("types", "cpu", "price_per_hour"), INF, ["types.cpu.price_per_hour = inf"]),
            (("types", "cpu", "price_per_hour"), "4 cents", ["types.cpu.price_per_hour = '4 cents'"]),
            (("types", "cpu", "limit"), 0, ["types.cpu.limit = 0", "remove the type"]),
            (("types", "cpu", "limit"), -3, ["types.cpu.limit = -3"]),
            (("types", "cpu", "limit"), 2.5, ["types.cpu.limit = 2.5", "whole number"]),
            (("types", "cpu", "limit"), True, ["types.cpu.limit = True"]),
            (("types", "cpu", "limit"), 10**400, ["types.cpu.limit = 1000000000"]),
            (("types", "cpu", "bandwidth_gbps"), 0, ["types.cpu.bandwidth_gbps = 0", "leave it out"]),
            (("types", "cpu", "memory_gb"), 0, ["types.cpu.memory_gb = 0", "leave it out"]),
            (("types", "cpu", "device"), "gpu", ["types.cpu.device = 'gpu'", "cuda"]),
            (("parameter_server",), "cpus", ["parameter_server", "'cpus'", "cpu, v100", "Did you mean 'cpu'?"]),
            (("parameter_server",), "V100", ["parameter_server", "'V100'", "Did you mean 'v100'?"]),
            (("parameter_server",), "tpu", ["parameter_server", "'tpu'", "cpu, v100"]),
            (("parameter_server",), 3, ["parameter_server = 3"]),
            (("comment",), "mine", ["comment = 'mine'", "types, parameter_server"]),
            (("types", "cpu", "zone"), "eu", ["types.cpu.zone = 'eu'", "bandwidth_gbps"]),
        ],
    )
    def test_clusters(self, tmp_path: Path, path: tuple[str | int, ...], value: Any, expected: list[str]):
        text = yaml.safe_dump(edited(CLUSTER_YAML, *path, value=value))
        message = refusal(Cluster, write(tmp_path / "cluster.yaml", text))
        assert all(part in message for part in expected), message

    @pytest.mark.parametrize(
        ("kind", "text", "path", "field"),
        [
            (Profile, PROFILE_JSON, ("format",), "format"),
            (Profile, PROFILE_JSON, ("batch_size",), "batch_size"),
            (Profile, PROFILE_JSON, ("layers",), "layers"),
            (Profile, PROFILE_JSON, ("layers", 0, "name"), "layers[0].name"),
            (Profile, PROFILE_JSON, ("layers", 0, "costs"), "layers[0].costs"),
            (Profile, PROFILE_JSON, (*COST, "compute_s"), "layers[0].costs.cpu.compute_s"),
            (Profile, PROFILE_JSON, (*COST, "sync_s"), "layers[0].costs.cpu.sync_s"),
            (Cluster, CLUSTER_YAML, ("types",), "types"),
            (Cluster, CLUSTER_YAML, ("types", "cpu", "device"), "types.cpu.device"),
            (Cluster, CLUSTER_YAML, ("types", "cpu", "price_per_hour"), "types.cpu.price_per_hour"),
            (Plan, PLAN_JSON, ("stages",), "stages"),
            (Plan, PLAN_JSON, ("inputs", "profile_sha256"), "inputs.profile_sha256"),
        ],
    )
    def test_missing(self, tmp_path: Path, kind: type[Document], text: str, path: tuple[str | int, ...], field: str):
        data = edited(text, *path, remove=True)
        assert refusal(kind, write(tmp_path / "a.json", json.dumps(data))).startswith(f"{field} is missing")

    @pytest.mark.parametrize(
        ("kind", "text", "at", "key", "wrong"),
        [
            (Profile, PROFILE_JSON, (), "batch_size", "batchsize"),
            (Profile, PROFILE_JSON, ("layers", 0), "output_bytes", "ouput_bytes"),
            (Profile, PROFILE_JSON, ("layers", 0), "sharded", "shared"),
            (Profile, PROFILE_JSON, COST, "compute_s", "compute"),
            (Profile, PROFILE_JSON, COST, "alpha", "alhpa"),
            (Cluster, CLUSTER_YAML, (), "parameter_server", "parameter_servers"),
            (Cluster, CLUSTER_YAML, ("types", "cpu"), "limit", "limits"),
            (Cluster, CLUSTER_YAML, ("types", "cpu"), "memory_gb", "memory_gB"),
            (Plan, PLAN_JSON, (), "parameter_server", "paramter_server"),
        ],
    )
    def test_misspelt(
        self, tmp_path: Path, kind: type[Document], text: str, at: tuple[str | int, ...], key: str, wrong: str
    ):
        """A key with a default would be lost in silence otherwise."""
        data = yaml.safe_load(text)
        part = data
        for step in at:
            part = part[step]
        part[wrong] = part.pop(key)
        message = refusal(kind, write(tmp_path / "a.json", json.dumps(data)))
        assert f"unknown key {wrong!r}. Did you mean {key!r}?" in message

    def test_more_mistakes_are_counted(self, tmp_path: Path):
        data = edited(PROFILE_JSON, "batch_size", value=0)
        data["layers"][0]["costs"]["cpu"]["alpha"] = 2
        assert refusal(Profile, write(tmp_path / "a.json", json.dumps(data))).endswith("[and 1 more]")

    def test_no_time_at_all(self, tmp_path: Path):
        data = edited(PROFILE_JSON, *COST, value={"compute_s": 0, "sync_s": 0})
        assert "every layer is free on some type" in refusal(Profile, write(tmp_path / "a.json", json.dumps(data)))

    def test_a_type_may_run_only_what_takes_no_time(self):
        free, busy = {"compute_s": 0, "sync_s": 0}, {"compute_s": 1, "sync_s": 0}
        layers = [{"name": "fc", "costs": {"cpu": busy}}, {"name": "reshape", "costs": {"cpu": free, "gpu": free}}]
        Profile.from_dict({"format": "heterps.profile/1", "batch_size": 1, "layers": layers})

    @pytest.mark.parametrize(
        ("kind", "text", "path", "value", "expected"),
        [
            (Profile, PROFILE_JSON, ("layers",), [], "layers = []: must not be empty (layers: the chain's layers"),
            (Profile, PROFILE_JSON, ("layers",), {}, "layers: must be a list"),
            (Profile, PROFILE_JSON, ("layers", 0, "name"), "", "layers[0].name = '': must not be empty"),
            (Profile, PROFILE_JSON, ("layers", 0, "name"), 3, "layers[0].name = 3: must be text"),
            (Profile, PROFILE_JSON, ("layers", 0, "costs"), {}, "layers[0].costs: must not be empty"),
            (Profile, PROFILE_JSON, ("layers", 0, "sharded"), 1, "layers[0].sharded = 1: must be true or false"),
            (Profile, PROFILE_JSON, ("batch_size",), 1.5, "batch_size = 1.5: must be a whole number"),
            (Profile, PROFILE_JSON, COST, 3, "layers[0].costs.cpu = 3: must be keys with values: compute_s, sync_s,"),
            (Plan, PLAN_JSON, ("predicted",), 3, "predicted = 3: must be keys with values: throughput, usd_per_hour,"),
            (
                Cluster,
                CLUSTER_YAML,
                ("types", "cpu", "device"),
                "tpu",
                "types.cpu.device = 'tpu': must be 'cpu' or 'cu",
            ),
            (Cluster, CLUSTER_YAML, ("types", "v100"), None, "types.v100 = None: must be keys with values: device, pr"),
            (Cluster, CLUSTER_YAML, ("types", "v100"), None, "nothing is there, so the file may be truncated"),
        ],
    )
    def test_rules_are_plain(
        self, kind: type[Document], text: str, path: tuple[str | int, ...], value: Any, expected: str
    ):
        with pytest.raises(InvalidInput) as caught:
            kind.from_dict(edited(text, *path, value=value))
        assert expected in str(caught.value)

    @pytest.mark.parametrize("key", ["3", "1.5", "yes", "~"])
    def test_keys_that_yaml_takes_for_something_else(self, tmp_path: Path, key: str):
        text = CLUSTER_YAML.replace("v100:", f"{key}:")
        said = refusal(Cluster, write(tmp_path / "cluster.yaml", text))
        assert said == f"types: the key {yaml.safe_load(key)!r} is not text; put it in quotes"

    def test_each_size_says_what_it_is(self):
        for key, what in (("state_bytes", "weights and optimizer state"), ("output_bytes", "go to the next layer")):
            with pytest.raises(InvalidInput, match=rf"{key} = -1: .*{what}"):
                Profile.from_dict(edited(PROFILE_JSON, "layers", 0, key, value=-1))

    def test_a_plan_that_could_take_no_time(self, tmp_path: Path):
        free, busy = {"compute_s": 0, "sync_s": 0}, {"compute_s": 1, "sync_s": 0}
        layers = [{"name": "a", "costs": {"x": free, "y": busy}}, {"name": "b", "costs": {"x": busy, "y": free}}]
        data = {"format": "heterps.profile/1", "batch_size": 1, "layers": layers}
        assert "every layer is free on some type" in refusal(Profile, write(tmp_path / "a.json", json.dumps(data)))

    def test_from_dict_names_its_source(self):
        with pytest.raises(InvalidInput, match=r"^my data: batch_size = -1"):
            Profile.from_dict(edited(PROFILE_JSON, "batch_size", value=-1), source="my data")

    def test_the_error_is_both_ours_and_a_value_error(self):
        assert issubclass(InvalidInput, HeterPSError)
        assert issubclass(InvalidInput, ValueError)


class TestBadPlans:
    @pytest.mark.parametrize(
        "stages",
        [
            [(0, 0, "cpu"), (1, 1, "v100")],
            [(1, 2, "v100")],
            [(0, 0, "cpu"), (2, 2, "v100")],
            [(0, 0, "cpu"), (0, 2, "v100")],
            [(0, 0, "cpu"), (1, 3, "v100")],
            [(1, 2, "v100"), (0, 0, "cpu")],
            [(0, 0, "cpu"), (1, 2, "v100"), (3, 2, "cpu")],
            [(0, 0, "cpu"), (1, 0, "v100"), (1, 2, "v100")],
            [(0, 10**15, "cpu")],
            [],
        ],
    )
    def test_stages_must_cover_the_layers_once(self, tmp_path: Path, stages: list[tuple[int, int, str]]):
        value = [{"first": first, "last": last, "type": kind, "units": 1} for first, last, kind in stages]
        assert "stage" in refusal(
            Plan, write(tmp_path / "plan.json", json.dumps(edited(PLAN_JSON, "stages", value=value)))
        )

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            (("format",), "heterps.plan/2", "format = 'heterps.plan/2'"),
            (("placement",), ["cpu", "cpu", "v100"], "placement says otherwise"),
            (("placement",), ["cpu", "v100"], "must cover layers 0..1"),
            (("placement",), [], "placement = []"),
            (("stages", 0, "type"), "v100", "is on 'v100', the placement says otherwise"),
            (("stages", 0, "units"), 0, "stages[0].units = 0"),
            (("stages", 0, "units"), 1.5, "stages[0].units = 1.5"),
            (("types",), {"cpu": {"device": "cpu", "price_per_hour": 1}}, "types lacks v100"),
            (("parameter_server",), {"type": "tpu", "units": 1}, "types lacks tpu"),
            (("predicted", "throughput"), 0, "predicted.throughput = 0"),
            (("predicted", "usd_per_hour"), NAN, "predicted.usd_per_hour = nan"),
            (("search", "optimal"), "yes", "search.optimal = 'yes'"),
            (("inputs", "mode"), "fast", "inputs.mode = 'fast'"),
        ],
    )
    def test_refused(self, tmp_path: Path, path: tuple[str | int, ...], value: Any, expected: str):
        data = edited(PLAN_JSON, *path, value=value)
        assert expected in refusal(Plan, write(tmp_path / "plan.json", json.dumps(data)))

    def test_neighbouring_stages_of_one_type(self, tmp_path: Path):
        value = [{"first": i, "last": i, "type": kind, "units": 1} for i, kind in enumerate(["cpu", "v100", "v100"])]
        data = edited(PLAN_JSON, "stages", value=value)
        assert "must be one stage" in refusal(Plan, write(tmp_path / "plan.json", json.dumps(data)))


class TestBadFiles:
    @pytest.mark.parametrize(("kind", "text"), [(Profile, PROFILE_JSON), (Plan, PLAN_JSON)], ids=["profile", "plan"])
    def test_json_cut_anywhere(self, tmp_path: Path, kind: type[Document], text: str):
        content = text.encode()
        for cut in range(len(content) - 2):
            refusal(kind, write(tmp_path / "cut.json", content[:cut]))
        assert "truncated" in refusal(kind, write(tmp_path / "cut.json", content[: len(content) // 2]))

    def test_yaml_cut_anywhere(self, tmp_path: Path):
        """YAML has no end mark, so some cuts are whole files; the others are refused in our words."""
        content = CLUSTER_YAML.encode()
        for cut in range(content.index(b"parameter_server")):
            path = write(tmp_path / "cut.yaml", content[:cut])
            try:
                cluster = Cluster.load(path)
            except InvalidInput as error:
                assert str(error).startswith(f"{path}: ")  # noqa: PT017
            else:
                assert cluster.types.keys() <= {"cpu", "v100"}
                assert cluster.parameter_server is None

    def test_yaml_cut_in_a_type_says_so_and_where(self):
        for cut in (CLUSTER_YAML.index("device"), CLUSTER_YAML.index("limit"), CLUSTER_YAML.index("memory_gb: 32")):
            column = len(CLUSTER_YAML[:cut].splitlines()[-1].rstrip()) + 1
            with pytest.raises(InvalidInput) as caught:
                Cluster.parse(CLUSTER_YAML[:cut].rstrip(), source="c.yaml")
            assert f"column {column}: the file ends there. The file seems to be truncated" in str(caught.value)

    def test_yaml_error_says_where(self):
        with pytest.raises(InvalidInput, match=r"^c\.yaml: not valid YAML at line 2, column 1: .*\. Fix it there\.$"):
            Cluster.parse("types:\n\tcpu: 1", source="c.yaml")

    @pytest.mark.parametrize("name", ["cluster", "cluster.txt", "cluster.clu"])
    def test_other_endings_are_read_as_what_they_hold(self, name: str):
        cluster = Cluster.parse(CLUSTER_YAML, source="cluster.yaml")
        assert Cluster.parse(CLUSTER_YAML, source=name) == cluster
        assert Cluster.parse(json.dumps(cluster.to_dict()), source=name) == cluster
        with pytest.raises(InvalidInput, match=r"name the file \.yaml if it is YAML"):
            Cluster.parse(CLUSTER_YAML, source=f"{name}.json")

    @pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.yml", "a"])
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b" \n\t\n",
            b"\x00\x01\x02\xff\xfe",
            b"\x89PNG\r\n\x1a\n\x00\x00",
            bytes(range(256)),
            b"\xff\xfe" + "{}".encode("utf-16-le"),
            b"[]",
            b"[1, 2]",
            b"null",
            b"3",
            b'"text"',
            b"{",
            b"}{",
            b"[" * 20_000,
            b'{"a":' * 20_000,
            b'{"batch_size": ' + b"9" * 5000 + b"}",
            b"%",
            b"&a [*a]",
            b"*unknown",
        ],
        ids=lambda content: repr(content[:20]),
    )
    @pytest.mark.parametrize("kind", [Profile, Cluster, Plan])
    def test_garbage(self, tmp_path: Path, kind: type[Document], content: bytes, name: str):
        refusal(kind, write(tmp_path / name, content))

    @settings(max_examples=150, deadline=None)
    @given(content=st.binary(max_size=60), name=st.sampled_from(["a.json", "a.yaml"]))
    def test_random_bytes(self, tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str):
        refusal(Profile, write(tmp_path_factory.mktemp("random") / name, content))

    @settings(max_examples=150, deadline=None)
    @given(at=st.integers(0, len(CLUSTER_YAML) - 1), character=st.characters(exclude_categories=["Cs"]))
    def test_one_wrong_character(self, at: int, character: str):
        """Whatever a slip of the finger makes of a cluster, it loads or is refused in our words."""
        text = CLUSTER_YAML[:at] + character + CLUSTER_YAML[at + 1 :]
        try:
            Cluster.parse(text, source="cluster.yaml")
        except InvalidInput as error:
            assert str(error).startswith("cluster.yaml: ")  # noqa: PT017

    def test_empty_file_says_so(self, tmp_path: Path):
        assert "empty" in refusal(Profile, write(tmp_path / "profile.json", ""))

    def test_not_utf8_says_so(self, tmp_path: Path):
        latin = PROFILE_JSON.replace("ctrdnn", "modèle").encode("latin-1")
        assert "not UTF-8" in refusal(Profile, write(tmp_path / "profile.json", latin))

    def test_directory(self, tmp_path: Path):
        assert "cannot be read (Is a directory)" in refusal(Profile, tmp_path)

    def test_absent(self, tmp_path: Path):
        assert "cannot be read (No such file or directory)" in refusal(Profile, tmp_path / "none.json")

    def test_unwritable(self, tmp_path: Path):
        cluster = Cluster.from_dict(yaml.safe_load(CLUSTER_YAML))
        with pytest.raises(InvalidInput, match=r"cannot be written \(Is a directory\)"):
            cluster.save(tmp_path)
        with pytest.raises(InvalidInput, match=r"none/cluster\.yaml: cannot be written"):
            cluster.save(tmp_path / "none" / "cluster.yaml")

    @pytest.mark.parametrize(
        ("name", "text", "key"),
        [
            ("a.json", '{"format": 1, "format": 2}', "format"),
            ("a.json", PROFILE_JSON.replace('"v100"', '"cpu"'), "cpu"),
            ("a.yaml", "types: {}\ntypes: {}\n", "types"),
            ("a.yaml", CLUSTER_YAML.replace("v100:", "cpu:"), "cpu"),
            ("a.yaml", CLUSTER_YAML.replace("limit: 32", "price_per_hour: 3"), "price_per_hour"),
            ("a.yaml", CLUSTER_YAML.replace("v100:", '"cpu":'), "cpu"),
        ],
    )
    def test_key_twice(self, tmp_path: Path, name: str, text: str, key: str):
        kind = Profile if name == "a.json" else Cluster
        assert f"key {key!r} appears twice" in refusal(kind, write(tmp_path / name, text))

    def test_json_error_says_where(self, tmp_path: Path):
        text = PROFILE_JSON.replace('"batch_size": 4096,', '"batch_size" 4096,')
        assert "not valid JSON at line 1, column 65" in refusal(Profile, write(tmp_path / "a.json", text))


class TestYaml:
    @pytest.mark.parametrize(
        ("written", "value"),
        [("4e-2", 0.04), ("4E-2", 0.04), ("4.e-2", 0.04), (".4e-1", 0.04), ("+4e-2", 0.04), ("1e1", 10), ("4", 4)],
    )
    def test_numbers(self, tmp_path: Path, written: str, value: float):
        text = CLUSTER_YAML.replace("price_per_hour: 0.04", f"price_per_hour: {written}")
        cluster = Cluster.load(write(tmp_path / "cluster.yaml", text))
        assert cluster.types["cpu"].price_per_hour == value

    @pytest.mark.parametrize("written", [".nan", ".inf", "-.inf", "1e999", "'0.04'", "e-2", "2020-01-01", "yes", "~"])
    def test_no_numbers(self, tmp_path: Path, written: str):
        text = CLUSTER_YAML.replace("price_per_hour: 0.04", f"price_per_hour: {written}")
        message = refusal(Cluster, write(tmp_path / "cluster.yaml", text))
        assert message.startswith("types.cpu.price_per_hour = ")

    def test_json_is_yaml(self, tmp_path: Path):
        text = json.dumps(yaml.safe_load(CLUSTER_YAML))
        loaded = Cluster.load(write(tmp_path / "a.yaml", text))
        assert loaded == Cluster.load(write(tmp_path / "a.json", text))

    def test_merge_keys(self, tmp_path: Path):
        text = "types:\n  a: &a {device: cpu, price_per_hour: 1, limit: 2}\n  b: {<<: *a, limit: 3}\n"
        cluster = Cluster.load(write(tmp_path / "cluster.yaml", text))
        assert (cluster.types["b"].price_per_hour, cluster.types["b"].limit) == (1, 3)

    @pytest.mark.parametrize(
        "text",
        [
            "types: {? [a] : 1}",
            "types: {? {a: 1} : 1}",
            "types: {1: {device: cpu, price_per_hour: 1}}",
            "types: {cpu: {device: cpu, price_per_hour: !!int ''}}",
            "types: {cpu: {device: cpu, price_per_hour: !!timestamp x}}",
            "types: {cpu: {device: cpu, price_per_hour: !!bool x}}",
            "!!python/object/apply:os.getcwd []",
            "types: &a {cpu: *a}",
            "a: b: c",
            "types:\n\tcpu: 1",
            "--- {}\n--- {}",
        ],
    )
    def test_what_yaml_allows_and_we_do_not(self, tmp_path: Path, text: str):
        refusal(Cluster, write(tmp_path / "cluster.yaml", text))
