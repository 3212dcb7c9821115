"""Builds and runs the programs of tests/consumers against the package, and its command."""

import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.cmake import CMake, cmake_layout


class LibattnTest(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    generators = "CMakeDeps", "CMakeToolchain"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        cmake_layout(self)

    def build(self):
        cmake = CMake(self)
        cmake.configure(
            build_script_folder=os.path.join("..", "..", "..", "tests", "consumers", "cmake")
        )
        cmake.build()

    def test(self):
        if can_run(self):
            for name in ("consumer_c", "consumer_cpp"):
                self.run(os.path.join(self.cpp.build.bindir, name), env="conanrun")
            if self.dependencies[self.tested_reference_str].options.command:
                self.run("attn check --backend cpu --limit 10", env="conanrun")
