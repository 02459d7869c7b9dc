"""A carried patch as lines and as a value, for `dynspec patch list` and `show`."""

from __future__ import annotations

from typing import Any

from orchestrator.errors import PatchLoadError
from orchestrator.patchset import Carried, Patch
from orchestrator.plain_text import clean


def list_lines(carried: Carried) -> list[str]:
    """Each patch with what it is for, then those that do not load, with their faults."""
    lines = []
    for item in carried.patches:
        versions = ", ".join(item.listings) or "(no version is listed)"
        lines += [f"{item.name}  {item.summary}", f"  for {item.package} {versions}"]
    for name, fault in carried.broken.items():
        lines += [f"{name}  DOES NOT LOAD: {fault.message}", *(f"  {detail}" for detail in fault.details)]
    return [clean(line) for line in lines or [f"there are no patches in {carried.folder}"]]


def broken_value(name: str, fault: PatchLoadError) -> dict[str, Any]:
    """A patch that does not load, for programs."""
    return {"name": name, "problem": fault.message, "details": list(fault.details)}


def patch_lines(patch: Patch) -> list[str]:
    """What it edits and adds, for which versions, and where it does not apply."""
    lines = [
        f"{patch.name}: {patch.summary}",
        f"  package  {patch.package}",
        f"  workers  {', '.join(patch.workers)}",
    ]
    lines += [f"  flag     --{flag}" for flag in patch.flags]
    lines += [
        f"  edits    {target.path}{' (where present)' if target.optional else ''}" for target in patch.targets
    ]
    lines += [f"  adds     {add.path}" for add in patch.adds]
    lines += [
        f"  listed   {version}{'' if listing.status == 'listed' else f' ({listing.status})'}"
        for version, listing in patch.listings.items()
    ]
    lines += [f"  native   {rule.versions}: {rule.text}" for rule in patch.native]
    lines += [f"  refused  {rule.versions}: {rule.text}" for rule in patch.refused]
    return lines


def patch_value(patch: Patch) -> dict[str, Any]:
    """The same for programs. `versions`: release -> how well it is known there."""
    return {
        "name": patch.name,
        "summary": patch.summary,
        "package": patch.package,
        "workers": list(patch.workers),
        "flags": list(patch.flags),
        "edits": [{"path": target.path, "optional": target.optional} for target in patch.targets],
        "adds": [add.path for add in patch.adds],
        "versions": {version: str(listing.status) for version, listing in patch.listings.items()},
        "native": [{"versions": str(rule.versions), "text": rule.text} for rule in patch.native],
        "refused": [{"versions": str(rule.versions), "text": rule.text} for rule in patch.refused],
    }
