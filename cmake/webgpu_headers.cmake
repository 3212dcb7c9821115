# Where webgpu.h and wgpu.h lie, the headers of the `wgpu` wheel: sets ATTN_WEBGPU_HEADERS and whether
# the backend is built, attn_webgpu_built. Only headers: the library is opened at run time.
set(ATTN_WEBGPU AUTO CACHE STRING "The WebGPU backend: AUTO builds it where webgpu.h of the wgpu wheel is found")
set_property(CACHE ATTN_WEBGPU PROPERTY STRINGS AUTO ON OFF)
set(ATTN_WEBGPU_HEADERS "" CACHE PATH "Folder of webgpu.h and wgpu.h (default: .venv, then python3's packages)")

set(attn_webgpu_built OFF)
if(NOT ATTN_WEBGPU)
  return()
endif()

set(folders ${ATTN_WEBGPU_HEADERS})
if(NOT folders)
  file(GLOB folders ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/wgpu/resources)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c
              "import importlib.util as u; print(u.find_spec('wgpu').submodule_search_locations[0])"
      OUTPUT_VARIABLE package
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(package)
      list(APPEND folders ${package}/resources)
    endif()
  endif()
endif()
foreach(folder IN LISTS folders)
  if(EXISTS ${folder}/webgpu.h AND EXISTS ${folder}/wgpu.h)
    set(ATTN_WEBGPU_HEADERS ${folder})
    set(attn_webgpu_built ON)
    break()
  endif()
endforeach()
if(NOT attn_webgpu_built AND NOT ATTN_WEBGPU STREQUAL "AUTO")
  message(FATAL_ERROR "ATTN_WEBGPU: no webgpu.h and wgpu.h; ./dev setup installs the wgpu wheel, which "
                      "has them, or name their folder in ATTN_WEBGPU_HEADERS")
endif()
if(attn_webgpu_built)
  # For examples and tools/gpu_bundle.sh.
  find_library(
    ATTN_WGPU_NATIVE
    NAMES wgpu_native-release wgpu_native
    PATHS ${ATTN_WEBGPU_HEADERS}
    NO_DEFAULT_PATH)
  mark_as_advanced(ATTN_WGPU_NATIVE)
  message(STATUS "WebGPU backend: headers of ${ATTN_WEBGPU_HEADERS}")
else()
  message(STATUS "WebGPU backend: left out, no webgpu.h")
endif()
