// The root promise of two models that generate at once on the same devices (`pagoda generate
// --with`): the tokens of each are those that it generates alone on one device, bit for bit, on
// devices equal or not, resident or paged, with homes of experts by recorded routing, whatever time
// exchanges take.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <new>
#include <numeric>
#include <thread>

#include "commands/forward_run.h"
#include "commands/generate_together.h"
#include "plan/exchange/colocated_homes.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/watchdog.h"
#include "train/generation.h"

namespace pagoda {
namespace {

struct Layout {
  const char* devices;
  bool paged = false;
  bool by_routing = false;
};

std::string text_of(const Layout& layout) {
  return std::string(layout.devices) + (layout.paged ? ", paged" : ", resident") +
         (layout.by_routing ? ", by recorded routing" : "");
}

using Turns = std::vector<std::shared_ptr<DeviceTurn>>;
using Tokens = std::vector<TokenIds>;

struct Came {
  Status status;
  Tokens tokens;
  int64_t fetches = 0;
  double waited_s = 0;  // its streams, for others that compute
};

class TogetherPromise : public testing::Test {
 protected:
  static constexpr int64_t kNewTokens = 6;

  void SetUp() override {
    for (uint32_t i = 0; i < 5; ++i) {
      prompts_.emplace_back();
      for (uint32_t p = 0; p < 1 + i * 11 % 19; ++p) {
        prompts_.back().push_back((i * 53 + p * p) % 257);
      }
    }
  }

  // One of the two, alone if there are no turns.
  Came generate(size_t model, const Layout& layout, const Turns& turns,
                const std::atomic<bool>* stop = nullptr) {
    Came came;
    came.status = program(model, layout, turns, stop, came);
    return came;
  }

  Status program(size_t model, const Layout& layout, const Turns& turns,
                 const std::atomic<bool>* stop, Came& came) {
    RunConfig config = models_[model].config();
    config.train.devices = {layout.devices};
    config.train.threads = 2;
    config.memory.io = IoKind::kThreads;
    config.memory.disk = {models_[model].dir().file("disk")};
    RankGroup alone;
    ForwardRun run(config, alone);
    RETURN_IF_ERROR(run.open(""));
    ASSIGN_OR_RETURN(SessionOptions options, run.options(std::nullopt));
    options.device_bytes = options.host_bytes = 64 * kMiB;
    options.size.cache = cache_for(prompts_, kNewTokens);
    options.deal_sequences(std::ssize(prompts_), options.num_devices());
    options.size.microbatch_tokens = 16;
    options.turns = turns;
    if (layout.by_routing) options.homes = homes_[model];
    if (layout.paged) {
      ASSIGN_OR_RETURN(const MemoryPlan least,
                       Session::plan(run.model().folder->config(), options));
      options.device_bytes = least.min_device_bytes;
      options.host_bytes = least.min_host_bytes;
    }
    return run.in_session(options, [&](Session& session) -> Status {
      if (session.link() != nullptr) session.slow_link({1e-4, 0, 4e-4, 3 + model});
      const int64_t before = session.pager().counters().fetches;
      RETURN_IF_ERROR(continue_prompts(session, stop, came.tokens));
      came.fetches = session.pager().counters().fetches - before;
      for (int d = 0; d < session.options().num_devices(); ++d) {
        const StreamTime time = session.executor().device_time(d);
        came.waited_s +=
            1e-6 * static_cast<double>(time.waited_us[static_cast<size_t>(WorkKind::kCompute)]);
      }
      return Status();
    });
  }

  // Greedily, and drawn, which a bit of a logit may turn.
  Status continue_prompts(Session& session, const std::atomic<bool>* stop, Tokens& tokens) const {
    PassRunner runner(&session);
    for (const double temperature : {0.0, 1.0}) {
      GenerationSettings settings;
      settings.max_new_tokens = kNewTokens;
      settings.sampling = {temperature, 0.95, 11};
      settings.stop = stop;
      ASSIGN_OR_RETURN(const std::vector<Continuation> continuations,
                       pagoda::generate(runner, prompts_, settings));
      for (const Continuation& c : continuations) tokens.push_back(c.tokens);
    }
    return Status();
  }

  std::array<Came, 2> together(const Layout& layout) {
    Turns turns;
    const std::vector<ListedDevice> devices = parse_devices({layout.devices}).value();
    for (size_t d = 0; d < devices.size(); ++d) turns.push_back(std::make_shared<DeviceTurn>());
    if (layout.by_routing) place(std::ssize(devices));
    std::array<Came, 2> came;
    std::thread other([&] { came[1] = generate(1, layout, turns); });
    came[0] = generate(0, layout, turns);
    other.join();
    return came;
  }

