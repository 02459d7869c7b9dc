"""`dynspec patch show` as lines."""

from __future__ import annotations

from orchestrator.patchset import Patch


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
    lines += [f"  listed   {version} ({listing.status})" for version, listing in patch.listings.items()]
    lines += [f"  native   {rule.versions}: {rule.text}" for rule in patch.native]
    lines += [f"  refused  {rule.versions}: {rule.text}" for rule in patch.refused]
    return lines
