#include "cli/doctor/doctor_report.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "config/computed_with.h"
#include "config/run_config.h"

namespace pagoda {
namespace {

// Names of the file systems a store is likely to meet (magic numbers: statfs(2)).
std::string file_system_name(int64_t magic) {
  switch (magic) {
    case 0xef53:
      return "ext4";
    case 0x58465342:
      return "xfs";
    case 0x9123683e:
      return "btrfs";
    case 0x01021994:
      return "tmpfs";
    case 0x794c7630:
      return "overlay";
    case 0x6969:
      return "nfs";
    case 0x2fc12fc1:
      return "zfs";
    case 0x65735546:
      return "fuse";
    default:
      return strf("type 0x%llx", (long long)magic);
  }
}

int64_t memlock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<int64_t>(limit.rlim_cur);
}

// The bracketed word of "always [madvise] never".
std::string chosen_word(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  const size_t open = line.find('['), close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return "";
  return line.substr(open + 1, close - open - 1);
}

int64_t free_huge_pages() {
  std::ifstream in("/proc/meminfo");
  std::string word, rest;
  for (int64_t count = 0; in >> word;) {
    if (word == "HugePages_Free:" && in >> count) return count;
    std::getline(in, rest);
  }
  return 0;
}

// STATX_DIOALIGN by system call: the C library of Debian 12 does not declare its fields.
void ask_alignment(int file, DirectIo& result) {
#ifdef STATX_DIOALIGN
  struct statx found;
  std::memset(&found, 0, sizeof(found));
  const long asked =
      syscall(SYS_statx, file, "", 0x1000 /* AT_EMPTY_PATH */, STATX_DIOALIGN, &found);
  if (asked != 0 || (found.stx_mask & STATX_DIOALIGN) == 0) return;
  result.memory_align_bytes = found.stx_dio_mem_align;
  result.offset_align_bytes = found.stx_dio_offset_align;
#else
  (void)file;
  (void)result;
#endif
}

DirectIo probe_direct_io(const std::string& directory) {
  DirectIo result;
  const Descriptor file = unnamed_file(directory);
  if (!file.ok()) {
    result.reason = std::string("no file can be made there: ") + std::strerror(errno);
    return result;
  }
  const int flags = fcntl(file.get(), F_GETFL);
  if (flags < 0 || fcntl(file.get(), F_SETFL, flags | O_DIRECT) != 0) {
    result.reason = std::string("O_DIRECT refused: ") + std::strerror(errno);
    return result;
  }
  alignas(kIoAlign) static const char block[kIoAlign] = {};
  const ssize_t written = pwrite(file.get(), block, sizeof(block), 0);
  result.usable = written == static_cast<ssize_t>(sizeof(block));
  if (!result.usable) result.reason = std::string("direct write refused: ") + std::strerror(errno);
  ask_alignment(file.get(), result);
  return result;
}

void examine_disk(DoctorReport& report) {
  struct statvfs space {};
  if (statvfs(report.directory.c_str(), &space) == 0) {
    report.disk_free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
    report.disk_total_bytes = static_cast<int64_t>(space.f_blocks * space.f_frsize);
  }
  struct statfs kind {};
  if (statfs(report.directory.c_str(), &kind) == 0) {
    report.file_system = file_system_name(static_cast<uint32_t>(kind.f_type));
  }
  report.direct_io = probe_direct_io(report.directory);
  report.uring = probe_uring(report.directory);
  report.threads = probe_threads(report.directory);
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..."
std::string nvidia_driver() {
  std::ifstream in("/proc/driver/nvidia/version");
  for (std::string word; in >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") > word.size())
      return word;
  }
  return "";
}

void examine_gpus(DoctorReport& report) {
  report.gpus = find_gpus();
  report.gpu_driver = nvidia_driver();
  report.gpu = usable_gpu();
  for (const Gpu& gpu : report.gpus.gpus) {
    report.gpu_links.push_back(pci_link(gpu.pci_address));
  }
}

std::string direct_io_text(const DirectIo& direct) {
  if (!direct.usable) return "no (" + direct.reason + ")";
  if (direct.offset_align_bytes == 0) return "yes (alignment not stated by the kernel)";
  return strf("yes (memory %lld B, offset %lld B)", (long long)direct.memory_align_bytes,
              (long long)direct.offset_align_bytes);
}

std::string storage_text(const StorageProbe& probe) {
  return (probe.usable ? "yes (" : "no (") + probe.text + ")";
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::string row(const char* name, const std::string& value) {
  return strf("%-14s %s\n", name, printable(value, 1000).c_str());
}

std::string gpu_rows(const DoctorReport& report) {
  std::string rows;
  for (size_t i = 0; i < report.gpus.gpus.size(); ++i) {
    const std::string link = report.gpu_links[i].text();
    rows += row("GPU", report.gpus.gpus[i].text() + (link.empty() ? "" : ", " + link));
  }
  const std::string known = report.gpus.driver.empty() ? "" : "CUDA up to " + report.gpus.driver;
  if (!known.empty()) rows += row("NVIDIA driver", report.gpu_driver + " (" + known + ")");
  const bool used = report.gpu.gpu.has_value();
  return rows + row("devices = cuda", used ? "yes" : "no (" + report.gpu.why_not + ")");
}

nlohmann::ordered_json gpu_json(const Gpu& gpu, const PciLink& link) {
  return {{"name", gpu.name},
          {"compute_capability", strf("%d.%d", gpu.major, gpu.minor)},
          {"memory_bytes", gpu.memory_bytes},
          {"pci_address", gpu.pci_address},
          {"pcie_generation", link.generation},
          {"pcie_width", link.width},
          {"pcie_most_generation", link.most_generation},
          {"pcie_most_width", link.most_width}};
}

}  // namespace

DoctorReport examine_machine(const std::string& directory) {
  DoctorReport report;
  report.cpu = cpu_model();
  report.cores = usable_cores();
  report.isa = cpu_features({"avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "amx_tile",
                             "amx_bf16", "asimd", "bf16", "sve"});
  report.memory = machine_memory();
  report.memlock_bytes = memlock_limit();
  report.transparent_huge_pages = chosen_word("/sys/kernel/mm/transparent_hugepage/enabled");
  report.huge_pages_free = free_huge_pages();
  report.directory = directory;
  examine_disk(report);
  examine_gpus(report);
  report.kernel_set =
      kernel_set_with(report.gpu.gpu ? std::vector{*report.gpu.gpu} : std::vector<Gpu>());
  return report;
}

std::string DoctorReport::text() const {
  const std::string limit = memory.cgroup_limit_bytes < 0
                                ? "no cgroup limit"
                                : "cgroup limit " + format_bytes(memory.cgroup_limit_bytes);
  const std::string memlock = memlock_bytes < 0 ? "unlimited" : format_bytes(memlock_bytes);
  std::string out;
  out += row("processor", cpu + ", " + std::to_string(cores) + " usable cores");
  out += row("vector units", joined(isa));
  out += row("kernel set", kernel_set);
  out += row("memory", format_bytes(memory.total_bytes) + " total, " +
                           format_bytes(memory.available_bytes) + " available, " + limit +
                           ", swap " + format_bytes(memory.swap_bytes));
  out += row("memlock limit", memlock);
  out += row("huge pages", "transparent: " + transparent_huge_pages +
                               ", reserved and free: " + std::to_string(huge_pages_free));
  out += gpu_rows(*this);
  out += row("directory", directory + " (" + file_system + ")");
  out += row("disk", format_bytes(disk_free_bytes) + " free of " + format_bytes(disk_total_bytes));
  out += row("direct I/O", direct_io_text(direct_io));
  out += row("io = uring", storage_text(uring));
  out += row("io = threads", storage_text(threads));
  return out;
}

std::string DoctorReport::json() const {
  const auto or_null = [](int64_t value) {
    return value < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  nlohmann::ordered_json out;
  out["cpu"] = cpu;
  out["cores"] = cores;
  out["isa"] = isa;
  out["kernel_set"] = kernel_set;
  out["memory_total_bytes"] = memory.total_bytes;
  out["memory_available_bytes"] = memory.available_bytes;
  out["cgroup_limit_bytes"] = or_null(memory.cgroup_limit_bytes);
  out["swap_bytes"] = memory.swap_bytes;
  out["memlock_bytes"] = or_null(memlock_bytes);
  out["transparent_huge_pages"] = transparent_huge_pages;
  out["huge_pages_free"] = huge_pages_free;
  out["directory"] = directory;
  out["file_system"] = file_system;
  out["disk_free_bytes"] = disk_free_bytes;
  out["disk_total_bytes"] = disk_total_bytes;
  out["direct_io"] = {{"usable", direct_io.usable},
                      {"memory_align_bytes", direct_io.memory_align_bytes},
                      {"offset_align_bytes", direct_io.offset_align_bytes},
                      {"reason", direct_io.reason}};
  out["gpus"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < gpus.gpus.size(); ++i) {
    out["gpus"].push_back(gpu_json(gpus.gpus[i], gpu_links[i]));
  }
  out["nvidia_driver"] = gpu_driver;
  out["cuda_driver"] = gpus.driver;
  out["cuda_toolkit"] = gpus.toolkit;
  out["cuda"] = {{"usable", gpu.gpu.has_value()}, {"text", gpu.why_not}};
  out["uring"] = {{"usable", uring.usable}, {"text", uring.text}};
  out["threads"] = {{"usable", threads.usable}, {"text", threads.text}};
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace pagoda
