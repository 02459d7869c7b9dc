"""Patches: loaded from folders, judged against a serving tree, built into the exact texts of a boot's tree.

`load_patch`, `find_patch`, `carried_patches` and `available_patches` read the disk; everything else here is a pure
function of values.
"""

from orchestrator.patchset.build import build_patch_set, decode_source, needed_files
from orchestrator.patchset.fit import Fit, FitState, check_fit
from orchestrator.patchset.load import Carried, available_patches, carried_patches, find_patch, load_patch
from orchestrator.patchset.patch import Add, Listing, Patch, Target, VersionRule

__all__ = [
    "Add",
    "Carried",
    "Fit",
    "FitState",
    "Listing",
    "Patch",
    "Target",
    "VersionRule",
    "available_patches",
    "build_patch_set",
    "carried_patches",
    "check_fit",
    "decode_source",
    "find_patch",
    "load_patch",
    "needed_files",
]
