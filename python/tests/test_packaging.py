"""The recipes of packaging/: one version, the options and files that the build has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "packaging"
if not RECIPES.is_dir():
    pytest.skip("the recipes are not next to the tests", allow_module_level=True)

CMAKE = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
VERSION = re.search(r"project\(\s*attn\s+VERSION\s+([\d.]+)", CMAKE)[1]


def text(name):
    return (RECIPES / name).read_text(encoding="utf-8")


def test_versions():
    assert json.loads(text("vcpkg/libattn/vcpkg.json"))["version"] == VERSION
    assert re.search(r'^  version: "([\d.]+)"$', text("conda/recipe.yaml"), re.M)[1] == VERSION


@pytest.mark.parametrize(
    "name",
    ["conan/conanfile.py", "conda/recipe.yaml", "debian/rules", "vcpkg/libattn/portfile.cmake"],
)
def test_options_exist(name):
    """Every option that a recipe sets is one of the build."""
    build = "".join(
        path.read_text(encoding="utf-8")
        for path in (
            ROOT / "CMakeLists.txt",
            *(ROOT / "cmake").glob("*"),
            *ROOT.glob("src/*/*.txt"),
        )
    )
    found = set(re.findall(r"ATTN_[A-Z_]*[A-Z]", text(name)))
    assert found and all(option in build for option in found)


def test_no_stand_in_is_missing():
    """packaging/vcpkg/stand_ins.cmake has every function of vcpkg that the port calls."""
    called = set(re.findall(r"^\s*(vcpkg_\w+)\(", text("vcpkg/libattn/portfile.cmake"), re.M))
    made = set(re.findall(r"^function\((vcpkg_\w+)", text("vcpkg/stand_ins.cmake"), re.M))
    assert called == made


def test_debian_packages_have_files():
    packages = re.findall(r"^Package: (\S+)$", text("debian/control"), re.M)
    files = {path.stem for path in (RECIPES / "debian").glob("*.install")}
    assert set(packages) == files and f"libattn{VERSION.split('.')[0]}" in files
