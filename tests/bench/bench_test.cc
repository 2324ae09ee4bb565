// The parts of `pagoda bench` by themselves: figures of a race against a calculation by hand,
// streams against plain loops, roofs and pages by what they leave in their files. No test asks how
// long anything took. The commands are in process_bench_test.cc.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/bytes.h"
#include "bench/disk.h"
#include "bench/disk_pages.h"
#include "bench/race/noise.h"
#include "bench/race/report.h"
#include "bench/random_weights.h"
#include "bench/roofs/adam_stream.h"
#include "bench/roofs/program.h"
#include "bench/roofs/step_products.h"
#include "bench/roofs/streams.h"
#include "bench/sheet/run_profile.h"
#include "bench/step_shapes.h"
#include "offload/storage_posix.h"
#include "tests/testing/files.h"
#include "tests/testing/storage/storages.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {
namespace {

using testing::host_memory;
using Op = IoRequest::Op;

TEST(QuantileTest, LiesBetweenNeighboursInProportion) {
  EXPECT_EQ(quantile({3}, 0), 3);
  EXPECT_EQ(quantile({3}, 1), 3);
  EXPECT_EQ(quantile({5, 1, 3}, 0.5), 3);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_EQ(quantile({1, 2, 3, 4, 5}, 0.25), 2);
  EXPECT_DOUBLE_EQ(quantile({10, 20}, 0.1), 11);
}

// The ratio is the median of the rounds' ratios: 2, 0.5 and 3; not that of the medians, 4 / 4.
TEST(RaceTest, RatiosAreTakenInsideARound) {
  Figure what;
  what.name = "read";
  what.page_bytes = kMiB;
  PairedRounds race(what);
  const auto timing = [](double gb_per_s, double cpu_s) {
    return Timing{2000000000, 2 / gb_per_s, cpu_s};
  };
  race.add(timing(8, 0.2), timing(4, 2));
  race.add(timing(4, 0.4), timing(8, 4));
  race.add(timing(3, 0.6), timing(1, 6));
  const Figure figure = race.figure();
  EXPECT_EQ(figure.name, "read");
  EXPECT_EQ(figure.page_bytes, kMiB);
  EXPECT_EQ(figure.rounds, 3);
  EXPECT_DOUBLE_EQ(figure.value, 4);
  EXPECT_DOUBLE_EQ(figure.roof, 4);
  EXPECT_DOUBLE_EQ(figure.ratio, 2);
  EXPECT_DOUBLE_EQ(figure.ratio_min, 0.5);
  EXPECT_DOUBLE_EQ(figure.ratio_p10, 0.5 + 0.2 * 1.5);
  EXPECT_DOUBLE_EQ(figure.ratio_max, 3);
  EXPECT_DOUBLE_EQ(figure.cpu_s_per_unit, 0.2);
  EXPECT_DOUBLE_EQ(figure.roof_cpu_s_per_unit, 2);
}

// Four threads of 1 s each have 4 s of CPU time, or others had the cores.
TEST(RaceTest, DisturbedRoundsCountOnlyWhenAllAreSo) {
  Figure what;
  what.threads = 4;
  const Timing good = {1000000000, 1, 3.9}, better = {2000000000, 1, 4}, bad = {5000000000, 1, 2};
  PairedRounds some(what), all(what);
  some.add(better, good);
  some.add(bad, good);
  some.add(better, bad);
  EXPECT_EQ(some.figure().rounds, 3);
  EXPECT_EQ(some.figure().disturbed_rounds, 2);
  EXPECT_DOUBLE_EQ(some.figure().ratio_max, 2);
  all.add(bad, good);
  all.add(good, bad);
  EXPECT_EQ(all.figure().disturbed_rounds, 2);
  EXPECT_DOUBLE_EQ(all.figure().ratio_max, 5);
}

TEST(ReportTest, TextAndJsonSayTheSame) {
  BenchReport report;
  report.bench = "disk";
  report.facts = {{"roof_read", "1.00 MiB x 16"}, {"directory", "a \"b\""}};
  Figure figure;
  figure.name = "write";
  figure.path = "page file";
  figure.page_bytes = 4 * kMiB;
  figure.value = 1.25;
  figure.roof = 1.0;
  figure.ratio = 1.375;
  figure.rounds = 3;
  report.figures = {figure};
  const nlohmann::json object = nlohmann::json::parse(report.json());
  EXPECT_EQ(object["bench"], "disk");
  EXPECT_EQ(object["directory"], "a \"b\"");
  const nlohmann::json& row = object["figures"][0];
  EXPECT_EQ(row["page_bytes"], 4 * kMiB);
  EXPECT_FALSE(row.contains("threads")) << "a drive has none";
  EXPECT_EQ(row["unit"], "GB/s");
  EXPECT_EQ(row["value"], 1.25);
  EXPECT_EQ(row["roof"], 1.0);
  EXPECT_EQ(row["ratio"], 1.375);
  for (const char* word :
       {"roof read", "1.00 MiB x 16", "write", "page file", "4.00 MiB", "1.25"}) {
    EXPECT_NE(report.text().find(word), std::string::npos) << word << "\n" << report.text();
  }
}

// The head names the first row's unit; rows of another name theirs.
TEST(ReportTest, TheTableSaysWhatItsNumbersAreOf) {
  BenchReport report;
  const auto add = [&report](const char* name, const char* unit) {
    Figure figure;
    figure.name = name;
    figure.unit = unit;
    report.figures.push_back(figure);
  };
  add("first", "GFLOP/s");
  add("second", "token/s");
  const std::string text = report.text();
  const std::string head = text.substr(0, text.find("first"));
  EXPECT_NE(head.find("GFLOP/s"), std::string::npos) << text;
  EXPECT_NE(head.find("CPU s/GFLOP"), std::string::npos) << text;
  EXPECT_EQ(text.find("GFLOP/s", head.size()), std::string::npos) << text;
  EXPECT_NE(text.find("token/s", text.find("second")), std::string::npos) << text;
  EXPECT_EQ(text.find("GB"), std::string::npos) << text;
}

TEST(NoiseTest, IsTheSameEveryTimeAndHoldsNoZeros) {
  constexpr int64_t kBytes = 64 * kKiB;
  HostMemory one = host_memory(kBytes), two = host_memory(kBytes);
  fill_noise(one.data(), kBytes);
  fill_noise(two.data(), kBytes);
  EXPECT_EQ(std::memcmp(one.data(), two.data(), kBytes), 0);
  const std::byte zeros[16] = {};
  for (int64_t i = 0; i < kBytes; i += 16) {
    ASSERT_NE(std::memcmp(one.data() + i, zeros, 16), 0) << "at " << i;
  }
}

// Small whole numbers: every result is exact in double, whatever the order of the sum.
TEST(StreamsTest, ComputeWhatPlainLoopsCompute) {
  constexpr int64_t kBytes = 3 * kStreamAlign;
  constexpr size_t kCount = kBytes / sizeof(double);
  HostMemory memory[3] = {host_memory(kBytes), host_memory(kBytes), host_memory(kBytes)};
  double* a = reinterpret_cast<double*>(memory[0].data());
  double* b = reinterpret_cast<double*>(memory[1].data());
  double* c = reinterpret_cast<double*>(memory[2].data());
  for (size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<double>(i % 101);
    b[i] = static_cast<double>(i % 37);
  }
  stream_triad(c, a, b, 4, kBytes);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(c[i], a[i] + 4 * b[i]) << i;
  EXPECT_EQ(stream_sum(c, kBytes), std::accumulate(c, c + kCount, 0.0));
  std::memcpy(c, a, kBytes);
  stream_update(c, 2, kBytes);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(c[i], 2 * a[i] + 1) << i;
  stream_fill(c, 7, kBytes);
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(c[i], 7) << i;
}

// Every bit of weights, remainders and moments once, in whatever shares; gradients stay.
TEST(StreamsTest, TheStreamOfARecordTouchesAllOfIt) {
  constexpr int64_t kElements = 5 * kMomentBlock;
  const AdamSpan span{0, kElements, true};
  for (const StateFormat format : {StateFormat::kFp32, StateFormat::kBf16, StateFormat::k8Bit}) {
    const StateLayout layout(format, DType::kBF16, kElements);
    std::vector<std::byte> gradient(kElements * 2, std::byte{5}), weights(kElements * 2);
    std::vector<std::byte> state(static_cast<size_t>(layout.bytes));
    const AdamRecord record = {layout, {&span, 1}, weights.data(), state.data()};
    for (int64_t share = 0; share < 3; ++share) {
      stream_record(record, gradient.data(), ~uint64_t{0}, share, 3);
    }
    const auto count = [](const std::vector<std::byte>& bytes, std::byte value) {
      return std::count(bytes.begin(), bytes.end(), value);
    };
    EXPECT_EQ(count(gradient, std::byte{5}), kElements * 2);
    EXPECT_EQ(count(weights, std::byte{255}), kElements * 2);
    const int64_t scale_bytes = layout.bytes - layout.scales_at;
    EXPECT_EQ(count(state, std::byte{255}), layout.bytes - scale_bytes);
    EXPECT_EQ(adam_bytes(layout), kElements * 2 * 3 + layout.bytes * 2);
  }
}

TEST(ProgramTest, OutputAndEndOfAProgram) {
  const auto both = run_program({"sh", "-c", "echo out; echo err >&2; exit 7"});
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(both.value().code, 7);
  EXPECT_EQ(both.value().output, "out\nerr\n");
  const auto killed = run_program({"sh", "-c", "kill -9 $$"});
  ASSERT_TRUE(killed.ok()) << killed.status().message();
  EXPECT_EQ(killed.value().code, 128 + 9);
  const auto nothing = run_program({"cat"});
  ASSERT_TRUE(nothing.ok()) << "it waits for input";
  const auto none = run_program({"a-program-that-nobody-has"});
  EXPECT_EQ(none.status().code(), Exit::kUnavailable);
}

TEST(GridTest, FitsRegionAndFlight) {
  const auto all = setting_grid({kMiB, 4 * kMiB}, {4, 64}, kGiB);
  ASSERT_EQ(all.size(), 3u) << "4 MiB x 64 is too much in flight";
  for (const RoofSetting& s : all) EXPECT_LE(s.block_bytes * s.depth, kMostFlightBytes);
  const auto small = setting_grid({kMiB, 4 * kMiB}, {4, 64}, 2 * kMiB);
  EXPECT_EQ(small.size(), 2u);
  const auto tiny = setting_grid({kMiB}, {4}, 2 * kIoAlign);
  ASSERT_EQ(tiny.size(), 1u);
  EXPECT_EQ(tiny[0].block_bytes, kIoAlign);
}

// Rates by setting and pass; the second has the largest single rate, the third the best median.
class PlayedRoof final : public DiskRoof {
 public:
  std::string describe() const override { return "played"; }
  std::vector<RoofSetting> settings(int64_t) const override {
    return {{kMiB, 1}, {kMiB, 2}, {kMiB, 3}};
  }
  Result<Timing> run(Op, const RoofSetting& setting, const FileRegion&) override {
    constexpr double kRates[3][3] = {{1, 2, 3}, {1, 9, 1}, {4, 4, 5}};
    int& pass = passes_[setting.depth - 1];
    return Timing{1000000000, 1 / kRates[setting.depth - 1][pass++], 0};
  }

