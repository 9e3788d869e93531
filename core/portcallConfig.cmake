# SPDX-License-Identifier: Apache-2.0
# find_package(portcall): portcall::headers for libraries that portcall loads, portcall::portcall for programs.
#
#   add_library(kernels MODULE kernels.cc)
#   target_link_libraries(kernels PRIVATE portcall::headers)   # links nothing: the core is there when it is loaded
#
#   add_executable(host host.cc)
#   target_link_libraries(host PRIVATE portcall::portcall)     # or portcall::ir, for <portcall/ir.h>
#
# It lies in lib/cmake/portcall of the package: cmake -Dportcall_DIR="$(portcall config --cmake)"
get_filename_component(portcall_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET portcall::headers)
  add_library(portcall::headers INTERFACE IMPORTED)
  set_target_properties(portcall::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${portcall_root}/include"
    # Else such variables would be one for all libraries of a process.
    INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>")
  # The standard is for C++ alone: a source of C includes <portcall/c_api.h>.
  set_property(TARGET portcall::headers PROPERTY INTERFACE_COMPILE_FEATURES cxx_std_17)

  add_library(portcall::portcall SHARED IMPORTED)
  set_target_properties(portcall::portcall PROPERTIES
    IMPORTED_LOCATION "${portcall_root}/lib/libportcall.so"
    IMPORTED_SONAME libportcall.so
    INTERFACE_LINK_LIBRARIES portcall::headers)

  add_library(portcall::ir SHARED IMPORTED)
  set_target_properties(portcall::ir PROPERTIES
    IMPORTED_LOCATION "${portcall_root}/lib/libportcall_ir.so"
    IMPORTED_SONAME libportcall_ir.so
    INTERFACE_LINK_LIBRARIES portcall::portcall)
endif()
unset(portcall_root)
