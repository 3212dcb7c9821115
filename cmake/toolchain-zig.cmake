# Cross-build with zig's compilers, which bring the C library and libc++ of every target. ATTN_ZIG_TARGET
# is the target ("aarch64-linux-gnu.2.28"), ATTN_ZIG_TOOLS a folder with cc, c++, ar and ranlib for it.
# tools/wheels.py writes that folder and passes both.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTN_ZIG_TARGET ATTN_ZIG_TOOLS)
if(ATTN_ZIG_TARGET MATCHES "windows")
  set(CMAKE_SYSTEM_NAME Windows)
elseif(ATTN_ZIG_TARGET MATCHES "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR ${ATTN_ZIG_TARGET})
foreach(tool C_COMPILER:cc CXX_COMPILER:c++ AR:ar RANLIB:ranlib)
  string(REGEX MATCH "(.*):(.*)" _ ${tool})
  set(CMAKE_${CMAKE_MATCH_1} ${ATTN_ZIG_TOOLS}/${CMAKE_MATCH_2})
endforeach()
# The wrapper writes no separate debug or resource files, and takes neither SDKs nor architectures.
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_ARCHITECTURES "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "")

# Nothing of the machine that builds: neither its headers nor its libraries.
set(CMAKE_FIND_ROOT_PATH /nonexistent)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