 private:
  int passes_[3] = {};
};

TEST(SweepTest, TheBestMedianWins) {
  PlayedRoof roof;
  const auto best = sweep(&roof, Op::kRead, {"", 0, kGiB}, 3);
  ASSERT_TRUE(best.ok());
  EXPECT_EQ(best.value().depth, 3);
}

// Against a count over every pair of tokens: two products of the forward, five of the backward.
TEST(AttentionOperationsTest, CountsWhatIsBelowTheDiagonal) {
  constexpr int64_t kTokens = 24, kLength = 6, kHeads = 3, kHeadDim = 10;
  int64_t pairs = 0;
  for (int64_t q = 0; q < kTokens; ++q) {
    for (int64_t k = 0; k <= q; ++k) pairs += q / kLength == k / kLength;
  }
  const AttentionOperations found = attention_operations(kTokens, kLength, kHeads, kHeadDim);
  EXPECT_EQ(found.forward, 2 * 2 * kHeads * kHeadDim * pairs);
  EXPECT_EQ(found.backward, 5 * 2 * kHeads * kHeadDim * pairs);
}

TEST(TileProductsTest, DoWhatIsAskedOnEveryThread) {
  const auto stream = make_host_stream({"test"}, std::make_shared<ThreadPool>(3));
  auto products = TileProducts::make(40, stream.get());
  ASSERT_TRUE(products.ok()) << products.status().message();
  constexpr int64_t kOperations = 30000000, kOfATile = 2 * 2 * 128 * 128 * 40;
  const Timing timing = products.value().run(kOperations);
  EXPECT_GE(timing.bytes, kOperations);
  EXPECT_LT(timing.bytes, kOperations + 3 * kOfATile);
  EXPECT_GT(timing.seconds, 0);
}

// A token visits every matrix but the embedding and the experts that are not its own once.
TEST(StepProductsTest, MultiplyEveryActiveWeightByEveryToken) {
  for (const StepShape& shape : kStepShapes) {
    const auto config = ModelConfig::parse(shape.config, shape.name);
    ASSERT_TRUE(config.ok()) << config.status().message();
    const TensorTable table = TensorTable::make(config.value());
    EXPECT_GT(table.total_parameters(), 200000000);
    EXPECT_LT(table.total_parameters(), 300000000);
    int64_t active = table.active_parameters(config.value());
    for (const TensorSpec& tensor : table.tensors) {
      const bool multiplied = tensor.role != TensorRole::kEmbedding && tensor.shape.size() > 1;
      if (!multiplied) active -= tensor.num_elements();
    }
    constexpr int64_t kTokens = 8192, kLength = 2048;
    int64_t multiplied = 0;
    for (const LinearProduct& p : linear_products(config.value(), kTokens, kLength)) {
      EXPECT_LE(p.rows, kLength);
      multiplied += p.rows * p.in * p.out * p.count;
    }
    EXPECT_EQ(multiplied, kTokens * active) << shape.name;
    const AttentionOperations attention = attention_operations(
        kTokens, kLength, config.value().num_heads, config.value().head_dim);
    EXPECT_EQ(step_operations(config.value(), kTokens, kLength),
              6 * multiplied +
                  config.value().num_layers * (attention.forward + attention.backward));
  }
}

TEST(RandomWeightsTest, HaveEveryTensorsKindAndSpread) {
  const auto config = ModelConfig::parse(tiny_config().dump(), "tiny");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const TensorTable table = TensorTable::make(config.value());
  RandomWeights weights(config.value());
  for (size_t r = 0; r < table.records.size(); ++r) {
    const RecordSpec& record = table.records[r];
    std::vector<float> values(static_cast<size_t>(record.num_elements), -7.0f);
    ASSERT_TRUE(weights.read_record(static_cast<int64_t>(r), values.data()).ok());
    for (int64_t t = record.first_tensor; t < record.first_tensor + record.num_tensors; ++t) {
      const TensorSpec& tensor = table.tensors[static_cast<size_t>(t)];
      const auto begin = values.begin() + tensor.offset, end = begin + tensor.num_elements();
      if (tensor.init == TensorInit::kOnes) {
        EXPECT_EQ(std::count(begin, end, 1.0f), end - begin) << tensor.name;
        continue;
      }
      // Six standard deviations from 0, and not all alike.
      EXPECT_LT(*std::max_element(begin, end), 0.12f) << tensor.name;
      EXPECT_GT(*std::min_element(begin, end), -0.12f) << tensor.name;
      EXPECT_LT(*std::min_element(begin, end), *std::max_element(begin, end)) << tensor.name;
    }
  }
}

class RoofTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Both, RoofTest, ::testing::Values("fio", "loop"),
                         [](const auto& info) { return std::string(info.param); });

