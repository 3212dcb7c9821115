# An overlay port on the sources that it lies in:
#   vcpkg install libattn --overlay-ports=packaging/vcpkg
# WebGPU is left out: vcpkg has no headers of wgpu-native.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
cmake_path(ABSOLUTE_PATH CURRENT_PORT_DIR NORMALIZE OUTPUT_VARIABLE port)
cmake_path(APPEND port .. .. .. OUTPUT_VARIABLE SOURCE_PATH)
cmake_path(NORMAL_PATH SOURCE_PATH)

vcpkg_check_features(OUT_FEATURE_OPTIONS feature_options FEATURES command ATTN_BUILD_CLI)
vcpkg_find_acquire_program(PKGCONFIG)
vcpkg_cmake_configure(
  SOURCE_PATH ${SOURCE_PATH}
  OPTIONS
    ${feature_options}
    -DPKG_CONFIG_EXECUTABLE=${PKGCONFIG}
    -DATTN_BUILD_TESTS=OFF
    -DATTN_BUILD_BENCH=OFF
    -DATTN_BUILD_EXAMPLES=OFF
    -DATTN_WEBGPU=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME attn CONFIG_PATH lib/cmake/attn)
vcpkg_fixup_pkgconfig()
if("command" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES attn AUTO_CLEAN)
endif()

# One kind of library in a port: attn-config.cmake leaves out attn::static where its file is missing.
file(GLOB static_files
  ${CURRENT_PACKAGES_DIR}/lib/libattn.a
  ${CURRENT_PACKAGES_DIR}/debug/lib/libattn.a
  ${CURRENT_PACKAGES_DIR}/share/attn/attn-static-targets*.cmake)
file(REMOVE_RECURSE ${static_files} ${CURRENT_PACKAGES_DIR}/debug/include)
vcpkg_install_copyright(FILE_LIST ${SOURCE_PATH}/LICENSE)