  // Homes by a trace that is made up: the experts with high numbers are hot.
  void place(int64_t devices) {
    std::array<RunShape, 2> shapes;
    std::array<RoutingTrace, 2> traces;
    for (size_t m = 0; m < 2; ++m) {
      SessionOptions options;
      options.devices.resize(static_cast<size_t>(devices));
      const HfFolder folder = HfFolder::open(models_[m].config().model.path).take();
      shapes[m] = make_run_shape(model_shape(folder.config()), options);
      traces[m].shape = routed_shape(shapes[m]);
      std::vector<std::vector<int64_t>> layers;
      for (const uint8_t is_moe : traces[m].shape.is_moe) {
        layers.emplace_back();
        for (int64_t e = 0; is_moe && e < traces[m].shape.num_experts; ++e) {
          layers.back().push_back(e * e);
        }
      }
      traces[m].steps = {{1, {layers}}};
    }
    const std::vector<double> attends(static_cast<size_t>(devices),
                                      1 / static_cast<double>(devices));
    const std::vector<ServingDevice> equal(static_cast<size_t>(devices), {1, 1});
    auto homes = colocated_homes({shapes[0], traces[0], 1, 1, attends},
                                 {shapes[1], traces[1], 1, 1, attends}, equal);
    ASSERT_TRUE(homes.ok()) << homes.status().message();
    homes_ = {homes->of_a, homes->of_b};
    for (size_t m = 0; m < 2; ++m) {
      bool other = false;
      for (size_t r = 0; r < shapes[m].records.size(); ++r) {
        other |= shapes[m].records[r].expert >= 0 && shapes[m].records[r].device != homes_[m][r];
      }
      EXPECT_TRUE(other) << "homes are what they would be anyway";
    }
  }

  std::array<TinyRun, 2> models_ = {
      TinyRun(), TinyRun(DType::kF32, tiny_with(R"({"hidden_size": 48, "num_hidden_layers": 4,
          "num_experts": 10, "num_experts_per_tok": 3, "moe_intermediate_size": 16})")
                                          .c_str())};
  std::array<std::vector<int>, 2> homes_;
  std::vector<TokenIds> prompts_;
};

const Layout kLayouts[] = {
    {"cpu"},
    {"cpu", true},
    {"cpu*2"},
    {"cpu*2", true, true},
    {"cpu*3", false, true},
    {"cpu*3", true},
    {"cpu/2:2,cpu/2:6,cpu/3:2", false, true},
    {"cpu/2:6,cpu/2:2", true},
};

TEST_F(TogetherPromise, EachHasTheTokensThatItHasAlone) {
  const Watchdog watchdog("two models", std::chrono::seconds(600));
  std::array<Came, 2> alone;
  for (size_t m = 0; m < 2; ++m) {
    alone[m] = generate(m, {"cpu"}, {});
    ASSERT_TRUE(alone[m].status.ok()) << alone[m].status.message();
    ASSERT_EQ(alone[m].tokens.size(), 2 * prompts_.size());
    EXPECT_EQ(alone[m].waited_s, 0);
  }
  EXPECT_NE(alone[0].tokens, alone[1].tokens) << "the models are alike";
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(text_of(layout));
    const std::array<Came, 2> came = together(layout);
    for (size_t m = 0; m < 2; ++m) {
      EXPECT_TRUE(came[m].status.ok()) << came[m].status.message();
      EXPECT_EQ(came[m].tokens, alone[m].tokens) << "model " << m;
      if (layout.paged) {
        EXPECT_GT(came[m].fetches, 0) << "nothing was paged";
      }
    }
    EXPECT_GT(came[0].waited_s + came[1].waited_s, 0) << "nobody waited for a turn";
  }
}

// Whoever is told to stop does so between passes, and the other goes on.
TEST_F(TogetherPromise, OneMayStop) {
  const Watchdog watchdog("one of two models", std::chrono::seconds(120));
  const Layout layout = {"cpu*2"};
  const Came alone = generate(0, layout, {});
  const Turns turns = {std::make_shared<DeviceTurn>(), std::make_shared<DeviceTurn>()};
  const std::atomic<bool> stop{true};
  Came stopped;
  std::thread other([&] { stopped = generate(1, layout, turns, &stop); });
  const Came came = generate(0, layout, turns);
  other.join();
  EXPECT_EQ(stopped.status.code(), Exit::kStopped);
  EXPECT_TRUE(stopped.tokens.empty());
  EXPECT_TRUE(came.status.ok()) << came.status.message();
  EXPECT_EQ(came.tokens, alone.tokens);
}

// Ends with kStopped once it is told to.
Status wait_for_stop(const std::atomic<bool>& stop) {
  while (!stop) std::this_thread::yield();
  return Status(Exit::kStopped, "was told to stop");
}

// Neither thread takes the program with it: whoever is out of memory throws where its caller may
// catch it, once the other has ended.
TEST(RunTogether, WhatEitherThrowsIsThrownAgain) {
  const Watchdog watchdog("a part that throws", std::chrono::seconds(60));
  const StoppablePart throws = [](const std::atomic<bool>&) -> Status { throw std::bad_alloc(); };
  EXPECT_THROW((void)run_together(wait_for_stop, throws), std::bad_alloc);
  EXPECT_THROW((void)run_together(throws, wait_for_stop), std::bad_alloc);
  EXPECT_THROW((void)run_together(throws, throws), std::bad_alloc);
}

TEST(RunTogether, ReturnsTheFirstError) {
  const Watchdog watchdog("a part that fails", std::chrono::seconds(60));
  const StoppablePart fails = [](const std::atomic<bool>&) {
    return Status(Exit::kIoError, "cannot read");
  };
  const StoppablePart ends = [](const std::atomic<bool>&) { return Status(); };
  EXPECT_EQ(run_together(fails, wait_for_stop).message(), "cannot read");
  EXPECT_EQ(run_together(wait_for_stop, fails).message(), "cannot read");
  EXPECT_EQ(run_together(ends, fails).message(), "cannot read");
  EXPECT_TRUE(run_together(ends, ends).ok());
}

}  // namespace
}  // namespace pagoda
