# The CUDA compiler and what it compiles for (docs/cuda.md).
#
# nvcc 13 is taken from CUDACXX, the PATH, /usr/local/cuda, or NVIDIA's wheels beside the torch that
# is used or in .venv. CMake 3.25 knows neither nvcc 13's flag for C++20 nor its newest
# architectures: it is told the former, and the latter are passed by hand.
#
# Defines: linescan_cuda_kernels(), linescan::cudart_static, LINESCAN_MACHINE_CODE and LINESCAN_PTX
# ("80,90a").

if(NOT CMAKE_CUDA_COMPILER)
  if(LINESCAN_TORCH)
    find_package(LibTorch 2.11 REQUIRED)
    set(_wheels "${LibTorch_DIR}/../nvidia/cu13/bin")
  endif()
  file(GLOB _own_wheels "${PROJECT_SOURCE_DIR}/.venv/lib/python*/site-packages/nvidia/cu13/bin")
  find_program(LINESCAN_NVCC NAMES "$ENV{CUDACXX}" nvcc
               PATHS /usr/local/cuda/bin ${_wheels} ${_own_wheels} DOC "The CUDA compiler")
  if(NOT LINESCAN_NVCC)
    message(FATAL_ERROR "nvcc 13 not found: set CUDACXX, or install its wheels with "
                        "'tools/setup.sh cuda' (docs/cuda.md)")
  endif()
  set(CMAKE_CUDA_COMPILER "${LINESCAN_NVCC}")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)    # linescan_cuda_kernels() passes them
set(CMAKE_CUDA_RUNTIME_LIBRARY None) # whoever links a program or a library says which run-time
enable_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.")
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is nvcc ${CMAKE_CUDA_COMPILER_VERSION}, expected 13")
endif()
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)

# Machine code for the GPUs of this machine; for an H100 or H200 where there is none.
function(_own_architectures result)
  get_filename_component(_folder "${CMAKE_CUDA_COMPILER}" REALPATH)
  get_filename_component(_folder "${_folder}" DIRECTORY)
  execute_process(COMMAND "${_folder}/__nvcc_device_query" OUTPUT_VARIABLE _found ERROR_QUIET
                  RESULT_VARIABLE _failed)
  if(_failed OR NOT _found MATCHES "^[0-9]")
    set(_found "90")
  endif()
  string(REGEX MATCHALL "[0-9]+" _found "${_found}")
  list(REMOVE_DUPLICATES _found)
  list(TRANSFORM _found REPLACE "^90$" "90a")
  list(TRANSFORM _found APPEND "-real")
  set(${result} "${_found}" PARENT_SCOPE)
endfunction()

set(_architectures "${LINESCAN_CUDA_ARCHITECTURES}")
if(_architectures STREQUAL "")
  _own_architectures(_architectures)
elseif(_architectures STREQUAL "all")
  set(_architectures 80-real 86-real 89-real 90a-real 100-real 120-real 80-virtual 120-virtual)
endif()

# "90a-real": machine code; "80-virtual": PTX; "86": both.
set(_cuda_options "")
set(LINESCAN_MACHINE_CODE "")
set(LINESCAN_PTX "")
foreach(_architecture IN LISTS _architectures)
  if(NOT _architecture MATCHES "^([0-9]+[af]?)(-real|-virtual)?$")
    message(FATAL_ERROR "LINESCAN_CUDA_ARCHITECTURES: '${_architecture}' is none of all, 90a, "
                        "90a-real, 90a-virtual and their like")
  endif()
  set(_number "${CMAKE_MATCH_1}")
  set(_kind "${CMAKE_MATCH_2}")
  if(_architecture MATCHES "^[1-7][0-9]([af-]|$)")
    message(FATAL_ERROR "LINESCAN_CUDA_ARCHITECTURES: the kernels need 80, not ${_number}")
  endif()
  if(NOT _kind STREQUAL "-virtual")
    list(APPEND _cuda_options "-gencode=arch=compute_${_number},code=sm_${_number}")
    list(APPEND LINESCAN_MACHINE_CODE "${_number}")
  endif()
  if(NOT _kind STREQUAL "-real")
    list(APPEND _cuda_options "-gencode=arch=compute_${_number},code=compute_${_number}")
    list(APPEND LINESCAN_PTX "${_number}")
  endif()
endforeach()
list(JOIN LINESCAN_MACHINE_CODE "," LINESCAN_MACHINE_CODE)
list(JOIN LINESCAN_PTX "," LINESCAN_PTX)
message(STATUS "CUDA machine code: ${LINESCAN_MACHINE_CODE}; PTX: ${LINESCAN_PTX}")

# linescan_cuda_kernels(target): compiles the .cu files of the target for those architectures.
function(linescan_cuda_kernels target)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:${_cuda_options};-Xcompiler=-fPIC,-Wall>")
endfunction()

# With the static run-time a program starts where there is no driver and no toolkit.
find_library(LINESCAN_CUDART_STATIC cudart_static REQUIRED
  PATHS "${CMAKE_CUDA_COMPILER_TOOLKIT_ROOT}" PATH_SUFFIXES targets/x86_64-linux/lib lib64 lib
  NO_DEFAULT_PATH)
find_package(Threads REQUIRED)
add_library(linescan::cudart_static STATIC IMPORTED)
set_target_properties(linescan::cudart_static PROPERTIES
  IMPORTED_LOCATION "${LINESCAN_CUDART_STATIC}"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES}"
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt")
mark_as_advanced(LINESCAN_NVCC LINESCAN_CUDART_STATIC)
