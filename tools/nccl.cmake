# NCCL 2.14 or later: whether GPUs of different processes can send to each other by it. Sets
# PAGODA_HAS_NCCL, and where it is true PAGODA_NCCL_INCLUDE and PAGODA_NCCL_LIBRARY. Header and
# library are taken from NCCL_ROOT (such as the folder nvidia/nccl of PyPI's wheel), the toolkit or
# the system. The library is looked for again at run time: there it may be another one, or none.

set(PAGODA_HAS_NCCL OFF)
if(PAGODA_HAS_CUDA)
  find_path(PAGODA_NCCL_INCLUDE nccl.h HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT}
    ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(PAGODA_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT}
    ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib)
  if(PAGODA_NCCL_INCLUDE)
    file(STRINGS ${PAGODA_NCCL_INCLUDE}/nccl.h nccl_version REGEX "define NCCL_M[AJINOR]* ")
    string(REGEX REPLACE "[^0-9;]" "" nccl_version "${nccl_version}")
    string(REPLACE ";" "." nccl_version "${nccl_version}")
    if(nccl_version VERSION_GREATER_EQUAL 2.14)
      set(PAGODA_HAS_NCCL ON)
    endif()
  endif()
  if(PAGODA_HAS_NCCL)
    message(STATUS "NCCL ${nccl_version}: ${PAGODA_NCCL_INCLUDE}")
  else()
    message(STATUS
      "Without NCCL: 2.14 or later was not found; name its folder with -DNCCL_ROOT=...")
  endif()
endif()
