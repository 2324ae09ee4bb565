#include "config/computed_with.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/gpu_ops.h"
#include "kernels/kernel_set.h"

namespace pagoda {
namespace {

// Each model once, in the order of the run's devices.
std::string of_gpus(const std::vector<Gpu>& gpus) {
  if (gpus.empty()) return "";
  std::vector<std::string> models;
  std::string text;
  for (const Gpu& gpu : gpus) {
    if (std::find(models.begin(), models.end(), gpu.name) != models.end()) continue;
    models.push_back(gpu.name);
    text += (text.empty() ? "" : " and ") + gpu.name;
  }
  return gpu_ops_build() + " on " + text + ", ";
}

}  // namespace

std::string kernel_set_with(const std::vector<Gpu>& gpus) {
  return of_gpus(gpus) + cpu_kernel_set();
}

std::string build_with(const std::vector<Gpu>& gpus) {
  return strf("pagoda %s, %s", PAGODA_VERSION, (of_gpus(gpus) + cpu_ops_build()).c_str());
}

}  // namespace pagoda
