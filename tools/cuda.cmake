# NVIDIA GPUs: whether this build has them. Sets PAGODA_HAS_CUDA, and where it is true the target
# CUDA::cudart_static. The CUDA runtime is linked statically, so that the program starts where there
# is no CUDA; the driver is found at run time. PAGODA_HAS_CUDA_KERNELS says whether the build can
# compute on them too: the target kernels_cuda, which takes nvcc minutes.

set(PAGODA_CUDA AUTO CACHE STRING
  "Run on NVIDIA GPUs: AUTO (where nvcc 12 or later and a GPU are), ON (where nvcc is), OFF")
set_property(CACHE PAGODA_CUDA PROPERTY STRINGS AUTO ON OFF)
set(PAGODA_CUDA_ARCHITECTURES "" CACHE STRING
  "Compute capabilities to compile kernels for, as CMAKE_CUDA_ARCHITECTURES; empty: this machine's")
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
  OUTPUT_VARIABLE cuda_here ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REGEX MATCHALL "[0-9]+\\.[0-9]" cuda_here "${cuda_here}")
string(REPLACE "." "" cuda_here "${cuda_here}")
list(REMOVE_DUPLICATES cuda_here)
set(cuda_is_here ${cuda_here})
if(EXISTS /dev/nvidiactl)
  set(cuda_is_here ON)
endif()
set(cuda_architectures ${PAGODA_CUDA_ARCHITECTURES})
if(NOT cuda_architectures)
  set(cuda_architectures ${cuda_here})
endif()
if(NOT cuda_architectures)
  set(cuda_architectures 90)
endif()

set(PAGODA_HAS_CUDA OFF)
if(NOT PAGODA_CUDA STREQUAL "OFF")
  find_program(PAGODA_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  set(cuda_missing "nvcc was not found; name it with -DPAGODA_NVCC=...")
  if(PAGODA_NVCC)
    get_filename_component(cuda_root ${PAGODA_NVCC} DIRECTORY)
    set(CUDAToolkit_ROOT ${cuda_root}/.. CACHE PATH "The CUDA toolkit")
    find_package(CUDAToolkit QUIET)
    set(cuda_missing "CUDA ${CUDAToolkit_VERSION} is older than 12")
    if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12)
      set(PAGODA_HAS_CUDA ON)
    endif()
  endif()
  if(PAGODA_CUDA STREQUAL "ON" AND NOT PAGODA_HAS_CUDA)
    message(FATAL_ERROR "PAGODA_CUDA=ON: ${cuda_missing}")
  elseif(NOT PAGODA_HAS_CUDA)
    set(cuda_level STATUS)
    if(cuda_is_here)
      set(cuda_level WARNING)  # there is a GPU that will not be used
    endif()
    message(${cuda_level} "Without NVIDIA GPUs: ${cuda_missing}")
  endif()
endif()

