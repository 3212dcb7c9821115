# Runs the port's script where there is no vcpkg: stand-ins for the functions of vcpkg that it calls, with the
# same arguments, for one build (release). The libraries that libattn needs are the system's.
# usage: cmake -DPORT=folder -DFOLDER=work -DJOBS=n -P stand_ins.cmake
cmake_minimum_required(VERSION 3.25)
set(CURRENT_PORT_DIR ${PORT})
set(CURRENT_PACKAGES_DIR ${FOLDER}/installed)
set(FEATURES core command)

function(call)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_check_linkage)
endfunction()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 given "" "OUT_FEATURE_OPTIONS" "FEATURES")
  set(options)
  while(given_FEATURES)
    list(POP_FRONT given_FEATURES feature name)
    if(feature IN_LIST FEATURES)
      list(APPEND options -D${name}=ON)
    else()
      list(APPEND options -D${name}=OFF)
    endif()
  endwhile()
  set(${given_OUT_FEATURE_OPTIONS} ${options} PARENT_SCOPE)
endfunction()

function(vcpkg_find_acquire_program name)
  find_program(program pkg-config REQUIRED)
  set(${name} ${program} PARENT_SCOPE)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 given "" "SOURCE_PATH" "OPTIONS")
  call(${CMAKE_COMMAND} -S ${given_SOURCE_PATH} -B ${FOLDER} -G Ninja -DCMAKE_BUILD_TYPE=Release
       -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}
       -DATTN_WERROR=$ENV{ATTN_WERROR} -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16
       ${given_OPTIONS}) # flags and batches of the release build, for ccache
endfunction()

function(vcpkg_cmake_install)
  call(${CMAKE_COMMAND} --build ${FOLDER} -j ${JOBS})
  call(${CMAKE_COMMAND} --install ${FOLDER})
endfunction()

# Moves the package's files to share/NAME and makes them count their folders from there.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 given "" "PACKAGE_NAME;CONFIG_PATH" "")
  set(from ${CURRENT_PACKAGES_DIR}/${given_CONFIG_PATH})
  set(to ${CURRENT_PACKAGES_DIR}/share/${given_PACKAGE_NAME})
  file(MAKE_DIRECTORY ${to})
  file(GLOB files ${from}/*)
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)")
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text "${text}")
    string(REPLACE "${up}\n${up}" "${up}" text "${text}")
    cmake_path(GET file FILENAME name)
    file(WRITE ${to}/${name} "${text}")
  endforeach()
  file(REMOVE_RECURSE ${from})
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_copy_tools)
  cmake_parse_arguments(PARSE_ARGV 0 given "AUTO_CLEAN" "" "TOOL_NAMES")
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/tools/libattn)
  foreach(name IN LISTS given_TOOL_NAMES)
    file(RENAME ${CURRENT_PACKAGES_DIR}/bin/${name} ${CURRENT_PACKAGES_DIR}/tools/libattn/${name})
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 given "" "" "FILE_LIST")
  file(INSTALL ${given_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/libattn)
endfunction()

include(${PORT}/portfile.cmake)
