// Machines, clusters and published models of configs/.
#pragma once

#include <string>

#include "cli/sheet_file.h"
#include "preview/model_sizes.h"
#include "tests/testing/golden.h"

namespace pagoda {

inline std::string configs(const std::string& name) { return golden("../../configs/" + name); }

inline MachineSheet machine(const std::string& name) {
  return read_machine_sheet(configs("machines/" + name + ".toml")).take();
}

inline ModelSizes published(const std::string& name) {
  return read_model_sizes(configs("models/" + name + ".json")).take();
}

}  // namespace pagoda
