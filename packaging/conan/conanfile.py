"""Recipe of libattn for Conan 2: `conan create packaging/conan --build=missing`.

The version is that of CMakeLists.txt. WebGPU is left out: its headers are not in Conan Center.
"""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rm, rmdir
from conan.tools.gnu import PkgConfigDeps

SOURCES = (
    "CMakeLists.txt",
    "LICENSE",
    "bench/*",
    "cli/*",
    "cmake/*",
    "harness/*",
    "include/*",
    "src/*",
)


class LibattnConan(ConanFile):
    name = "libattn"
    description = "Exact softmax attention: forward, backward and decode in linear memory"
    license = "Apache-2.0"
    topics = ("attention", "transformer", "simd", "cuda")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "shared": [True, False],
        "fPIC": [True, False],
        "command": [True, False],
        "cuda": [True, False],
        "openmp": [True, False],
    }
    default_options = {
        "shared": True,
        "fPIC": True,
        "command": False,
        "cuda": True,
        "openmp": True,
    }
    implements = ["auto_shared_fpic"]

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, "..", "..", "CMakeLists.txt"))
        self.version = re.search(r"project\(\s*attn\s+VERSION\s+([\d.]+)", text)[1]

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in SOURCES:
            copy(self, pattern, root, self.export_sources_folder, excludes="bench/results/*")

    def requirements(self):
        self.requires("highway/[>=1.0.3 <2]")
        self.requires("nlohmann_json/[>=3.11 <4]")
        if self.options.cuda:
            self.requires("xxhash/[>=0.8.1 <0.9]")
        if self.options.command:
            self.requires("cli11/[>=2.1 <3]")
            self.requires("fmt/[>=9 <12]")

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.25]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        tool = CMakeToolchain(self)
        for name in ("TESTS", "BENCH", "EXAMPLES"):
            tool.cache_variables[f"ATTN_BUILD_{name}"] = "OFF"
        tool.cache_variables["ATTN_WEBGPU"] = "OFF"
        for name, option in (
            ("ATTN_BUILD_CLI", self.options.command),
            ("ATTN_CUDA", self.options.cuda),
            ("ATTN_OPENMP", self.options.openmp),
        ):
            tool.cache_variables[name] = "ON" if option else "OFF"
        for dependency in self.dependencies.host.values():
            if dependency.ref.name == "xxhash" and dependency.cpp_info.includedirs:
                include = dependency.cpp_info.aggregated_components().includedirs[0]
                tool.cache_variables["ATTN_XXHASH_INCLUDE"] = include
        tool.generate()
        CMakeDeps(self).generate()
        PkgConfigDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        library = os.path.join(self.package_folder, "lib")
        rmdir(self, os.path.join(library, "cmake"))  # CMakeDeps and PkgConfigDeps write these
        rmdir(self, os.path.join(library, "pkgconfig"))
        if self.options.shared:
            rm(self, "libattn.a", library)
        else:
            # The command links the shared library.
            rm(self, "libattn.so" if self.options.command else "libattn.so*", library)

    def package_info(self):
        info = self.cpp_info
        info.libs = ["attn"]
        info.set_property("cmake_file_name", "attn")
        info.set_property("cmake_target_name", "attn::attn")
        info.set_property("pkg_config_name", "attn")
        if self.settings.os in ("Linux", "FreeBSD"):
            info.system_libs = ["m", "pthread", "dl"]
            if not self.options.shared:
                info.system_libs.append("stdc++")
                if "highway" not in self.dependencies:  # the system's (system.profile)
                    info.system_libs.append("hwy")
                if self.options.openmp:
                    info.exelinkflags = info.sharedlinkflags = ["-fopenmp"]
