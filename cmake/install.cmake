# What `cmake --install` lays down: headers, both libraries, find_package(attn) and attn.pc.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(
  TARGETS attn
  EXPORT attn_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(
  TARGETS attn_static
  EXPORT attn_static_targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(
  EXPORT attn_targets
  FILE attn-targets.cmake
  NAMESPACE attn::
  DESTINATION ${package_dir})
install(
  EXPORT attn_static_targets
  FILE attn-static-targets.cmake
  NAMESPACE attn::
  DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/attn-config.cmake.in
                              ${PROJECT_BINARY_DIR}/attn-config.cmake INSTALL_DESTINATION
                              ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attn-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attn-config.cmake
              ${PROJECT_BINARY_DIR}/attn-config-version.cmake DESTINATION ${package_dir})

# The flags that a static link needs of OpenMP are the ones that compile it.
set(ATTN_PC_PRIVATE "-lstdc++ -lm -pthread -ldl")
if(ATTN_LINKS_OPENMP)
  string(PREPEND ATTN_PC_PRIVATE "${OpenMP_CXX_FLAGS} ")
endif()
# Relative, so that the tree may be moved.
file(RELATIVE_PATH ATTN_PC_INCLUDE /${CMAKE_INSTALL_LIBDIR} /${CMAKE_INSTALL_INCLUDEDIR})
configure_file(${PROJECT_SOURCE_DIR}/cmake/attn.pc.in ${PROJECT_BINARY_DIR}/attn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
