#include "config/device_list.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/number_text.h"

namespace pagoda {
namespace {

constexpr double kMostSlow = 1000;

Status wrong(const std::string& text, const std::string& why) {
  return Status(Exit::kUsage, "\"" + printable(text) + "\" " + why);
}

// Cuts what follows the first `mark` off `text`; nothing when there is no mark.
std::pair<std::string, bool> cut(std::string& text, char mark) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return {"", false};
  std::string rest = text.substr(at + 1);
  text.resize(at);
  return {std::move(rest), true};
}

Status read_number(const std::string& whole, const std::string& text, int64_t least, int64_t& to) {
  if (parse_int64(text, to) && to >= least && to <= kMostDevices) return Status();
  return wrong(whole, strf("needs a number from %lld to %d after the colon or the star",
                           (long long)least, kMostDevices));
}

Status read_factor(const std::string& whole, const std::string& text, double& to) {
  if (parse_real(text, to) && to >= 1 && to <= kMostSlow) return Status();
  return wrong(whole, strf("needs factors from 1 to %.0f, as in cpu/8 or cpu/8:24", kMostSlow));
}

Status read_throttle(const std::string& whole, std::string text, Throttle& throttle) {
  const auto [rest, has_rest] = cut(text, ':');
  RETURN_IF_ERROR(read_factor(whole, text, throttle.experts));
  throttle.rest = throttle.experts;
  return has_rest ? read_factor(whole, rest, throttle.rest) : Status();
}

// Appends the devices of one word.
Status read_word(const std::string& whole, std::vector<ListedDevice>& devices) {
  std::string word = whole;
  const auto [count_text, has_count] = cut(word, '*');
  const auto [slow_text, has_slow] = cut(word, '/');
  const auto [index_text, has_index] = cut(word, ':');
  ListedDevice device;
  if (word == "cuda") {
    device.kind = Processor::kGpu;
  } else if (word != "cpu") {
    return wrong(whole, "is no device; name cpu or cuda, for example cuda:0, cpu*2 or cpu/8");
  }
  int64_t count = 1, index = 0;
  if (has_count) RETURN_IF_ERROR(read_number(whole, count_text, 1, count));
  if (has_index) RETURN_IF_ERROR(read_number(whole, index_text, 0, index));
  if (has_slow) RETURN_IF_ERROR(read_throttle(whole, slow_text, device.throttle));
  const bool cuda = device.kind == Processor::kGpu;
  if (cuda && has_slow) {
    return wrong(whole, "slows a GPU; only CPU devices can be slowed, as in cpu/8");
  }
  if (!cuda && has_index) return wrong(whole, "numbers a CPU device; cpu*2 names two of them");
  if (has_count && has_index) return wrong(whole, "has both a number and a count; give one");
  for (int64_t i = 0; i < count; ++i) {
    device.index = cuda ? static_cast<int>(index + i) : 0;
    devices.push_back(device);
  }
  return Status();
}

Status check_together(const std::vector<ListedDevice>& devices) {
  const auto cuda = [](const ListedDevice& d) { return d.kind == Processor::kGpu; };
  if (devices.size() > kMostDevices) {
    return Status(Exit::kUsage,
                  strf("names %zu devices; a run has at most %d", devices.size(), kMostDevices));
  }
  const auto gpus = std::count_if(devices.begin(), devices.end(), cuda);
  if (gpus == 0) return Status();
  if (gpus < std::ssize(devices)) {
    return Status(Exit::kUsage,
                  "names GPUs and CPU devices together; their kernels round differently, so that "
                  "bits would depend on who computes; name one kind");
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (devices[i].index != devices[j].index) continue;
      return Status(Exit::kUsage, strf("names cuda:%d twice", devices[i].index));
    }
  }
  return Status();
}

}  // namespace

std::string ListedDevice::text() const {
  if (kind == Processor::kGpu) return strf("cuda:%d", index);
  if (!throttle.slows()) return "cpu";
  if (throttle.experts == throttle.rest) return strf("cpu/%g", throttle.experts);
  return strf("cpu/%g:%g", throttle.experts, throttle.rest);
}

bool names_gpus(const std::vector<ListedDevice>& devices) {
  return !devices.empty() && devices.front().kind == Processor::kGpu;
}

Result<std::vector<ListedDevice>> parse_devices(const std::vector<std::string>& texts) {
  std::vector<std::string> words;
  for (std::string text : texts) {
    for (bool more = true; more;) {
      auto [rest, has_rest] = cut(text, ',');
      words.push_back(std::exchange(text, std::move(rest)));
      more = has_rest;
    }
  }
  std::vector<ListedDevice> devices;
  if (words == std::vector<std::string>{"auto"}) return devices;
  if (words.empty()) return Status(Exit::kUsage, "names no device; auto takes what there is");
  for (const std::string& word : words) {
    RETURN_IF_ERROR(read_word(word, devices));
    if (devices.size() > kMostDevices) break;
  }
  RETURN_IF_ERROR(check_together(devices));
  return devices;
}

}  // namespace pagoda
