"""The manifest of a patch folder, read strictly: unknown or repeated keys and wrong types are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.errors import PatchLoadError


def _relative(path: str) -> str:
    if not path or path.startswith("/") or "\\" in path or any(p in {"", ".", ".."} for p in path.split("/")):
        raise ValueError("a path must be relative, with '/', without '.' or '..'")
    return path


def _specifier(text: str) -> str:
    specifier(text)
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is not a version; quote it in the YAML") from error
    return text


def specifier(text: str) -> SpecifierSet:
    """A PEP 440 set such as `>=0.5.14,<0.6`; a bare `0.5.13.*` means `==0.5.13.*`."""
    try:
        return SpecifierSet(text if re.match(r"\s*[<>=!~]", text) else f"=={text.strip()}")
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is not a range of versions such as '>=0.5.14' or '0.5.13.*'") from error


# PyYAML lets what it calls come through: dates that are none, lists as keys, numbers and nesting without end.
_NOT_YAML = (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError)

Relative = Annotated[str, AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Range = Annotated[str, AfterValidator(_specifier)]
VersionName = Annotated[str, AfterValidator(_version)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TargetEntry(_Strict):
    path: Relative
    patcher: Relative | None = None
    diff: Relative | None = None
    optional: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> TargetEntry:
        if (self.patcher is None) == (self.diff is None):
            raise ValueError("give exactly one of `patcher` and `diff`")
        return self


class AddEntry(_Strict):
    path: Relative
    source: Relative


class ListingEntry(_Strict):
    status: str
    files: dict[Relative, Sha256]
    after: dict[Relative, Sha256] = Field(default_factory=dict)


class NativeEntry(_Strict):
    versions: Range
    instead: str


class RefusedEntry(_Strict):
    versions: Range
    reason: str


class Manifest(_Strict):
    """`manifest.yaml` as written."""

    schema_: Literal[1] = Field(alias="schema")
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    summary: str
    package: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "sglang"
    workers: list[Literal["v1", "v2"]] = Field(default_factory=list)
    flags: list[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]] = Field(default_factory=list)
    targets: list[TargetEntry] = Field(default_factory=list)
    adds: list[AddEntry] = Field(default_factory=list)
    versions: dict[VersionName, ListingEntry] = Field(default_factory=dict)
    native: list[NativeEntry] = Field(default_factory=list)
    refused: list[RefusedEntry] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        touched = [target.path for target in self.targets] + [add.path for add in self.adds]
        if not touched:
            raise ValueError("the patch touches no file: give `targets` or `adds`")
        if repeated := {path for path in touched if touched.count(path) > 1}:
            raise ValueError(f"listed twice: {', '.join(sorted(repeated))}")
        required = {target.path for target in self.targets if not target.optional}
        targets = {target.path for target in self.targets}
        for version, listing in self.versions.items():
            _check_listing(version, listing, required, targets)
        return self


def _check_listing(version: str, listing: ListingEntry, required: set[str], targets: set[str]) -> None:
    if missing := required - set(listing.files):
        raise ValueError(f"versions.{version}.files lacks {', '.join(sorted(missing))}")
    if unknown := set(listing.files) - targets:
        raise ValueError(f"versions.{version}.files names no target: {', '.join(sorted(unknown))}")
    if listing.after and set(listing.after) != set(listing.files):
        raise ValueError(f"versions.{version}.after must name the same files as `files`")


def read_manifest(text: str, where: str) -> Manifest:
    """The checked manifest. Raises PatchLoadError naming `where`, the key path and the value as read."""
    try:
        data = yaml.load(text, Loader=_UniqueKeys)
    except _NOT_YAML as error:
        raise PatchLoadError(f"{where}: not readable as YAML: {' '.join(str(error).split())}") from error
    try:
        return Manifest.model_validate(data)
    except ValidationError as error:
        details = tuple(_line(item) for item in error.errors())
        raise PatchLoadError(f"{where}: {len(details)} thing(s) wrong", details=details) from error
    except UnicodeEncodeError as error:  # "\ud800" in YAML
        half = error.object[error.start]
        raise PatchLoadError(
            f"{where}: {half!r} is half a character and can't be written to a file"
        ) from error


def _line(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "(top level)"
    message = item["msg"].removeprefix("Value error, ")
    value = "" if isinstance(item["input"], dict | list) else f" (read: {item['input']!r})"
    return f"{path}: {message}{value}"


class _UniqueKeys(yaml.SafeLoader):
    """SafeLoader that refuses a repeated key, of which YAML would keep the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is repeated", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
