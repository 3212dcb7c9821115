# Takes what libattn needs from the system, without Conan's packages:
#   conan create packaging/conan --profile packaging/conan/system.profile
include(default)

[settings]
compiler.cppstd=20

[platform_requires]
highway/1.0.3
nlohmann_json/3.11.2
xxhash/0.8.1
cli11/2.1.2
fmt/9.1.0

[platform_tool_requires]
cmake/3.25.1