// What it writes is not zero, and lies inside the region. What it reads it leaves alone.
TEST_P(RoofTest, MovesTheWholeBlocksOfItsRegion) {
  TempDir folder;
  const bool direct = probe_direct_io(folder.path()) == kDirectAccess;
  const bool fio = GetParam() == std::string("fio");
  auto roof = choose_disk_roof(fio ? RoofKind::kFio : RoofKind::kLoop, direct, folder.path());
  if (!roof.ok()) GTEST_SKIP() << roof.status().message();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a trial was left behind";
  constexpr int64_t kBlock = 4 * kIoAlign, kBlocks = 5;
  const std::string path = folder.file("colon:and space");
  const std::string before(static_cast<size_t>((kBlocks + 4) * kBlock), '\0');
  put_file(path, before);
  const FileRegion region = {path, kBlock, kBlocks * kBlock + kIoAlign};
  const auto read = roof.value()->run(Op::kRead, {kBlock, 2}, region);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value().bytes, kBlocks * kBlock);
  EXPECT_GT(read.value().seconds, 0);
  EXPECT_EQ(get_file(path), before);
  const auto written = roof.value()->run(Op::kWrite, {kBlock, 2}, region);
  ASSERT_TRUE(written.ok()) << written.status().message();
  const std::string after = get_file(path);
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); i += kIoAlign) {
    const bool zero = after.compare(i, kIoAlign, before, i, kIoAlign) == 0;
    EXPECT_EQ(zero, i < kBlock || i >= static_cast<size_t>((kBlocks + 1) * kBlock)) << "at " << i;
  }
  const auto missing = roof.value()->run(Op::kRead, {kBlock, 2}, {folder.file("none"), 0, kBlock});
  EXPECT_EQ(missing.status().code(), Exit::kIoError);
}

