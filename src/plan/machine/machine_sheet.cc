#include "plan/machine/machine_sheet.h"

#include "plan/machine/device_profile.h"
#include "plan/refusals.h"

namespace pagoda {
namespace {

void declare_device(MachineSheet::Device& d, OptionTable& t) {
  constexpr Affects kRunOnly = Affects::kRunOnly;
  t.section("device", "What multiplies");
  t.add("kind", d.kind, {"gpu", "cpu"}, kRunOnly, "a cpu's memory is the host's");
  t.add("count", d.count, kRunOnly, "equal devices");
  t.add("memory", d.memory, kRunOnly, "of a gpu");
  t.add("peak_tflops", d.peak_tflops, kRunOnly, "of bf16 products; MFU is a part of it");
  t.add("gemm_tflops", d.gemm_tflops, kRunOnly, "of tall products");
  t.add("weight_gb_s", d.weight_gb_s, kRunOnly, "that cold weights are read at");
  t.add("attention_tflops", d.attention_tflops, kRunOnly, "of scores over long sequences");
  t.add("attention_half_tokens", d.attention_half_tokens, kRunOnly,
        "length of a sequence that reaches half of it");
  t.add("memory_gb_s", d.memory_gb_s, kRunOnly, "of the device's memory");
  t.add("adam_gb_s", d.adam_gb_s, kRunOnly, "of updates on a gpu; 0: as memory_gb_s");
  t.add("launch_us", d.launch_us, kRunOnly, "before a task works");
}

void declare_rest(MachineSheet& m, OptionTable& t) {
  constexpr Affects kRunOnly = Affects::kRunOnly;
  t.section("host", "Beside it");
  t.add("cores", m.host.cores, kRunOnly, "that update, copy and check");
  t.add("memory", m.host.memory, kRunOnly, "of the host");
  t.add("copy_gb_s", m.host.copy_gb_s, kRunOnly, "to a device, and from it at once");
  t.add("checksum_gb_s", m.host.checksum_gb_s, kRunOnly, "of a core");
  t.add("adam_gb_s", m.host.adam_gb_s, kRunOnly, "of all cores, read and written");
  t.section("disk", "Below");
  t.add("drives", m.disk.drives, kRunOnly, "equal ones that pages are spread over");
  t.add("size", m.disk.size, kRunOnly, "of each");
  t.add("read_gb_s", m.disk.read_gb_s, kRunOnly, "of each");
  t.add("write_gb_s", m.disk.write_gb_s, kRunOnly, "of each, for hours");
  t.add("half_duplex", m.disk.half_duplex, kRunOnly, "reads and writes share a drive's time");
  t.add("latency_us", m.disk.latency_us, kRunOnly, "of a read");
  t.add("tbw", m.disk.tbw, kRunOnly, "10^12 bytes that each may be written; 0: not told");
  t.section("link", "Between devices");
  t.add("gb_s", m.link.gb_s, kRunOnly, "of a device, each way");
  t.add("latency_us", m.link.latency_us, kRunOnly, "of a message");
  t.section("network", "To other machines");
  t.add("gb_s", m.network.gb_s, kRunOnly,
        "of a device, each way; 0: as the file of its cluster says");
  t.section("profile", "Devices of a run, measured by bench machine RUN");
  t.add("model", m.profile.model, kRunOnly, "what the costs were measured with");
  t.add("devices", m.profile.devices, kRunOnly, "as train.devices names them");
  t.add("costs", m.profile.costs, kRunOnly,
        "device, task: us of a task, of each of its units, and of the start of some together");
  t.add("least_kept", m.profile.least_kept, kRunOnly,
        "experts of all layers that devices with experts alone cannot hold");
  t.add("most_kept", m.profile.most_kept, kRunOnly,
        "experts of all layers that a device which attends can hold");
  t.add("kept_by", m.profile.kept_by, kRunOnly, "the run that these two hold for");
}

Status check_between(const char* key, double value, double least, double most) {
  if (value >= least && value <= most) return Status();
  return Status(Exit::kUsage,
                strf("%s is %g; it must be a number from %g to %g", key, value, least, most));
}

// Sanity limits of rates, which keep all results finite. No part of a machine is slower or faster.
Status check_sheet_rate(const char* key, double value) {
  return check_between(key, value, 1e-6, 1e9);
}
Status check_sheet_amount(const char* key, double value) {
  return check_between(key, value, 0, 1e9);
}

Status check_size(const char* key, const MemorySize& size, int64_t least) {
  // A part of nothing is nothing, and a part of all there is, is too much.
  const int64_t bytes = size.resolve(0, -1);
  if (bytes >= least && size.resolve(int64_t{1} << 60, -1) == bytes) return Status();
  return Status(Exit::kUsage, strf("%s is %s; it must be a size such as \"24GiB\"", key,
                                   size.text().c_str()));
}

Status check_device(const MachineSheet& m) {
  const MachineSheet::Device& d = m.device;
  RETURN_IF_ERROR(check_integer("device.count", d.count, 1, 4096));
  if (m.gpu()) RETURN_IF_ERROR(check_size("device.memory", d.memory, 1));
  RETURN_IF_ERROR(check_sheet_rate("device.peak_tflops", d.peak_tflops));
  RETURN_IF_ERROR(check_sheet_rate("device.gemm_tflops", d.gemm_tflops));
  RETURN_IF_ERROR(check_sheet_rate("device.weight_gb_s", d.weight_gb_s));
  RETURN_IF_ERROR(check_sheet_rate("device.attention_tflops", d.attention_tflops));
  RETURN_IF_ERROR(check_sheet_amount("device.attention_half_tokens", d.attention_half_tokens));
  RETURN_IF_ERROR(check_sheet_rate("device.memory_gb_s", d.memory_gb_s));
  RETURN_IF_ERROR(check_sheet_amount("device.adam_gb_s", d.adam_gb_s));
  if (d.count > 1 && !m.gpu()) {
    return Status(Exit::kUsage,
                  "device.count is above 1 of kind cpu; all cores are one device: set 1");
  }
  if (d.gemm_tflops > d.peak_tflops) {
    return Status(Exit::kUsage, strf("device.gemm_tflops is %g, more than device.peak_tflops, %g; "
                                     "correct one of them",
                                     d.gemm_tflops, d.peak_tflops));
  }
  return check_sheet_amount("device.launch_us", d.launch_us);
}

Status check_rest(const MachineSheet& m) {
  RETURN_IF_ERROR(check_sheet_rate("host.cores", m.host.cores));
  RETURN_IF_ERROR(check_size("host.memory", m.host.memory, 1));
  RETURN_IF_ERROR(check_sheet_rate("host.copy_gb_s", m.host.copy_gb_s));
  RETURN_IF_ERROR(check_sheet_rate("host.checksum_gb_s", m.host.checksum_gb_s));
  RETURN_IF_ERROR(check_sheet_rate("host.adam_gb_s", m.host.adam_gb_s));
  RETURN_IF_ERROR(check_integer("disk.drives", m.disk.drives, 1, 4096));
  RETURN_IF_ERROR(check_size("disk.size", m.disk.size, 0));
  RETURN_IF_ERROR(check_sheet_rate("disk.read_gb_s", m.disk.read_gb_s));
  RETURN_IF_ERROR(check_sheet_rate("disk.write_gb_s", m.disk.write_gb_s));
  RETURN_IF_ERROR(check_sheet_amount("disk.latency_us", m.disk.latency_us));
  RETURN_IF_ERROR(check_sheet_amount("disk.tbw", m.disk.tbw));
  RETURN_IF_ERROR(check_profile(m.profile));
  RETURN_IF_ERROR(check_sheet_amount("link.latency_us", m.link.latency_us));
  if (m.network.gb_s != 0) RETURN_IF_ERROR(check_sheet_rate("network.gb_s", m.network.gb_s));
  return m.device.count > 1 ? check_sheet_rate("link.gb_s", m.link.gb_s)
                            : check_sheet_amount("link.gb_s", m.link.gb_s);
}

template <typename Sheet>
std::string toml_of(Sheet sheet) {
  OptionTable table;
  sheet.declare(table);
  return options_toml(table, true);
}

}  // namespace

void MachineSheet::declare(OptionTable& t) {
  constexpr Affects kRunOnly = Affects::kRunOnly;
  t.section("machine", "Machine");
  t.add("name", machine.name, kRunOnly, "for people");
  t.add("source", machine.source, {"datasheet", "measured"}, kRunOnly,
        "where the numbers are from");
  declare_device(device, t);
  declare_rest(*this, t);
}

Status MachineSheet::check() const {
  RETURN_IF_ERROR(check_device(*this));
  return check_rest(*this);
}

std::string MachineSheet::to_toml() const { return toml_of(*this); }

int64_t MachineSheet::auto_device_bytes() const {
  return static_cast<int64_t>((gpu() ? kAutoGpu : kAutoDevice) *
                              static_cast<double>(device_bytes()));
}

int64_t MachineSheet::auto_host_bytes() const {
  return static_cast<int64_t>(kAutoHost * static_cast<double>(host_bytes()));
}

void ClusterSheet::declare(OptionTable& t) {
  constexpr Affects kRunOnly = Affects::kRunOnly;
  t.section("cluster", "Cluster");
  t.add("name", cluster.name, kRunOnly, "for people");
  t.add("source", cluster.source, {"datasheet", "measured"}, kRunOnly,
        "where the numbers are from");
  t.add("nodes", cluster.nodes, kRunOnly, "files of machines, one for each node");
  t.add("nodes_per_switch", cluster.nodes_per_switch, kRunOnly, "0: all");
  t.add("hosts", cluster.hosts, kRunOnly, "names of nodes for a hostfile, one for each; or none");
  t.section("network", "Between nodes");
  t.add("gb_s", network.gb_s, kRunOnly, "of a device, each way, where its node's file has none");
  t.add("latency_us", network.latency_us, kRunOnly, "of a message");
}

Status ClusterSheet::check() const {
  RETURN_IF_ERROR(check_integer("the number of cluster.nodes", static_cast<int64_t>(nodes.size())));
  RETURN_IF_ERROR(check_integer("cluster.nodes_per_switch", cluster.nodes_per_switch, 0));
  if (!cluster.hosts.empty() && cluster.hosts.size() != nodes.size()) {
    return Status(Exit::kUsage,
                  strf("cluster.hosts has %zu names for %zu nodes; name each, or none",
                       cluster.hosts.size(), nodes.size()));
  }
  RETURN_IF_ERROR(check_sheet_rate("network.gb_s", network.gb_s));
  RETURN_IF_ERROR(check_sheet_amount("network.latency_us", network.latency_us));
  for (const MachineSheet& node : nodes) RETURN_IF_ERROR(node.check());
  return Status();
}

std::string ClusterSheet::to_toml() const { return toml_of(*this); }

int64_t ClusterSheet::devices() const {
  int64_t devices = 0;
  for (const MachineSheet& node : nodes) devices += node.device.count;
  return devices;
}

bool ClusterSheet::equal_nodes() const {
  for (const MachineSheet& node : nodes) {
    if (node.to_toml() != nodes.front().to_toml()) return false;
  }
  return true;
}

std::vector<double> ClusterSheet::unequal_network_gb_s() const {
  std::vector<double> rates;
  bool differ = false;
  for (const MachineSheet& node : nodes) {
    rates.push_back(node.network_gb_s(network.gb_s));
    differ = differ || rates.back() != rates.front();
  }
  return differ ? rates : std::vector<double>();
}

}  // namespace pagoda
