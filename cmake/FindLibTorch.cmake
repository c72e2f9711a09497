# LibTorch out of a Python environment that holds the torch wheel. Its CUDA half is a target of its
# own, which nothing but the library of CUDA operators links: programs start without it.
#
# find_package(Torch) of the wheel wants a CUDA toolkit; a CPU program needs two libraries, so they
# are imported by hand. Searched in order: LINESCAN_PYTHON, the active virtual environment, the
# project's own .venv, python3 on the PATH. `import torch` need not work there.
#
# Defines: linescan::libtorch, linescan::libtorch_cuda where the environment has it, LibTorch_FOUND, LibTorch_VERSION, LibTorch_DIR, LibTorch_PYTHON.

set(_candidates "${LINESCAN_PYTHON}" "$ENV{VIRTUAL_ENV}/bin/python"
    "${PROJECT_SOURCE_DIR}/.venv/bin/python" "python3")
set(_locate "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")

if(NOT LibTorch_DIR)
  foreach(_python IN LISTS _candidates)
    if(_python STREQUAL "")
      continue()
    endif()
    execute_process(COMMAND "${_python}" -c "${_locate}" OUTPUT_VARIABLE _dir ERROR_QUIET
                    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _failed)
    if(NOT _failed AND EXISTS "${_dir}/lib/libtorch_cpu.so")
      set(LibTorch_DIR "${_dir}" CACHE PATH "Folder of the torch package")
      set(LibTorch_PYTHON "${_python}" CACHE FILEPATH "Python of the environment that has torch")
      break()
    endif()
  endforeach()
endif()

if(LibTorch_DIR AND EXISTS "${LibTorch_DIR}/version.py")
  file(STRINGS "${LibTorch_DIR}/version.py" _line REGEX "^__version__ = ")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" LibTorch_VERSION "${_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_DIR VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET linescan::libtorch)
  # The wheel's libtorch_cpu needs these two of NVIDIA's libraries to load, GPU or not.
  file(GLOB _nvidia LIST_DIRECTORIES true "${LibTorch_DIR}/../nvidia/cu13/lib"
       "${LibTorch_DIR}/../nvidia/*/lib")
  add_library(linescan_libtorch_cpu SHARED IMPORTED)
  set_target_properties(linescan_libtorch_cpu PROPERTIES IMPORTED_LOCATION "${LibTorch_DIR}/lib/libtorch_cpu.so")
  add_library(linescan_libc10 SHARED IMPORTED)
  set_target_properties(linescan_libc10 PROPERTIES IMPORTED_LOCATION "${LibTorch_DIR}/lib/libc10.so")
  add_library(linescan::libtorch INTERFACE IMPORTED)
  # The wheel brings headers of another fmt than the one we link; ours must be found first.
  find_path(LibTorch_FMT_INCLUDE fmt/core.h REQUIRED)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/generated/fmt_first")
  file(CREATE_LINK "${LibTorch_FMT_INCLUDE}/fmt" "${CMAKE_BINARY_DIR}/generated/fmt_first/fmt" SYMBOLIC)
  target_include_directories(linescan::libtorch SYSTEM INTERFACE
    "${CMAKE_BINARY_DIR}/generated/fmt_first" "${LibTorch_DIR}/include" "${LibTorch_DIR}/include/torch/csrc/api/include")
  # at::parallel_for is a header template that runs serially, without a word, unless the including
  # file is compiled for OpenMP. The run-time is the wheel's own libgomp: one a process.
  target_compile_options(linescan::libtorch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  target_link_libraries(linescan::libtorch INTERFACE linescan_libtorch_cpu linescan_libc10
    "${LibTorch_DIR}/lib/libgomp.so.1")
  target_link_options(linescan::libtorch INTERFACE "LINKER:-rpath-link,${LibTorch_DIR}/lib")
  foreach(_dir IN LISTS _nvidia)
    target_link_options(linescan::libtorch INTERFACE "LINKER:-rpath-link,${_dir}")
  endforeach()

  # Besides libtorch_cuda, the environment must have its CUDA run-time. CUDA's headers are those of
  # the toolkit that compiles.
  find_file(LibTorch_CUDART libcudart.so.13 PATHS ${_nvidia} NO_DEFAULT_PATH)
  if(EXISTS "${LibTorch_DIR}/lib/libtorch_cuda.so" AND LibTorch_CUDART)
    add_library(linescan::libtorch_cuda INTERFACE IMPORTED)
    # libtorch_cuda registers PyTorch's own kernels: it is needed even if no symbol of it is used.
    target_link_libraries(linescan::libtorch_cuda INTERFACE linescan::libtorch
      "-Wl,--push-state,--no-as-needed" "${LibTorch_DIR}/lib/libtorch_cuda.so"
      "${LibTorch_DIR}/lib/libc10_cuda.so" "-Wl,--pop-state" "${LibTorch_CUDART}")
  endif()
endif()
mark_as_advanced(LibTorch_DIR LibTorch_PYTHON LibTorch_FMT_INCLUDE LibTorch_CUDART)
