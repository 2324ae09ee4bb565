# MPI: whether processes that a launcher started can work together in this build. Sets
# PAGODA_HAS_MPI, and where it is true the target MPI::MPI_C. Not in sanitized builds, whose reports
# would be of MPI's own, nor in one that is carried to machines without it.

set(PAGODA_MPI AUTO CACHE STRING "Join what mpirun starts: AUTO (where MPI is), ON, OFF")
set_property(CACHE PAGODA_MPI PROPERTY STRINGS AUTO ON OFF)

set(PAGODA_HAS_MPI OFF)
if(PAGODA_MPI STREQUAL "ON" OR (PAGODA_MPI STREQUAL "AUTO" AND NOT PAGODA_SANITIZE
                                AND NOT PAGODA_PORTABLE))
  enable_language(C)
  find_package(MPI COMPONENTS C QUIET)  # apt: libopenmpi-dev openmpi-bin
  if(MPI_C_FOUND)
    set(PAGODA_HAS_MPI ON)
  elseif(PAGODA_MPI STREQUAL "ON")
    message(FATAL_ERROR "PAGODA_MPI=ON: MPI was not found; name its compiler with "
      "-DMPI_C_COMPILER=...")
  else()
    message(STATUS "Without MPI: it was not found; name its compiler with -DMPI_C_COMPILER=...")
  endif()
endif()
