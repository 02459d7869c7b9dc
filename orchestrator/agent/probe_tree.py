"""Runs in the serving interpreter, environment and folder: which package would it load? Request on stdin, one marked
line on stdout. The package itself is not imported."""

import importlib.util
import json
import os
import re
import sys
import sysconfig
from typing import Dict, Optional

MARK = "DYNSPEC-PROBE "
VERSION = re.compile(
    r"""^(?:__version__|version)(?:\s*=\s*(?:__version__|version))?\s*=\s*['"]([^'"]+)['"]""", re.M
)


def find_package(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise LookupError("{} does not find a package {!r}".format(sys.executable, name))
    if spec.origin and os.path.basename(spec.origin) == "__init__.py":
        return os.path.dirname(os.path.abspath(spec.origin))
    places = list(spec.submodule_search_locations or [])
    if len(places) != 1:
        raise LookupError("{!r} is not one package folder: {}".format(name, places or spec.origin))
    return os.path.abspath(places[0])


def written_version(path: str) -> Optional[str]:
    for name in ("version.py", "_version.py", "__init__.py"):
        try:
            with open(os.path.join(path, name), encoding="utf-8", errors="replace") as stream:
                found = VERSION.search(stream.read())
        except OSError:
            continue
        if found:
            return found.group(1)
    return None


def metadata_version(name: str, path: str) -> Optional[str]:
    """Only of the distribution that lies beside this very folder: shadowed copies have metadata too."""
    from importlib import metadata

    try:
        distribution = metadata.distribution(name)
        beside = os.path.realpath(str(distribution.locate_file(name))) == os.path.realpath(path)
        return distribution.version if beside else None
    except Exception:  # noqa: BLE001 - damaged metadata is as good as none
        return None


def is_editable(path: str) -> bool:
    """Not in one of the interpreter's own package folders."""
    import site

    roots = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    roots.update(site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    roots.add(site.getusersitepackages())
    parent = os.path.realpath(os.path.dirname(path))
    return parent not in {os.path.realpath(root) for root in roots}


def as_utf8(path: Optional[str]) -> Optional[str]:
    """A path as the agent writes it, whatever encoding this interpreter's locale has."""
    return None if path is None else os.fsencode(path).decode("utf-8", "surrogateescape")


def main() -> None:
    request = json.loads(sys.stdin.read())
    name = request["package"]
    answer: Dict[str, object] = {
        "python": as_utf8(sys.executable),
        "python_version": "{}.{}.{}".format(*sys.version_info[:3]),
        "bytecode_prefix": as_utf8(getattr(sys, "pycache_prefix", None)),
    }
    try:
        path = find_package(name)
        answer["path"] = as_utf8(path)
        answer["version"] = written_version(path) or metadata_version(name, path)
        answer["editable"] = is_editable(path)
    except (ImportError, LookupError, ValueError, AttributeError) as error:
        answer["problem"] = str(error)
    sys.stdout.write("\n" + MARK + json.dumps(answer) + "\n")


main()
