"""Files that people and programs exchange: reading, validating and writing them.

A `Document` is a frozen pydantic model. Whatever is wrong with a file becomes one `InvalidInput` that names the file,
the field, the value and the rule, which is the field's description.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from heterps.errors import InvalidInput, did_you_mean

V = TypeVar("V")


class FrozenDict(dict[str, V]):
    """A dictionary that cannot be changed after it is made."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this mapping is part of a frozen document; make a new document instead")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, V]]]:
        return type(self), (dict(self),)


FrozenMap = Annotated[Mapping[str, V], AfterValidator(FrozenDict), PlainSerializer(dict)]


class Part(BaseModel):
    """A frozen piece of a document. Unknown keys are kept, unless they look like a misspelt known one."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _no_misspelt_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = cls.model_fields.keys()
            for key in data:
                if isinstance(key, str) and key not in known and (hint := did_you_mean(key, known - data.keys())):
                    raise ValueError(f"unknown key {key!r}.{hint}")
        return data


class Document(Part):
    """A whole file: loads and saves itself, and knows the SHA-256 of the bytes it was or would be written as."""

    _sha256: str | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))  # equal documents may differ in the order of keys

    @property
    def sha256(self) -> str:
        """SHA-256 of the file this was loaded from, else of what `save` would write."""
        return self._sha256 or hashlib.sha256(self.to_text().encode()).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads and validates a file; `InvalidInput` names what is wrong with it."""
        content = _read(Path(path))
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path}: not UTF-8 text at byte {error.start}; write it again") from None
        document = cls.parse(text, source=str(path))
        document._sha256 = hashlib.sha256(content).hexdigest()
        return document

    @classmethod
    def parse(cls, text: str, *, source: str) -> Self:
        """Validates the text of a file; `source` is how messages call it."""
        return cls.from_dict(_decode(text, source=source), source=source)

    @classmethod
    def from_dict(cls, data: object, *, source: str = "input") -> Self:
        """Validates plain data; `source` is how messages call it."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise InvalidInput(_describe(error, cls, source)) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Pydantic's copy; one that differs is no longer what the file holds, so it forgets the file's SHA-256."""
        copy = super().model_copy(update=update, deep=deep)
        if update:
            copy._sha256 = None
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the format's order, without fields that are unset."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_text(self) -> str:
        """The file's text."""
        return json.dumps(self.to_dict(), indent=1) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes the file; `InvalidInput` if the path cannot be written."""
        try:
            Path(path).write_bytes(self.to_text().encode())
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written ({error.strerror}); choose another path") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror}); check the path") from None


class _YamlLoader(yaml.SafeLoader):
    """Safe YAML with 1e-3 as a number and no key twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        _unique([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)])
        return node


class _YamlDumper(yaml.SafeDumper):
    """Safe YAML that quotes what `_YamlLoader` would take for a number."""


for _yaml in (_YamlLoader, _YamlDumper):
    _yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )


def to_yaml(data: dict[str, Any]) -> str:
    """Plain data as YAML that `Document.parse` reads back."""
    return yaml.dump(data, Dumper=_YamlDumper, sort_keys=False)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in [k for k, _ in pairs[:i]])
        raise InvalidInput(f"key {twice!r} appears twice; keep one of them")
    return seen


TRUNCATED = "The file seems to be truncated; write it again."


def _decode(text: str, *, source: str) -> object:
    if not text.strip():
        raise InvalidInput(f"{source}: the file is empty; write it again")
    try:
        if _is_yaml(text, source):
            return yaml.load(text, Loader=_YamlLoader)
        return json.loads(text, object_pairs_hook=_unique)
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        ends_early = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
        remedy = TRUNCATED if ends_early else "Fix it there, or name the file .yaml if it is YAML."
        raise InvalidInput(f"{source}: not valid JSON at {where}: {error.msg}. {remedy}") from None
    except Exception as error:  # a PyYAML constructor that meets a wrong value may raise anything
        raise InvalidInput(f"{source}: {_yaml_fault(error, text)}") from None


def _is_yaml(text: str, source: str) -> bool:
    """By the file's ending; where that says neither, text that opens a brace or a bracket is taken for JSON."""
    if source.endswith((".yaml", ".yml", ".json")):
        return not source.endswith(".json")
    return not text.lstrip().startswith(("{", "["))


def _yaml_fault(error: Exception, text: str) -> str:
    """What is wrong with YAML text, and the remedy. Only PyYAML's own errors know where."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return (
            f"not valid YAML: a value cannot be read ({' '.join(str(error).split())}). Fix it or write the file again."
        )
    where = f"not valid YAML at line {mark.line + 1}, column {mark.column + 1}"
    if mark.index >= len(text.rstrip()):
        return f"{where}: the file ends there. {TRUNCATED}"
    return f"{where}: {getattr(error, 'problem', None) or 'unexpected'}. Fix it there."


_RULES = {
    "dict_type": "must be keys with values",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
}
"""Pydantic's kinds of errors in the words of people who write files; a description of the field follows."""


def _rule(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """What the value of a field has to be."""
    kind = detail["type"]
    if kind == "model_type":
        text = f"must be keys with values: {', '.join(_model_at(model, (*detail['loc'], '')).model_fields)}"
    else:
        text = _RULES.get(kind, detail["msg"].removeprefix("Value error, "))
        text = text.replace("Input should be ", "must be ", 1)
    if detail["input"] is None and kind.endswith("_type"):
        text += "; nothing is there, so the file may be truncated"
    return text[:1].lower() + text[1:]


def _path(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).lstrip(".")


def _describe(error: ValidationError, model: type[BaseModel], source: str) -> str:
    """One line: file, field, value, rule; and how many more fields are wrong."""
    errors = error.errors()
    inner = {d["loc"][:depth] for d in errors for depth in range(len(d["loc"]))}
    details = [d for d in errors if d["loc"] not in inner]  # the error of a container repeats its part's
    first = details[0]
    field, rule, value = _path(first["loc"]), _rule(first, model), first["input"]
    if first["type"] == "missing":
        text = f"{source}: {field} is missing"
    elif first["type"] == "extra_forbidden":
        known = ", ".join(_model_at(model, first["loc"]).model_fields)
        text = f"{source}: {field} = {_show(value)}: unknown key; the keys here are {known}"
    elif first["loc"][-1:] == ("[key]",):
        text = f"{source}: {_path(first['loc'][:-2])}: the key {_show(value)} is not text; put it in quotes"
    elif isinstance(value, Mapping):
        text = f"{source}: {field}{': ' if field else ''}{rule}"
    else:
        text = f"{source}: {field or 'the whole file'} = {_show(value)}: {rule}"
    name = next((p for p in reversed(first["loc"]) if isinstance(p, str)), "")
    info = _model_at(model, first["loc"]).model_fields.get(name)
    if info is not None and info.description:
        text += f" ({name}: {info.description})"
    if len(details) > 1:
        text += f" [and {len(details) - 1} more]"
    return text


def _model_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The model whose field the location ends in."""
    for part in loc[:-1]:
        info = model.model_fields.get(part) if isinstance(part, str) else None
        if info is not None:
            model = next((m for m in _models_in(info.annotation)), model)
    return model


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _models_in(inner)]


def _show(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
