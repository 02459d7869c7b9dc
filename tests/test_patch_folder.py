"""`dynspec patch check` on a folder: read, judged, never imported and never changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.patchset import FitState, find_patch
from orchestrator.patchset.local import check_folder, folder_version
from tests.wheels import wheel_tree

BANNER = find_patch("spec_banner")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the patch touches in 0.5.11, with its version file."""
    for path in (*BANNER.paths, "_version.py", "__init__.py"):
        target = tmp_path / "sglang" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel_tree("0.5.11") / path, target)
    return tmp_path / "sglang"


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("version", "state"), [("0.5.8", "fits"), ("0.5.12.post1", "fits"), ("0.5.23", "native")]
)
def test_a_real_tree_is_recognised(version, state):
    assert folder_version(wheel_tree(version)) == version
    assert check_folder(BANNER, wheel_tree(version)).state == state


@pytest.mark.wheels
def test_an_edited_tree_is_unlisted_when_its_anchors_hold_and_a_misfit_when_not(tree):
    file = tree / "srt/speculative/eagle_worker.py"
    file.write_text(file.read_text() + "# edited here\n")
    assert check_folder(BANNER, tree).state is FitState.FITS_UNLISTED
    file.write_text(file.read_text().replace("class EAGLEWorker(", "class EAGLEWorkerOne("))
    fit = check_folder(BANNER, tree)
    assert (fit.state, "class EAGLEWorker" in fit.reason) == (FitState.MISFIT, True)


@pytest.mark.wheels
def test_a_lacking_file_is_named(tree):
    (tree / "srt/speculative/eagle_worker.py").unlink()
    assert "lacks srt/speculative/eagle_worker.py" in check_folder(BANNER, tree).reason


@pytest.mark.wheels
def test_a_tree_patched_by_hand_is_already_applied(tree):
    file = tree / "srt/server_args.py"
    (target,) = (target for target in BANNER.targets if target.path == "srt/server_args.py")
    file.write_text(target.edit(file.read_text(), unique=True))
    assert check_folder(BANNER, tree).state is FitState.ALREADY_APPLIED


def test_a_folder_that_is_no_package_is_refused_with_the_one_that_is(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        check_folder(BANNER, tmp_path / "nowhere")
    (tmp_path / "sglang").mkdir()
    with pytest.raises(UsageError, match="holds no Python package") as refusal:
        check_folder(BANNER, tmp_path)
    assert f"did you mean {tmp_path / 'sglang'}?" in refusal.value.help


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"sglang/_version.py": "__version__ = version = '1.2'\n"}, "1.2"),
        ({"sglang/version.py": '__version__ = "1.3"\n', "sglang/_version.py": "version = '1.2'\n"}, "1.3"),
        (
            {
                "sglang/version.py": "from ._version import version\n",
                "sglang/_version.py": "version = '1.2'\n",
            },
            "1.2",
        ),
        ({"sglang/_version.py": "version = (\n"}, None),
        ({"sglang-1.4.dist-info/METADATA": ""}, "1.4"),
        ({"sglang-1.4.dist-info/METADATA": "", "sglang-1.5.dist-info/METADATA": ""}, None),
        ({"sglang_router-9.dist-info/METADATA": ""}, None),
    ],
)
def test_the_version_is_what_is_written_or_nothing(tmp_path, files, version):
    (tmp_path / "sglang").mkdir()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert folder_version(tmp_path / "sglang") == version
