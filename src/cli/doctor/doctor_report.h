// The facts that `pagoda doctor` finds out. It changes nothing but a probe file, which it removes
// at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/usable_gpu.h"
#include "hardware/machine.h"
#include "hardware/pci_link.h"

namespace pagoda {

struct DirectIo {
  bool usable = false;
  int64_t memory_align_bytes = 0;  // 0: the kernel does not say
  int64_t offset_align_bytes = 0;
  std::string reason;  // why not usable
};

struct StorageProbe {
  bool usable = false;
  std::string text;  // Storage::describe(), or why it cannot be opened
};

struct DoctorReport {
  std::string cpu;
  int cores = 0;
  std::vector<std::string> isa;  // avx2, avx512f, avx512_bf16, amx_tile, amx_bf16, ...
  std::string kernel_set;        // kernels of a run with the default dtype
  MachineMemory memory;
  int64_t memlock_bytes = -1;          // RLIMIT_MEMLOCK; -1: unlimited
  std::string transparent_huge_pages;  // always, madvise, never, or empty
  int64_t huge_pages_free = 0;
  std::string directory;
  std::string file_system;  // "ext4", or its number
  int64_t disk_free_bytes = 0;
  int64_t disk_total_bytes = 0;
  DirectIo direct_io;
  StorageProbe uring;    // io = "uring"
  StorageProbe threads;  // io = "threads"
  GpuReport gpus;
  std::vector<PciLink> gpu_links;  // [GPU]
  std::string gpu_driver;          // "580.65.06", or empty
  UsableGpu gpu;                   // the GPU of a run with the default dtype

  std::string text() const;
  std::string json() const;
};

// Examines the machine and `directory`, which exists; facts that cannot be found out are reported
// as such.
DoctorReport examine_machine(const std::string& directory);

// Opens the real storage in `directory` the way a run would (doctor_storage.cc).
StorageProbe probe_uring(const std::string& directory);
StorageProbe probe_threads(const std::string& directory);

}  // namespace pagoda