# Products of experts by cuBLAS where the toolkit has its header, of 12.5 or later. Its library is
# found at run time.
set(PAGODA_HAS_CUBLAS OFF)
if(PAGODA_HAS_CUDA)
  find_path(PAGODA_CUBLAS_INCLUDE cublas_api.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(PAGODA_CUBLAS_INCLUDE)
  file(STRINGS ${PAGODA_CUBLAS_INCLUDE}/cublas_api.h cuda_cublas
    REGEX "define CUBLAS_VER_M[AJINOR]* ")
  string(REGEX REPLACE "[^0-9;]" "" cuda_cublas "${cuda_cublas}")
  string(REPLACE ";" "." cuda_cublas "${cuda_cublas}")
  if(cuda_cublas VERSION_GREATER_EQUAL 12.5)
    set(PAGODA_HAS_CUBLAS ON)
  endif()
endif()

# Kernels where a GPU is to run them, or where they are asked for: with the warnings and the
# arithmetic of the rest (nvcc would contract products and sums). Sanitized builds run none.
set(PAGODA_HAS_CUDA_KERNELS OFF)
if(PAGODA_HAS_CUDA AND NOT PAGODA_SANITIZE)
  if(cuda_is_here OR PAGODA_CUDA_ARCHITECTURES OR PAGODA_CUDA STREQUAL "ON")
    set(PAGODA_HAS_CUDA_KERNELS ON)
  else()
    message(STATUS "Without kernels for GPUs: there is none here; -DPAGODA_CUDA=ON compiles them")
  endif()
endif()
if(PAGODA_HAS_CUDA_KERNELS)
  set(CMAKE_CUDA_COMPILER ${PAGODA_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${cuda_architectures})
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
  # Attention by cuDNN where the headers of cuDNN 9 and of cudnn-frontend are: in the toolkit or the
  # system, or in CUDNN_ROOT and CUDNN_FRONTEND_ROOT. Its library is found at run time.
  find_path(PAGODA_CUDNN_INCLUDE cudnn_version.h
    HINTS ${CUDNN_ROOT} $ENV{CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_path(PAGODA_CUDNN_FRONTEND_INCLUDE cudnn_frontend_version.h
    HINTS ${CUDNN_FRONTEND_ROOT} $ENV{CUDNN_FRONTEND_ROOT} PATH_SUFFIXES include)
  set(cuda_cudnn "")
  set(cuda_frontend "")
  if(PAGODA_CUDNN_INCLUDE AND PAGODA_CUDNN_FRONTEND_INCLUDE)
    file(STRINGS ${PAGODA_CUDNN_INCLUDE}/cudnn_version.h cuda_cudnn REGEX "define CUDNN_MAJOR ")
    file(STRINGS ${PAGODA_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h cuda_frontend
      REGEX "define CUDNN_FRONTEND_M[AIJNOR]*_VERSION ")
    string(REGEX REPLACE "[^0-9;]" "" cuda_frontend "${cuda_frontend}")
    string(REPLACE ";" "." cuda_frontend "${cuda_frontend}")
  endif()
  set(cuda_library_attention none)
  if(cuda_cudnn MATCHES " 9$" AND cuda_frontend VERSION_GREATER_EQUAL 1.32)
    set(cuda_library_attention cudnn)
  endif()
  set(cuda_library_products none)
  if(PAGODA_HAS_CUBLAS)
    set(cuda_library_products cublas)
  endif()
  message(STATUS "Libraries on GPUs: attention of ${cuda_library_attention}, experts' products of "
    "${cuda_library_products}")
  set(cuda_library ${PROJECT_SOURCE_DIR}/kernels/cuda/library)
  add_library(kernels_cuda STATIC ${cuda_sources} ${PROJECT_SOURCE_DIR}/kernels/cuda/gpu_ops.cc
    ${cuda_library}/library_attention_${cuda_library_attention}.cc
    ${cuda_library}/library_products_${cuda_library_products}.cc)
  target_link_libraries(kernels_cuda PRIVATE ${CMAKE_DL_LIBS})
  if(cuda_library_attention STREQUAL "cudnn")
    target_include_directories(kernels_cuda SYSTEM PRIVATE ${PAGODA_CUDNN_INCLUDE}
      ${PAGODA_CUDNN_FRONTEND_INCLUDE})
  endif()
  target_include_directories(kernels_cuda PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  # CMake 3.25 does not know C++20 of nvcc 13: it refuses what is required, and else says nothing.
  set_target_properties(kernels_cuda PROPERTIES CUDA_STANDARD_REQUIRED OFF)
  target_compile_options(kernels_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;\
--Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off,-fno-math-errno>")
  if(PAGODA_PORTABLE AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13)  # drivers take it
    target_compile_options(kernels_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
  endif()
  string(REPLACE ";" "," cuda_architectures_text "${cuda_architectures}")
  target_compile_definitions(kernels_cuda PRIVATE
    PAGODA_CUDA_ARCHITECTURES="${cuda_architectures_text}")
  target_link_libraries(kernels_cuda PUBLIC device optim CUDA::cudart_static)
endif()
