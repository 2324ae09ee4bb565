#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"
#include "base/random.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

// A file with any header text, honest about its length.
std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

class Safetensors : public testing::Test {
 protected:
  Status open(const std::string& content) {
    put_file(path_, content);
    return SafetensorsFile::open(path_).status();
  }
  void expect_refused(const std::string& content, const std::string& part) {
    const Status status = open(content);
    ASSERT_FALSE(status.ok()) << "accepted, expected: " << part;
    EXPECT_EQ(status.code(), Exit::kBadData) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("m.safetensors"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
  TempDir dir_;
  const std::string path_ = dir_.file("m.safetensors");
};

const char kTwo[] =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}})";

TEST_F(Safetensors, ReadsAGoodFile) {
  put_file(path_, file_of(kTwo, "0123456789abcd"));
  auto file = SafetensorsFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->entries().size(), 2u);
  const SafetensorsEntry* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "BF16");
  EXPECT_EQ(b->shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(file->find("c"), nullptr);
  char bytes[4] = {};
  ASSERT_TRUE(file->read(*b, 1, bytes, 4).ok());
  EXPECT_EQ(std::string(bytes, 4), "9abc");
}

TEST_F(Safetensors, AcceptsTheLegalOddities) {
  EXPECT_TRUE(open(file_of("{}", "")).ok());
  EXPECT_TRUE(open(file_of("{}   ", "")).ok());
  // A scalar, an empty tensor, four-bit values that fill their bytes.
  EXPECT_TRUE(
      open(file_of(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", std::string(8, 'x')))
          .ok());
  EXPECT_TRUE(open(file_of(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                           R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                           "x"))
                  .ok());
  EXPECT_TRUE(open(file_of(R"({"f":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", "xy")).ok());
}

TEST_F(Safetensors, RefusesEveryTruncation) {
  const std::string whole = file_of(kTwo, "0123456789abcd");
  ASSERT_TRUE(open(whole).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const Status status = open(whole.substr(0, bytes));
    ASSERT_FALSE(status.ok()) << "accepted " << bytes << " bytes of " << whole.size();
    ASSERT_EQ(status.code(), Exit::kBadData) << status.message();
  }
  EXPECT_FALSE(open(whole + "x").ok());
}

// No flipped byte may crash or hang, and every one in the length or in structure is refused.
TEST_F(Safetensors, SurvivesEveryFlippedBit) {
  const std::string whole = file_of(kTwo, "0123456789abcd");
  const size_t header_end = 8 + std::strlen(kTwo);
  int refused = 0, accepted = 0;
  for (size_t at = 0; at < header_end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const bool ok = open(flipped).ok();
      EXPECT_FALSE(ok && at < 8) << "length byte " << at;
      ++(ok ? accepted : refused);
    }
  }
  // What can be accepted is another name, another metadata text or an equal-sized dtype.
  EXPECT_GT(refused, 10 * accepted / 4);
}

TEST_F(Safetensors, RefusesWrongLengths) {
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{100000001}, uint64_t{1} << 40,
                                ~uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0} - 7}) {
    std::string content = file_of(kTwo, "0123456789abcd");
    std::memcpy(content.data(), &length, 8);
    const Status status = open(content);
    EXPECT_EQ(status.code(), Exit::kBadData) << length << " " << status.message();
  }
}

TEST_F(Safetensors, RefusesHolesAndOverlaps) {
  const auto two = [](const char* first, const char* second) {
    return strf(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[%s]},)"
                R"("b":{"dtype":"U8","shape":[4],"data_offsets":[%s]}})",
                first, second);
  };
  EXPECT_TRUE(open(file_of(two("4,8", "0,4"), "01234567")).ok());
  expect_refused(file_of(two("0,4", "5,9"), "012345678"), "begins at 5");
  expect_refused(file_of(two("0,4", "3,7"), "0123456"), "begins at 3");
  expect_refused(file_of(two("0,4", "0,4"), "0123"), "begins at 0");
  expect_refused(file_of(two("1,5", "5,9"), "012345678"), "begins at 1");
  expect_refused(file_of(two("0,4", "4,8"), "0123456"), "need 8 bytes");
  expect_refused(file_of(two("0,4", "4,8"), "012345678"), "need 8 bytes");
  expect_refused(file_of(two("4,0", "4,8"), "01234567"), "backwards");
  expect_refused(file_of(two("-4,0", "0,4"), "01234567"), "backwards");
  expect_refused(file_of(two("0.0,4", "4,8"), "01234567"), "backwards");
  expect_refused(file_of(two("0,4,8", "4,8"), "01234567"), "[begin, end]");
}