class DiskPagesTest : public ::testing::TestWithParam<const char*> {
 protected:
  testing::StorageUnderTest under_test_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(All, DiskPagesTest, ::testing::Values("uring", "threads", "sim"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DiskPagesTest, MovesEveryPageInBothWays) {
  Storage* storage = under_test_.storage.get();
  if (storage == nullptr) GTEST_SKIP() << "io_uring is refused on this machine";
  constexpr int64_t kPage = 3 * kIoAlign, kPages = 150;  // more than a window
  {
    auto made = DiskPages::create(storage, under_test_.directory(), kPage, kPages * kPage + 5);
    ASSERT_TRUE(made.ok()) << made.status().message();
    DiskPages& pages = *made.value();
    const int64_t moved = kPages * (kPage + kPageHeaderBytes);
    EXPECT_EQ(pages.region().bytes, moved);
    for (int round = 0; round < 2; ++round) {
      const auto read = pages.read();
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_EQ(read.value().bytes, moved);
      const auto plain = pages.move_plain(Op::kRead);
      ASSERT_TRUE(plain.ok()) << plain.status().message();
      EXPECT_EQ(plain.value().bytes, moved);
      ASSERT_TRUE(pages.write().ok());
    }
    const auto written = pages.move_plain(Op::kWrite);
    ASSERT_TRUE(written.ok()) << written.status().message();
    EXPECT_EQ(written.value().bytes, moved);
    ASSERT_TRUE(storage->exists(pages.region().path));
    if (under_test_.kind != "sim") {
      const bool direct = probe_direct_io(under_test_.directory()) == kDirectAccess;
      const auto roof = make_loop_roof(direct, "");
      ASSERT_TRUE(roof->run(Op::kWrite, {kIoAlign, 2}, pages.region()).ok());
      EXPECT_EQ(pages.read().status().code(), Exit::kIoError) << "no pages were written there";
    }
  }
  const auto left = storage->list_directory(under_test_.directory());
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(left.value(), std::vector<std::string>());
}

void add(TaskKind kind, int times, double seconds, double own_s, DeviceTasks& tasks) {
  for (int i = 0; i < times; ++i) {
    tasks.samples[static_cast<size_t>(kind)].push_back({.seconds = seconds, .own_s = own_s});
  }
}

// Attention takes 240 ms and 10 ms of a processor, experts 288 ms and 36 ms for 60 rows.
TEST(RunProfileTest, FindsHowSlowADeviceIs) {
  DeviceTasks device;
  device.microbatches = 2;
  device.expert_rows = 60;
  add(TaskKind::kAttention, 2, 0.08, 0.003, device);
  add(TaskKind::kAttentionBackward, 2, 0.16, 0.007, device);
  add(TaskKind::kExpert, 3, 0.032, 0.005, device);
  add(TaskKind::kExpertBackward, 3, 0.064, 0.007, device);
  add(TaskKind::kReceive, 6, 0.001, 0.001, device);
  add(TaskKind::kHead, 4, 5, 5, device);  // is neither
  const RunProfile::Device found = device_figures("cpu/8:24", device, 20);
  EXPECT_EQ(found.name, "cpu/8:24");
  EXPECT_DOUBLE_EQ(found.attention_s, 0.24);
  EXPECT_DOUBLE_EQ(found.experts_s, 0.288 / 60 * 20);
  EXPECT_DOUBLE_EQ(found.exchange_s, 0.003);
  EXPECT_NEAR(found.attention_slowness, 24, 1e-9);
  EXPECT_NEAR(found.experts_slowness, 8, 1e-9);
  device.expert_rows = 0;
  EXPECT_EQ(device_figures("", device, 20).experts_slowness, 1) << "of no experts";
}

TEST(RunProfileTest, OfOtherLayersThanTheModelsIsRefused) {
  TempDir folder;
  put_file(folder.file("config.json"), tiny_config().dump());
  RunConfig config;
  config.model.path = folder.path();
  config.train.devices = {"cpu*2"};
  config.parallel.layout = LayoutKind::kZebra;
  config.parallel.offloaded = {"1", "2", "3"};
  const Status refused = profile_run(config, MachineSheet(), folder.path(), 1).status();
  EXPECT_EQ(refused.code(), Exit::kUsage);
  EXPECT_NE(refused.message().find("3 numbers, and the model 2 layers"), std::string::npos)
      << refused.message();
}

// Without zebra nothing counts experts.
TEST(RunProfileTest, SaysHowManyExpertsAreKeptIfTheyWereCounted) {
  RunProfile found;
  found.devices = {{"cpu/4", 2e-3, 1e-3, 0, 1, 1}};
  const std::vector<std::string> uncounted = found.lines();
  found.profile.kept_by = "a run";
  found.profile.least_kept = 3;
  found.profile.most_kept = 5;
  const std::vector<std::string> lines = found.lines();
  ASSERT_EQ(lines.size(), uncounted.size() + 1);
  EXPECT_EQ(lines.back(),
            "experts: at least 3 of all layers must be kept by devices that attend; each of these "
            "has room for 5");
}

}  // namespace
}  // namespace pagoda
