#include "hardware/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/bytes.h"
#include "base/number_text.h"
#include "hardware/numa.h"

namespace pagoda {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

// The value of "Name:   123 kB" in a file of /proc, in bytes; 0: there is none.
int64_t proc_bytes(const char* path, const std::string& name) {
  std::ifstream in(path);
  std::string word, unit;
  for (int64_t kib = 0; in >> word;) {
    if (word == name + ":" && in >> kib) return kib * kKiB;
    std::getline(in, unit);
  }
  return 0;
}

// This process's cgroup (version 2) and its parents, as folders: a limit may sit on any of them.
std::vector<std::string> cgroup_folders() {
  std::vector<std::string> folders = {"/sys/fs/cgroup"};
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("0::/")) continue;
    std::string path = line.substr(3);
    for (; path.size() > 1; path = path.substr(0, path.rfind('/'))) {
      folders.push_back("/sys/fs/cgroup" + path);
    }
  }
  return folders;
}

int64_t cgroup_memory_limit() {
  int64_t limit = kUnlimited;
  for (const std::string& folder : cgroup_folders()) {
    int64_t bytes = 0;
    if (parse_int64(first_line(folder + "/memory.max"), bytes)) limit = std::min(limit, bytes);
  }
  int64_t version1 = 0;
  if (parse_int64(first_line("/sys/fs/cgroup/memory/memory.limit_in_bytes"), version1)) {
    limit = std::min(limit, version1);
  }
  return limit;
}

int64_t cgroup_cores() {
  int64_t cores = kUnlimited;
  for (const std::string& folder : cgroup_folders()) {
    std::istringstream line(first_line(folder + "/cpu.max"));  // "200000 100000" or "max 100000"
    int64_t quota = 0, period = 0;
    if (line >> quota >> period && period > 0) cores = std::min(cores, div_ceil(quota, period));
  }
  return cores;
}

std::string cpuinfo_value(const std::vector<std::string>& names) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) continue;
    const size_t value = line.find_first_not_of(' ', colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

}  // namespace

int64_t MachineMemory::usable_bytes() const {
  return cgroup_limit_bytes < 0 ? total_bytes : std::min(total_bytes, cgroup_limit_bytes);
}

MachineMemory machine_memory() {
  MachineMemory memory;
  memory.total_bytes = proc_bytes("/proc/meminfo", "MemTotal");
  memory.available_bytes = proc_bytes("/proc/meminfo", "MemAvailable");
  memory.swap_bytes = proc_bytes("/proc/meminfo", "SwapTotal");
  const int64_t limit = cgroup_memory_limit();
  if (limit < memory.total_bytes) memory.cgroup_limit_bytes = limit;
  return memory;
}

int usable_cores() {
  return static_cast<int>(std::max<int64_t>(1, std::min(std::ssize(own_cores()), cgroup_cores())));
}

int64_t mapped_file_bytes() {
  std::ifstream maps("/proc/self/maps");
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    // "begin-end permissions offset device inode path"; guard regions without permissions hold
    // none.
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, permissions) != 3) continue;
    const bool file = line.find('/') != std::string::npos && permissions[0] != '-';
    if (file) bytes += static_cast<int64_t>(end - begin);
  }
  return bytes;
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::istringstream(first_line("/proc/self/statm")) >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t most_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM"); }

std::vector<std::string> cpu_features(const std::vector<std::string>& wanted) {
  std::istringstream words(cpuinfo_value({"flags", "Features"}));
  std::vector<std::string> found;
  for (std::string word; words >> word;) {
    if (std::find(wanted.begin(), wanted.end(), word) != wanted.end()) found.push_back(word);
  }
  return found;
}

Status threads_refused(const std::system_error& error) {
  return Status(Exit::kHostMemory,
                strf("the system starts no more threads (%s); lower train.threads, or raise the "
                     "limits of processes and memory (ulimit -u, ulimit -v)",
                     error.code().message().c_str()));
}

std::string cpu_model() { return cpuinfo_value({"model name", "Model"}); }

}  // namespace pagoda