TEST_F(Safetensors, RefusesShapesThatDoNotMakeTheirBytes) {
  const auto one = [](const std::string& dtype, const std::string& shape, const char* end) {
    return file_of(R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape +
                       R"(,"data_offsets":[0,)" + end + "]}}",
                   std::string(8, 'x'));
  };
  EXPECT_TRUE(open(one("F32", "[2]", "8")).ok());
  expect_refused(one("BF16", "[2]", "8"), "BF16");
  expect_refused(one("F64", "[2]", "8"), "F64");
  expect_refused(one("F4", "[3]", "8"), "F4");
  // Products that wrap to 8 or to 0 in 64 bits.
  expect_refused(one("U8", "[4294967296,4294967296]", "0"), "does not make");
  expect_refused(one("U8", "[2305843009213693953,8]", "8"), "does not make");
  expect_refused(one("F32", "[4611686018427387904]", "0"), "does not make");
  expect_refused(one("F32", "[18446744073709551615]", "8"), "not a size");
  expect_refused(one("F32", "[-2]", "8"), "not a size");
  expect_refused(one("F32", "[2.0]", "8"), "not a size");
  expect_refused(one("F32", "[1,1,1,1,1,1,1,1,2]", "8"), "\"shape\"");
  expect_refused(one("F32", "2", "8"), "\"shape\"");
  expect_refused(one("Q5", "[2]", "8"), "unknown dtype");
  expect_refused(one("f32", "[2]", "8"), "unknown dtype");
}

TEST_F(Safetensors, RefusesWrongStructure) {
  const std::string t = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_TRUE(open(file_of("{\"t\":" + t + "}", "x")).ok());
  expect_refused(file_of("{\"t\":" + t + ",\"t\":" + t + "}", "x"), "duplicate key");
  expect_refused(
      file_of(R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"),
      "duplicate key");
  expect_refused(file_of(R"({"t":{"dtype":"U8","shape":[1]}})", "x"), "exactly");
  expect_refused(file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"k":1}})", "x"),
                 "exactly");
  expect_refused(file_of(R"({"t":[1,2,3]})", ""), "exactly");
  expect_refused(file_of(R"({"__metadata__":{"a":1}})", ""), "__metadata__");
  expect_refused(file_of(R"({"__metadata__":[]})", ""), "__metadata__");
  expect_refused(file_of(" {}", ""), "begin with '{'");
  expect_refused(file_of("[]", ""), "begin with '{'");
  expect_refused(file_of(std::string("{}\0", 3), ""), "NUL");
  expect_refused(file_of("{}{}", ""), "invalid JSON");
  expect_refused(file_of("{\"\xFF\":" + t + "}", "x"), "invalid JSON");
  expect_refused(file_of("{\"" + std::string(513, 'n') + "\":" + t + "}", "x"), "512 bytes");
  EXPECT_TRUE(open(file_of("{\"" + std::string(512, 'n') + "\":" + t + "}", "x")).ok());
  expect_refused(file_of("{\"\\u001b[31m\\n\":1}", ""), "exactly");  // the name is printed escaped
}

TEST_F(Safetensors, RefusesBombsQuickly) {
  const auto start = std::chrono::steady_clock::now();
  expect_refused(file_of("{\"a\":" + std::string(500000, '['), ""), "nested deeper than 64");
  std::string deep;
  for (int i = 0; i < 500000; ++i) deep += "{\"a\":";
  expect_refused(file_of(deep, ""), "nested deeper than 64");
  expect_refused(file_of("{\"a\":\"" + std::string(2000000, 'x') + "\"}", ""), "longer than");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 5.0);
}

TEST_F(Safetensors, RefusesWhatIsNoRegularFile) {
  put_file(dir_.file("real"), file_of("{}", ""));
  std::filesystem::create_symlink("real", dir_.file("link"));
  ASSERT_EQ(mkfifo((dir_.file("fifo")).c_str(), 0600), 0);
  EXPECT_TRUE(SafetensorsFile::open(dir_.file("real")).ok());
  EXPECT_TRUE(SafetensorsFile::open(dir_.file("link")).ok()) << "the hub's cache is made of links";
  EXPECT_EQ(SafetensorsFile::open(dir_.file("fifo")).status().code(), Exit::kBadData);
  EXPECT_EQ(SafetensorsFile::open(dir_.path()).status().code(), Exit::kBadData);
  EXPECT_EQ(SafetensorsFile::open("/dev/zero").status().code(), Exit::kBadData);
  EXPECT_EQ(SafetensorsFile::open(dir_.file("absent")).status().code(), Exit::kNoInput);
}

