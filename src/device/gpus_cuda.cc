// GPUs through the CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "device/cuda_context.h"
#include "device/gpus.h"
#include "device/stream_cuda.h"

namespace pagoda {
namespace {

constexpr const char* kOrOnCpu = "or train on the CPU with train.devices = \"cpu\"";

std::string version_text(int version) {
  return strf("%d.%d", version / 1000, version % 1000 / 10);
}

Gpu examine(int index) {
  Gpu gpu;
  gpu.index = index;
  cudaDeviceProp properties;
  std::memset(&properties, 0, sizeof(properties));
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return gpu;
  gpu.name = properties.name;
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  char address[32] = {};
  if (cudaDeviceGetPCIBusId(address, sizeof(address), index) == cudaSuccess) {
    gpu.pci_address = address;
  }
  return gpu;
}

// Why cudaGetDeviceCount found none.
std::string none_text(cudaError_t error, const GpuReport& report) {
  if (report.driver.empty()) {
    return strf("no NVIDIA driver runs on this machine; install one for CUDA %s, %s",
                report.toolkit.c_str(), kOrOnCpu);
  }
  if (error == cudaErrorInsufficientDriver) {
    return strf("the NVIDIA driver knows CUDA up to %s and this pagoda is built with %s; update "
                "the driver, %s", report.driver.c_str(), report.toolkit.c_str(), kOrOnCpu);
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return strf("the NVIDIA driver shows no GPU (is one there, and in CUDA_VISIBLE_DEVICES?); "
                "make one visible, %s", kOrOnCpu);
  }
  return strf("the NVIDIA driver refuses: %s (%s); see whether nvidia-smi works, %s",
              cudaGetErrorString(error), cudaGetErrorName(error), kOrOnCpu);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaContext> context, Gpu gpu, void* memory, int64_t arena_bytes,
             Trace* trace)
      : context_(std::move(context)),
        gpu_(std::move(gpu)),
        memory_(memory),
        arena_bytes_(arena_bytes),
        trace_(trace) {}
  ~CudaDevice() override {
    if (context_->enter() == cudaSuccess) cudaFree(memory_);
  }

  std::byte* arena() override { return static_cast<std::byte*>(memory_); }
  int64_t arena_bytes() const override { return arena_bytes_; }

  std::shared_ptr<void> pin(std::byte* data, int64_t bytes) override {
    if (bytes == 0) return nullptr;
    const auto size = static_cast<size_t>(bytes);
    cudaError_t error = context_->enter();
    if (error == cudaSuccess) error = cudaHostRegister(data, size, cudaHostRegisterPortable);
    if (error == cudaSuccess) {
      return std::shared_ptr<void>(data, [](void* pinned) { cudaHostUnregister(pinned); });
    }
    cudaGetLastError();  // it is told here
    if (!std::exchange(pin_warned_, true)) {
      log_warn(strf("the system does not pin %s of host memory (%s): copies to and from the GPU "
                    "are slower; raise the memlock limit (ulimit -l), or lower memory.host",
                    format_bytes(bytes).c_str(), cudaGetErrorString(error)));
    }
    return nullptr;
  }

  std::unique_ptr<Stream> make_stream(const std::string& name, WorkKind kind) override {
    return std::make_unique<CudaStream>(context_, StreamOptions{name, kind, trace_});
  }
  bool reach(const Device& owner) override {
    const int other = owner.gpu(), own = gpu();
    if (other < 0 || other == own) return other == own;
    int can = 0;
    cudaError_t error = context_->enter();
    if (error == cudaSuccess) error = cudaDeviceCanAccessPeer(&can, own, other);
    if (error == cudaSuccess && can != 0) error = cudaDeviceEnablePeerAccess(other, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) error = cudaSuccess;
    if (error == cudaSuccess) return can != 0;
    log_warn(
        strf("GPU %d does not reach the memory of GPU %d (%s): what goes there takes the way "
             "through the host",
             own, other, cudaGetErrorString(error)));
    cudaGetLastError();  // it is told here
    return false;
  }
  int gpu() const override { return gpu_.index; }
  std::string describe() const override {
    return strf("%s, arena %s", gpu_.text().c_str(), format_bytes(arena_bytes_).c_str());
  }

 private:
  const std::shared_ptr<CudaContext> context_;
  const Gpu gpu_;
  void* const memory_;
  const int64_t arena_bytes_;
  Trace* const trace_;
  bool pin_warned_ = false;
};

Status no_room(const Gpu& gpu, int64_t arena_bytes, int64_t free_bytes) {
  const std::string wanted = format_bytes_up(arena_bytes), has = gpu.text();
  if (arena_bytes > gpu.memory_bytes) {
    return Status(Exit::kDeviceMemory, strf("the run takes %s of memory.device, more than all of "
                                            "%s; lower memory.device", wanted.c_str(),
                                            has.c_str()));
  }
  return Status(Exit::kDeviceMemory,
                strf("the run takes %s of memory.device, but others have left %s of %s; end them "
                     "(nvidia-smi names them), or lower memory.device", wanted.c_str(),
                     format_bytes(free_bytes).c_str(), has.c_str()));
}

}  // namespace

GpuReport find_gpus() {
  // A stream that stands at a gate must not hold up another that the driver has put in the same
  // queue; there are as many queues as this says. Read when CUDA starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  GpuReport report;
  report.toolkit = version_text(CUDART_VERSION);
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
    report.driver = version_text(driver);
  }
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();  // it is told here
    count = 0;
  }
  for (int i = 0; i < count; ++i) report.gpus.push_back(examine(i));
  if (report.gpus.empty()) report.missing = none_text(error, report);
  return report;
}

Result<std::unique_ptr<Device>> open_gpu(int index, const DeviceOptions& options) {
  const GpuReport report = find_gpus();
  if (!report.missing.empty()) return Status(Exit::kUnavailable, report.missing);
  CHECK(index >= 0 && index < static_cast<int>(report.gpus.size()));
  const Gpu& gpu = report.gpus[static_cast<size_t>(index)];
  ASSIGN_OR_RETURN(const std::shared_ptr<CudaContext> context,
                   CudaContext::create(index, options.threads));
  // The first call that needs the GPU itself, which may be another's alone, or broken.
  size_t free_bytes = 0, all_bytes = 0;
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &all_bytes);
  if (error == cudaErrorMemoryAllocation) return no_room(gpu, options.arena_bytes, 0);
  if (error != cudaSuccess) {
    return Status(Exit::kUnavailable, strf("%s cannot be used: %s (%s); see nvidia-smi, %s",
                                           gpu.text().c_str(), cudaGetErrorString(error),
                                           cudaGetErrorName(error), kOrOnCpu));
  }
  const auto size = static_cast<size_t>(options.arena_bytes);
  void* memory = nullptr;
  if (size > free_bytes || cudaMalloc(&memory, size) != cudaSuccess) {
    cudaGetLastError();  // it is told here
    return no_room(gpu, options.arena_bytes, static_cast<int64_t>(free_bytes));
  }
  require_cuda(cudaMemset(memory, 0, size), "cudaMemset", gpu.text());
  require_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize", gpu.text());
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(context, gpu, memory,
                                                              options.arena_bytes, options.trace));
}

}  // namespace pagoda
