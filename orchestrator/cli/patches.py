"""patch list, patch show, patch check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completing import patch_names
from orchestrator.cli.given import path_of
from orchestrator.errors import DoesNotFit, PatchLoadError

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
PatchName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A carried patch; see: dynspec patch list.", autocompletion=patch_names
    ),
]


def register(app: typer.Typer) -> None:
    patch = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The patches that dynspec carries.")
    patch.command("list", epilog="Example: dynspec patch list")(list_patches)
    patch.command("show", epilog="Example: dynspec patch show spec_banner")(show)
    patch.command(
        "check",
        epilog="\b\nExample: dynspec patch check spec_banner --package-dir ~/venv/lib/python3.12/site-packages/sglang",
    )(check)
    app.add_typer(patch, name="patch")


def list_patches(as_json: AsJson = False) -> int:
    """Name, what it does, the versions it is listed for. 2 where one does not load, with its fault."""
    from orchestrator.cli.patch_text import broken_value, list_lines, patch_value
    from orchestrator.patchset import carried_patches

    carried = carried_patches()
    if as_json:
        listed = [patch_value(item) for item in carried.patches]
        broken = [broken_value(name, fault) for name, fault in carried.broken.items()]
        print(json.dumps({"schema": 1, "folder": carried.folder, "patches": listed, "broken": broken}))
    else:
        print("\n".join(list_lines(carried)))
    return PatchLoadError.exit_code if carried.broken else 0


def show(name: PatchName, as_json: AsJson = False) -> int:
    """What a patch edits, adds and refuses."""
    from orchestrator.cli.patch_text import patch_lines, patch_value
    from orchestrator.patchset import find_patch

    found = find_patch(name)
    if as_json:
        print(json.dumps({"schema": 1, **patch_value(found)}))
        return 0
    print("\n".join(patch_lines(found)))
    return 0


def check(
    name: PatchName,
    package_dir: Annotated[
        Path,
        typer.Option(
            "--package-dir",
            metavar="DIR",
            parser=path_of("--package-dir"),
            help="A folder that holds the package, on this machine.",
        ),
    ],
    as_json: AsJson = False,
) -> int:
    """Does it fit this tree? 0 fits, fits unlisted, or native; 4 with the reason."""
    from orchestrator.patchset import find_patch
    from orchestrator.patchset.fit import FitState
    from orchestrator.patchset.local import check_folder

    fit = check_folder(find_patch(name), package_dir)
    code = (
        0 if fit.state in (FitState.FITS, FitState.FITS_UNLISTED, FitState.NATIVE) else DoesNotFit.exit_code
    )
    if as_json:
        shown = {"patch": name, "state": str(fit.state), "reason": fit.reason, "exit_code": code}
        print(json.dumps({"schema": 1, **shown}))
    else:
        print(f"{name}: {fit.state.words}{': ' + fit.reason if fit.reason else ''}")
    return code
