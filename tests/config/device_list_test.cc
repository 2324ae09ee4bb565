#include "config/device_list.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {
namespace {

// "cuda:1 cpu/8:24", with nothing left out.
std::string spelled(const std::vector<std::string>& texts) {
  const auto devices = parse_devices(texts);
  if (!devices.ok()) return devices.status().message();
  std::string all;
  for (const ListedDevice& d : devices.value()) {
    if (!all.empty()) all += ' ';
    all += d.kind == Processor::kGpu ? strf("cuda:%d", d.index)
                                     : strf("cpu/%g:%g", d.throttle.experts, d.throttle.rest);
  }
  return all;
}

TEST(DeviceList, NamesDevices) {
  EXPECT_EQ(spelled({"auto"}), "");
  EXPECT_EQ(spelled({"cpu"}), "cpu/1:1");
  EXPECT_EQ(spelled({"cuda"}), "cuda:0");
  EXPECT_EQ(spelled({"cuda:3", "cuda:1"}), "cuda:3 cuda:1");
  EXPECT_EQ(spelled({"cuda*2"}), "cuda:0 cuda:1");
  EXPECT_EQ(spelled({"cpu/8"}), "cpu/8:8");
  EXPECT_EQ(spelled({"cpu/8:24*2"}), "cpu/8:24 cpu/8:24");
  EXPECT_EQ(spelled({"cpu,cpu/2.5"}), "cpu/1:1 cpu/2.5:2.5");
  EXPECT_EQ(spelled({"cpu/12", "cpu/4,cpu"}), "cpu/12:12 cpu/4:4 cpu/1:1");
}

TEST(DeviceList, RefusesTheRestInOneLine) {
  struct Refused {
    std::vector<std::string> texts;
    const char* why;
  };
  for (const Refused& refused : std::vector<Refused>{
           {{}, "names no device"},
           {{""}, "is no device"},
           {{"auto", "cpu"}, "is no device"},
           {{"gpu"}, "is no device"},
           {{"cpu,"}, "is no device"},
           {{"cpu*0"}, "from 1 to 64"},
           {{"cpu*65"}, "from 1 to 64"},
           {{"cpu*"}, "from 1 to 64"},
           {{"cpu*33", "cpu*32"}, "at most 64"},
           {{"cuda:-1"}, "from 0 to 64"},
           {{"cuda:x"}, "from 0 to 64"},
           {{"cpu:0"}, "numbers a CPU device"},
           {{"cuda:0*2"}, "both a number and a count"},
           {{"cpu/0.5"}, "factors from 1 to 1000"},
           {{"cpu/8:"}, "factors from 1 to 1000"},
           {{"cpu/nan"}, "factors from 1 to 1000"},
           {{"cuda/2"}, "slows a GPU"},
           {{"cuda:1", "cuda:1"}, "cuda:1 twice"},
           {{"cuda*2", "cuda:1"}, "cuda:1 twice"},
           {{"cuda", "cpu"}, "kernels round differently"},
           {{"cpu\n"}, "\"cpu\\x0a\""},
       }) {
    const auto devices = parse_devices(refused.texts);
    ASSERT_FALSE(devices.ok()) << refused.why;
    EXPECT_EQ(devices.status().code(), Exit::kUsage);
    const std::string message = devices.status().message();
    EXPECT_NE(message.find(refused.why), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace pagoda
