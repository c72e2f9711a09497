# Compiler settings that hold for every target, and where results are put.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

# Every target of ours links this; nothing of it reaches users of the installed package.
add_library(linescan_settings INTERFACE)
# -fPIC everywhere, programs too, so that one precompiled header of Torch serves them all.
target_compile_options(linescan_settings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-Wall;-Wextra;-Wno-sign-compare>")
if(LINESCAN_SANITIZE)
  # More of debug information than lines takes long to compile.
  target_compile_options(linescan_settings INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g1)
  target_link_options(linescan_settings INTERFACE -fsanitize=address,undefined)
endif()

# linescan_in_batches(targets...): their files are compiled several at once. What Torch's headers instantiate costs 6 s
# whenever the compiler starts, precompiled or not; a batch pays it once. Names in anonymous namespaces must
# therefore differ between the files of a target.
option(LINESCAN_BATCHES "Compile files that include Torch in batches; OFF for work on single files" ON)
function(linescan_in_batches)
  if(LINESCAN_BATCHES)
    set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# linescan_library(name SOURCES... ): a static library of ours, with the repository root as include path.
function(linescan_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:linescan_settings>)
endfunction()
