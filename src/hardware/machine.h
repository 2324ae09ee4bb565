// The memory and cores that this process may use, under cgroup limits and affinity. Reads /proc and
// /sys at each call; a value that cannot be read counts as unlimited or zero, never as an error.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include "base/status.h"

namespace pagoda {

struct MachineMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;      // could be allocated now without swapping
  int64_t cgroup_limit_bytes = -1;  // -1: none
  int64_t swap_bytes = 0;

  // The memory that percentages refer to: the total, or the cgroup's limit when that is lower.
  int64_t usable_bytes() const;
};

MachineMemory machine_memory();

// Cores this process may run on: affinity, lowered to the cgroup's CPU quota; at least 1.
int usable_cores();

// Bytes of the files mapped into this process, code and libraries: the most that they can take of
// its resident memory.
int64_t mapped_file_bytes();

// Memory of this process that is resident now, mapped files included.
int64_t resident_bytes();
// The most that was since it began; 0: unknown.
int64_t most_resident_bytes();

// The words of `wanted` that /proc/cpuinfo lists for the first core ("avx2", "amx_bf16").
std::vector<std::string> cpu_features(const std::vector<std::string>& wanted);
std::string cpu_model();

// kHostMemory, for the error that std::thread throws when the system starts no more threads.
Status threads_refused(const std::system_error& error);

}  // namespace pagoda
