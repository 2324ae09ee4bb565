#include "bench/sheet/merge_equal_nodes.h"

#include <algorithm>

namespace pagoda {
namespace {

void take_less(double& value, double other) { value = std::min(value, other); }
void take_more(double& value, double other) { value = std::max(value, other); }
void take_less(MemorySize& size, const MemorySize& other) {
  if (other.resolve(0, 0) < size.resolve(0, 0)) size = other;
}

}  // namespace

std::vector<size_t> first_equal(const std::vector<MachineSheet>& nodes) {
  std::vector<size_t> firsts;
  for (const MachineSheet& node : nodes) {
    const auto same = std::find_if(nodes.begin(), nodes.end(), [&](const MachineSheet& other) {
      return other.machine.name == node.machine.name && other.device.kind == node.device.kind &&
             other.device.count == node.device.count && other.host.cores == node.host.cores &&
             other.network.gb_s == node.network.gb_s;
    });
    firsts.push_back(static_cast<size_t>(same - nodes.begin()));
  }
  return firsts;
}

MachineSheet worst_of(const MachineSheet& one, const MachineSheet& other) {
  MachineSheet worst = one;
  take_less(worst.device.memory, other.device.memory);
  take_less(worst.device.peak_tflops, other.device.peak_tflops);
  take_less(worst.device.gemm_tflops, other.device.gemm_tflops);
  take_less(worst.device.weight_gb_s, other.device.weight_gb_s);
  take_less(worst.device.attention_tflops, other.device.attention_tflops);
  take_more(worst.device.attention_half_tokens, other.device.attention_half_tokens);
  take_less(worst.device.memory_gb_s, other.device.memory_gb_s);
  take_less(worst.device.adam_gb_s, other.device.adam_gb_s);
  take_more(worst.device.launch_us, other.device.launch_us);
  take_less(worst.host.memory, other.host.memory);
  take_less(worst.host.copy_gb_s, other.host.copy_gb_s);
  take_less(worst.host.checksum_gb_s, other.host.checksum_gb_s);
  take_less(worst.host.adam_gb_s, other.host.adam_gb_s);
  take_less(worst.disk.size, other.disk.size);
  take_less(worst.disk.read_gb_s, other.disk.read_gb_s);
  take_less(worst.disk.write_gb_s, other.disk.write_gb_s);
  worst.disk.half_duplex = one.disk.half_duplex || other.disk.half_duplex;
  take_more(worst.disk.latency_us, other.disk.latency_us);
  return worst;
}

}  // namespace pagoda
