// Goldens (tests/golden): where they are, folders made of them, tensors of a golden file, and how
// far apart two arrays are.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/json.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {

// The path of a golden.
std::string golden(const std::string& name);
// A golden model in a folder of the test's, with other values in its config.json.
std::string patched_folder(const TempDir& dir, const std::string& name, const Json& patch);

// A tensor that is asked for must be there, in the type it is asked in.
class Golden {
 public:
  explicit Golden(const std::string& path);

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const;
  std::vector<int32_t> ints(const std::string& name) const;
  float number(const std::string& name) const { return floats(name).at(0); }
  const SafetensorsFile& file() const { return file_; }

 private:
  SafetensorsFile file_;
};

// norm(a - b) / norm(b)
double relative_l2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace pagoda