TEST_F(Safetensors, WriterAlignsDataAndRoundTrips) {
  const std::vector<SafetensorsWriter::Tensor> tensors = {{"z", StoredDType::kF32, {3, 5}},
                                                          {"a\"b", StoredDType::kBF16, {7}},
                                                          {"h", StoredDType::kF16, {2, 2}}};
  std::string data(60 + 14 + 8, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  {
    auto writer = SafetensorsWriter::create(path_, tensors);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    for (size_t at = 0; at < data.size(); at += 9) {
      ASSERT_TRUE(writer->append(data.data() + at, std::min<int64_t>(9, data.size() - at)).ok());
    }
    EXPECT_FALSE(std::filesystem::exists(path_));
    ASSERT_TRUE(writer->finish().ok());
  }
  auto file = SafetensorsFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->find("z")->offset % kIoAlign, 0);
  EXPECT_EQ(file->entries()[1].name, "a\"b");
  EXPECT_EQ(file->find("h")->shape, (std::vector<int64_t>{2, 2}));
  std::string back(14, '\0');
  ASSERT_TRUE(file->read(*file->find("a\"b"), 0, back.data(), 14).ok());
  EXPECT_EQ(back, data.substr(60, 14));
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(Safetensors, UnfinishedWriterLeavesNothing) {
  put_file(path_, "the old file");
  {
    auto writer = SafetensorsWriter::create(path_, {{"a", StoredDType::kF32, {4}}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->append("1234", 4).ok());
  }
  EXPECT_EQ(get_file(path_), "the old file");
  EXPECT_EQ(files_in(std::filesystem::path(path_).parent_path()).size(), 1u);
}

TEST(StoredDType, EveryHalfAndBf16SurvivesBothWays) {
  for (const StoredDType dtype : {StoredDType::kF16, StoredDType::kBF16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto in = static_cast<uint16_t>(bits);
      float value = 0;
      stored_to_float(dtype, &in, 1, &value);
      if (std::isnan(value)) continue;
      uint16_t out = 0;
      float_to_stored(dtype, &value, 1, &out);
      ASSERT_EQ(in, out) << safetensors_name(dtype) << " " << value;
    }
  }
}

// Against the definition: the nearest half, the even one of two equally near.
TEST(StoredDType, HalfRoundsToNearestEven) {
  const uint64_t seed = 20;
  for (uint64_t i = 0; i < 200000; ++i) {
    const auto r = philox(seed, RandomPurpose::kTest, i, 0);
    const double magnitude =
        std::ldexp(1.0 + (r[0] >> 9) * 0x1p-23, static_cast<int>(r[1] % 40) - 26);
    const auto value = static_cast<float>(r[2] & 1 ? -magnitude : magnitude);
    uint16_t bits = 0;
    float_to_stored(StoredDType::kF16, &value, 1, &bits);
    float back = 0;
    stored_to_float(StoredDType::kF16, &bits, 1, &back);
    const auto distance = [&](int step) {
      const auto neighbour = static_cast<uint16_t>(bits + step);
      float v = 0;
      stored_to_float(StoredDType::kF16, &neighbour, 1, &v);
      return std::fabs(static_cast<double>(v) - value);
    };
    if (magnitude > 65504.0) continue;
    const double error = std::fabs(static_cast<double>(back) - value);
    ASSERT_LE(error, distance(1)) << "seed " << seed << " value " << value;
    if ((bits & 0x7fff) != 0) {
      ASSERT_LE(error, distance(-1)) << "seed " << seed << " value " << value;
    }
    const bool tie = error == distance(1) || ((bits & 0x7fff) != 0 && error == distance(-1));
    ASSERT_TRUE(!tie || (bits & 1) == 0) << "seed " << seed << " value " << value;
  }
}

// Numbers of the format's own table: least and largest of both kinds, 1, and NaN.
TEST(StoredDTypes, Fp8) {
  EXPECT_EQ(fp8_to_float(0x00), 0.0f);
  EXPECT_EQ(fp8_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(fp8_to_float(0x07), 0x1.cp-7f);
  EXPECT_EQ(fp8_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(fp8_to_float(0x38), 1.0f);
  EXPECT_EQ(fp8_to_float(0x3c), 1.5f);
  EXPECT_EQ(fp8_to_float(0x7e), 448.0f);
  EXPECT_EQ(fp8_to_float(0xfe), -448.0f);
  EXPECT_EQ(fp8_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::signbit(fp8_to_float(0x80)));
  for (const uint8_t nan : {0x7f, 0xff}) EXPECT_TRUE(std::isnan(fp8_to_float(nan)));
}

// Every byte with every scale, numbers written out.
TEST(StoredDTypes, Mxfp4) {
  const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};
  for (int scale = 0; scale < 256; ++scale) {
    for (int first = 0; first < 256; first += 16) {
      uint8_t bytes[16];
      for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(first + i);
      const auto one = static_cast<uint8_t>(scale);
      float got[32];
      mxfp4_to_float(bytes, &one, 32, got);
      for (int i = 0; i < 32; ++i) {
        const int number = i % 2 == 0 ? i / 2 : first / 16;  // the lower half first
        const auto want = static_cast<float>(values[number] * std::pow(2.0, scale - 127));
        if (scale == 255) {
          ASSERT_TRUE(std::isnan(got[i])) << first << " " << i;
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want))
              << scale << " " << first << " " << i;
        }
      }
    }
  }
  // Each block has its own scale.
  const uint8_t twos[32] = {0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22,
                            0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22,
                            0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22, 0x22};
  const uint8_t scales[2] = {127, 130};
  float got[64];
  mxfp4_to_float(twos, scales, 64, got);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i], i < 32 ? 1.0f : 8.0f) << i;
}

}  // namespace
}  // namespace pagoda
