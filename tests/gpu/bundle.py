"""Offline bundle of real SGLang and small models for one GPU machine that reaches no package index.

    python -m tests.gpu.bundle 0.5.11            # -> .gpu/: site.tar.xz (about 40 MB), models/, about 56 MB in all

For x86-64 Linux with one Hopper GPU, Python 3.12 and torch 2.11.0+cu130 already there. Left out to stay small: kernels
for other GPU generations, FA3, flashinfer's CUTLASS headers, multimodal code, grammar back ends (0.5.11 has xgrammar);
so serve with `--attention-backend triton --sampling-backend pytorch --grammar-backend none`.

Model weights are not in the repository: `train_models.py` makes them on the GPU machine (about two minutes), or give a
folder that has them with --models.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
# What a release pins itself, beside the packages of requirements.txt that all of them share.
RELEASES: dict[str, dict[str, str]] = {
    "0.5.11": {"sglang-kernel": "0.4.2", "flashinfer-python": "0.6.8.post1", "transformers": "5.6.0"},
    "0.5.12.post1": {
        "sglang-kernel": "0.4.2.post2",
        "flashinfer-python": "0.6.11.post1",
        "transformers": "5.6.0",
    },
    "0.5.14": {"sglang-kernel": "0.4.4", "flashinfer-python": "0.6.12", "transformers": "5.8.1"},
}
GLIBC = ("2_34", "2_28", "2_27", "2_26", "2_24", "2_17", "2_5")
PLATFORMS = [
    *(f"manylinux_{version}_x86_64" for version in GLIBC),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
NOT_KERNELS = (
    "sgl_kernel/sm100/",
    "sgl_kernel/flash_ops",
    "sgl_kernel/flashmla_ops",
    "sgl_kernel/spatial_ops",
)
NOT_SITE = (
    "/__pycache__",
    "jedi/third_party",
    "flashinfer/data/cutlass",
    "flashinfer/data/spdlog",
    "sglang/multimodal_gen",
    "sglang/test",
    "torch_memory_saver_hook_mode_preload.abi3",
    "torch_memory_saver_hook_mode_torch.abi3",
    "_cu12.abi3",
)
# Whose grammar back end the bundle carries: 90 MB of headers and symbols, half a megabyte without.
GRAMMAR = {"0.5.11": "0.1.32"}


def pip(*words: str) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    fixed = [
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
        *platforms,
    ]
    subprocess.run([sys.executable, "-m", "pip", words[0], "-q", *fixed, *words[1:]], check=True)


def install(release: str, site: Path, work: Path) -> None:
    """Everything but the kernels whole; of the kernels only what a Hopper GPU loads."""
    own = dict(RELEASES[release])
    kernel = own.pop("sglang-kernel")
    pins = [f"{name}=={version}" for name, version in own.items()]
    pip(
        "install",
        "--no-compile",
        "--target",
        str(site),
        "-r",
        str(HERE / "requirements.txt"),
        f"sglang=={release}",
        *pins,
    )
    pip("download", "-d", str(work), f"sglang-kernel=={kernel}")
    wheel = next(work.glob("sglang_kernel-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        wanted = [
            name
            for name in archive.namelist()
            if (name.startswith("sgl_kernel/") or ".dist-info/" in name) and not name.startswith(NOT_KERNELS)
        ]
        archive.extractall(site, wanted)


def install_grammar(version: str, site: Path, work: Path) -> None:
    """xgrammar's Python files, and its library without symbols."""
    pip("download", "-d", str(work), f"xgrammar=={version}")
    with zipfile.ZipFile(next(work.glob("xgrammar-*.whl"))) as archive:
        archive.extractall(
            site, [name for name in archive.namelist() if name.endswith((".py", ".so", "METADATA"))]
        )
    for library in (site / "xgrammar").glob("*.so"):
        subprocess.run(["strip", "--strip-all", str(library)], check=True)


def pack(site: Path, target: Path) -> None:
    def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if any(part in info.name for part in NOT_SITE) or info.name.startswith("./bin") else info

    with tarfile.open(target, "w:xz", preset=6) as archive:
        archive.add(site, ".", filter=keep)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", choices=RELEASES)
    parser.add_argument("--out", type=Path, default=Path(".gpu"))
    parser.add_argument("--models", type=Path, help="a folder that train_models.py wrote")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site, work = Path(folder) / "site", Path(folder) / "wheels"
        work.mkdir()
        install(given.release, site, work)
        if given.release in GRAMMAR:
            install_grammar(GRAMMAR[given.release], site, work)
        pack(site, given.out / "site.tar.xz")
    if given.models is not None:
        shutil.copytree(given.models, given.out / "models", dirs_exist_ok=True)
    for file in sorted(given.out.rglob("*")):
        if file.is_file():
            print(f"{file.stat().st_size / 1e6:8.1f} MB  {file}")


if __name__ == "__main__":
    main()
