# `cmake --install` and the package that find_package(linescan) reads. Targets of the installed
# package carry the layer's name: linescan::core, linescan::files, linescan::torch, ...
include(CMakePackageConfigHelpers)
set(LINESCAN_INSTALL_CMAKE "${CMAKE_INSTALL_LIBDIR}/cmake/linescan")

# A build without LibTorch has the first layers only, one without CUDA no kernels for GPUs.
foreach(_layer IN ITEMS core kernels files torch models report train)
  if(TARGET linescan_${_layer})
    set_target_properties(linescan_${_layer} PROPERTIES EXPORT_NAME ${_layer})
    target_compile_features(linescan_${_layer} INTERFACE cxx_std_20)
    install(TARGETS linescan_${_layer} EXPORT linescanTargets)
  endif()
endforeach()

if(LINESCAN_TORCH)
  # LibTorch stays in the Python environment that it came with.
  set_target_properties(linescan_torch linescan_program PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${LibTorch_DIR}/lib")
  install(TARGETS linescan_program)
  if(LINESCAN_CUDA)
    # linescan_torch loads it from its own folder.
    get_filename_component(_cuda_runtime "${LibTorch_CUDART}" DIRECTORY)
    set_target_properties(linescan_torch_cuda PROPERTIES
      INSTALL_RPATH "$ORIGIN;${LibTorch_DIR}/lib;${_cuda_runtime}")
    install(TARGETS linescan_torch_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
  install(DIRECTORY python/linescan DESTINATION "${CMAKE_INSTALL_DATADIR}/linescan/python"
          FILES_MATCHING PATTERN "*.py")
endif()

install(DIRECTORY linescan DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE)
install(FILES "${PROJECT_BINARY_DIR}/generated/linescan/version.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/linescan")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(EXPORT linescanTargets NAMESPACE linescan:: DESTINATION "${LINESCAN_INSTALL_CMAKE}")
configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/linescanConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/generated/linescanConfig.cmake"
  INSTALL_DESTINATION "${LINESCAN_INSTALL_CMAKE}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/linescanConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/generated/linescanConfig.cmake"
  "${PROJECT_BINARY_DIR}/generated/linescanConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake"
  DESTINATION "${LINESCAN_INSTALL_CMAKE}")
