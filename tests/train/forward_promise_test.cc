// The root promise of what runs forward only (`pagoda eval`, `pagoda generate`): on one device or
// several, equal or not, on ranks, which are threads here, resident or paged, in each exchange of
// rows, a text has the same loss and prompts have the same continuations, bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "commands/forward_run.h"
#include "plan/exchange/expert_assignment.h"
#include "tests/testing/ranks/rank_threads.h"
#include "tests/testing/tiny_run.h"
#include "train/batch.h"
#include "train/generation.h"

namespace pagoda {
namespace {

// train.devices of each rank.
struct Layout {
  std::vector<std::vector<std::string>> devices;
  bool paged = false;
  ExchangeSetting exchange = ExchangeSetting::kAuto;
};

std::string text_of(const Layout& layout) {
  std::string text = layout.paged ? "paged" : "resident";
  for (const auto& of_rank : layout.devices) {
    text += " |";
    for (const std::string& device : of_rank) text += " " + device;
  }
  return text;
}

// What a session came to, as each rank sees it.
struct Came {
  std::vector<Status> statuses;  // [rank]
  std::vector<double> losses;
  std::vector<std::vector<TokenIds>> tokens;
  std::set<int> attending;           // devices
  std::vector<int64_t> expert_rows;  // [device of all ranks]
  Routing routing;                   // of the first pass, where a test asks for it
  int64_t fetches = 0;               // since the model was loaded
  RankThreads::Arrived arrived;
  int64_t transfers = 0;  // between ranks
  ExchangeOrder exchange = ExchangeOrder::kFlat;
};

class ForwardPromise : public testing::Test {
 protected:
  static constexpr int64_t kBatches = 9;  // the last pass of several is not full
  static constexpr int64_t kNewTokens = 6;

  using Deal = std::function<void(SessionOptions&)>;
  using Work = std::function<Status(Session&, size_t rank, Came& came)>;

  static int64_t num_devices(const std::vector<std::string>& texts) {
    return std::ssize(parse_devices(texts).value());
  }

  Came on(const Layout& layout, const Deal& deal, const Work& work) {
    const size_t ranks = layout.devices.size();
    std::vector<int> endpoint_rank;
    std::vector<int64_t> first(1, 0);  // [rank] its first device
    for (size_t r = 0; r < ranks; ++r) {
      first.push_back(first.back() + num_devices(layout.devices[r]));
      endpoint_rank.resize(static_cast<size_t>(first.back()), static_cast<int>(r));
    }
    for (size_t r = 0; r < ranks; ++r) endpoint_rank.push_back(static_cast<int>(r));
    Came came;
    came.statuses.resize(ranks);
    came.losses.resize(ranks);
    came.tokens.resize(ranks);
    came.expert_rows.resize(static_cast<size_t>(first.back()));
    std::vector<int64_t> fetches(ranks, 0);
    RankThreads threads(static_cast<int>(ranks), endpoint_rank, {.seed = 5});
    threads.run([&](RankGroup& group) {
      const auto rank = static_cast<size_t>(group.rank());
      came.statuses[rank] = program(layout, group, deal, [&](Session& session) {
        const int64_t before = session.pager().counters().fetches;
        RETURN_IF_ERROR(work(session, rank, came));
        fetches[rank] = session.pager().counters().fetches - before;
        add_rows(session, came.expert_rows, first[rank]);
        if (rank == 0) {
          const std::vector<int> attending = session.shape().attending_devices();
          came.attending = {attending.begin(), attending.end()};
          came.exchange = session.shape().exchange;
        }
        return Status();
      });
    });
    came.fetches = std::accumulate(fetches.begin(), fetches.end(), int64_t{0});
    came.arrived = threads.arrived();
    came.transfers = std::ssize(threads.sent());
    return came;
  }

  Status program(const Layout& layout, RankGroup& group, const Deal& deal,
                 const std::function<Status(Session&)>& work) {
    RunConfig config = run_.config();
    config.train.devices = layout.devices[static_cast<size_t>(group.rank())];
    config.train.threads = 2;
    config.parallel.exchange = layout.exchange;
    config.memory.io = IoKind::kThreads;
    config.memory.disk = {run_.dir().file(strf("disk-%d", group.rank()))};
    ForwardRun run(config, group);
    RETURN_IF_ERROR(run.open(""));
    ASSIGN_OR_RETURN(SessionOptions options, run.options(routing_));
    options.device_bytes = options.host_bytes = 64 * kMiB;
    deal(options);
    if (layout.paged) {
      ASSIGN_OR_RETURN(const MemoryPlan least,
                       Session::plan(run.model().folder->config(), options));
      options.device_bytes = least.min_device_bytes;
      options.host_bytes = least.min_host_bytes;
    }
    return run.in_session(options, work);
  }

  static void add_rows(Session& session, std::vector<int64_t>& rows, int64_t first) {
    const std::vector<int64_t>& of_layers = session.executor().expert_rows();
    const auto devices = static_cast<size_t>(session.shape().own_devices().count);
    for (size_t i = 0; i < of_layers.size(); ++i) {
      rows[static_cast<size_t>(first) + i % devices] += of_layers[i];
    }
  }

  Came evaluate(const Layout& layout) {
    const auto deal = [](SessionOptions& options) {
      options.deal_text(kBatches, options.num_devices());
    };
    return on(layout, deal, [&](Session& session, size_t rank, Came& came) -> Status {
      Ledger ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0));
      StepRunner runner(&session, &ledger, 1.0);
      const Dataset text = held_out(strf("rank-%zu.bin", rank));
      ASSIGN_OR_RETURN(const LossSum sum, evaluate_rows(runner, text, kBatches,
                                                        session.options().size.microbatches, 2));
      came.losses[rank] = sum.loss / sum.weight;
      return Status();
    });
  }

  Dataset held_out(const std::string& file) const {
    const Tokenizer tokenizer = Tokenizer::open(run_.config().model.path).take();
    const ExampleOptions examples = run_.config().example_options(run_.config().model.path).take();
    TokenFile tokens = TokenFile::open_or_create(run_.dir().file(file), run_.config().data.path,
                                                 tokenizer, examples)
                           .take();
    Dataset::Options order;
    order.sequence_len = run_.config().data.sequence_len;
    order.order = RowOrder::kInOrder;
    return Dataset::create(std::move(tokens), order).take();
  }

  // Greedily, and drawn, which a bit of a logit may turn.
  Came generate(const Layout& layout, const std::vector<TokenIds>& prompts) {
    const auto deal = [&](SessionOptions& options) {
      options.size.cache = cache_for(prompts, kNewTokens);
      options.deal_sequences(std::ssize(prompts), options.num_devices());
      options.size.microbatch_tokens = 16;
    };
    return on(layout, deal, [&](Session& session, size_t rank, Came& came) -> Status {
      PassRunner runner(&session);
      for (const double temperature : {0.0, 1.0}) {
        GenerationSettings settings;
        settings.max_new_tokens = kNewTokens;
        settings.sampling = {temperature, 0.95, 11};
        ASSIGN_OR_RETURN(const std::vector<Continuation> continuations,
                         pagoda::generate(runner, prompts, settings));
        for (const Continuation& c : continuations) came.tokens[rank].push_back(c.tokens);
      }
      return Status();
    });
  }

  // It ended well, its devices worked, and rows travelled.
  static void expect_worked(const Came& came, const Layout& layout) {
    for (const Status& status : came.statuses) EXPECT_TRUE(status.ok()) << status.message();
    for (size_t d = 0; d < came.expert_rows.size(); ++d) {
      EXPECT_GT(came.expert_rows[d], 0) << "device " << d << " has computed no expert";
    }
    if (layout.devices.size() > 1) {
      EXPECT_GT(came.arrived.rows, 0) << "no row came from another rank";
    }
    if (layout.paged) {
      EXPECT_GT(came.fetches, 0) << "nothing was paged";
    }
  }

  TinyRun run_;
  std::optional<RoutingTrace> routing_;  // by which experts are at home
};

const Layout kLayouts[] = {
    {{{"cpu"}}, true},
    {{{"cpu*2"}}},
    {{{"cpu*2"}}, true},
    {{{"cpu*3"}}},
    {{{"cpu*4"}}, true},
    {{{"cpu/2:2", "cpu/2:6", "cpu/3:2"}}},
    {{{"cpu/2:6", "cpu/2:2"}}, true},
    {{{"cpu"}, {"cpu"}}},
    {{{"cpu"}, {"cpu"}}, true},
    {{{"cpu*2"}, {"cpu"}}},
    {{{"cpu/2"}, {"cpu/4:2", "cpu/2:6"}}, true},
    {{{"cpu"}, {"cpu"}, {"cpu"}}},
};

TEST_F(ForwardPromise, OneLoss) {
  const Came expected = evaluate({{{"cpu"}}});
  ASSERT_TRUE(expected.statuses[0].ok()) << expected.statuses[0].message();
  ASSERT_GT(expected.losses[0], 1);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(text_of(layout));
    const Came came = evaluate(layout);
    expect_worked(came, layout);
    for (const double loss : came.losses) EXPECT_EQ(loss, expected.losses[0]);
    EXPECT_GE(came.attending.size(), std::min<size_t>(2, came.expert_rows.size()));
  }
  // The trainer that has made these weights says so; its steps have two microbatches.
  RunConfig config = run_.config();
  config.data.eval_path = config.data.path.front();
  config.train.eval_batches = kBatches;
  const auto storage = open_storage(IoKind::kThreads, run_.dir().path()).take();
  auto trainer = Trainer::start(config, false, storage.get()).take();
  EXPECT_EQ(trainer->evaluate().take(), expected.losses[0]);
}

std::vector<TokenIds> seven_prompts() {
  std::vector<TokenIds> prompts;
  for (uint32_t i = 0; i < 7; ++i) {
    prompts.emplace_back();
    for (uint32_t p = 0; p < 1 + i * 11 % 25; ++p) prompts.back().push_back((i * 53 + p * p) % 257);
  }
  return prompts;
}

TEST_F(ForwardPromise, OneContinuation) {
  const std::vector<TokenIds> prompts = seven_prompts();
  const Came expected = generate({{{"cpu"}}}, prompts);
  ASSERT_TRUE(expected.statuses[0].ok()) << expected.statuses[0].message();
  ASSERT_EQ(expected.tokens[0].size(), 2 * prompts.size());
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(text_of(layout));
    const Came came = generate(layout, prompts);
    expect_worked(came, layout);
    for (const auto& tokens : came.tokens) EXPECT_EQ(tokens, expected.tokens[0]);
    EXPECT_GE(came.attending.size(), std::min<size_t>(2, came.expert_rows.size()));
  }
  // A single prompt has one device that attends, the fastest; the others have experts.
  const Layout unequal = {{{"cpu/2:6", "cpu/2:2"}}};
  const Came single = generate(unequal, {prompts[3]});
  expect_worked(single, unequal);
  EXPECT_EQ(single.attending, std::set<int>{1});
  EXPECT_EQ(single.tokens[0][0], expected.tokens[0][3]);
}

// On two ranks of two devices each. HALO sends what a device has for both devices of the other rank
// in one message, and the other orders in two at least.
TEST_F(ForwardPromise, InEachExchange) {
  const std::vector<TokenIds> prompts = seven_prompts();
  const double loss = evaluate({{{"cpu"}}}).losses[0];
  const std::vector<TokenIds> tokens = generate({{{"cpu"}}}, prompts).tokens[0];
  const std::pair<ExchangeSetting, ExchangeOrder> exchanges[] = {
      {ExchangeSetting::kFlat, ExchangeOrder::kFlat},
      {ExchangeSetting::kRounds, ExchangeOrder::kRounds},
      {ExchangeSetting::kHalo, ExchangeOrder::kHalo}};
  for (const bool paged : {false, true}) {
    std::map<ExchangeOrder, int64_t> transfers[2];  // of a loss, and of continuations
    for (const auto& [setting, order] : exchanges) {
      SCOPED_TRACE(testing::Message() << "exchange " << static_cast<int>(order) << paged);
      const Layout layout = {{{"cpu*2"}, {"cpu*2"}}, paged, setting};
      const Came read = evaluate(layout), written = generate(layout, prompts);
      for (const Came* came : {&read, &written}) {
        expect_worked(*came, layout);
        EXPECT_EQ(came->exchange, order);
        transfers[came == &written][order] = came->transfers;
      }
      for (const double of_rank : read.losses) EXPECT_EQ(of_rank, loss);
      for (const auto& of_rank : written.tokens) EXPECT_EQ(of_rank, tokens);
    }
    for (auto& of_kind : transfers) {
      EXPECT_LT(of_kind[ExchangeOrder::kHalo], of_kind[ExchangeOrder::kFlat]);
    }
  }
}

// What routing chose is recorded, and by it experts lie on devices of which one is much faster:
// closer to an exact share than by speed alone, and with the same bits.
TEST_F(ForwardPromise, ByRecordedRouting) {
  const Layout unequal = {{{"cpu/2:2", "cpu/2:2", "cpu/6:2"}}};
  const auto deal = [](SessionOptions& options) { options.deal_text(6, options.num_devices()); };
  std::vector<double> rates;
  std::optional<RunShape> shapes[2];
  RoutedShape routed;
  const auto once = [&](int run) {
    return on(unequal, deal, [&](Session& session, size_t, Came& came) -> Status {
      Ledger ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0));
      StepRunner runner(&session, &ledger, 1.0);
      const Dataset text = held_out("text.bin");
      ASSIGN_OR_RETURN(const StepBatch batch, make_batch(text, 0, 6, 2));
      ASSIGN_OR_RETURN(const LossSum sum, runner.evaluate(batch));
      came.losses[0] = sum.loss;
      came.routing = sum.routing;
      shapes[run] = session.shape();
      routed = routed_shape(session.shape());
      rates.clear();
      for (const DeviceSetup& device : session.options().devices) {
        rates.push_back(device.expert_speed());
      }
      return Status();
    });
  };
  const Came by_speed = once(0);
  expect_worked(by_speed, unequal);
  RoutingTrace trace{routed, {{1, by_speed.routing}}};
  const double before = imbalance(*shapes[0], trace, rates);
  routing_ = std::move(trace);
  const Came by_routing = once(1);
  expect_worked(by_routing, unequal);
  EXPECT_EQ(by_routing.losses, by_speed.losses);
  EXPECT_EQ(by_routing.routing, by_speed.routing);
  const double after = imbalance(*shapes[1], *routing_, rates);
  EXPECT_LT(after, 1.1);
  EXPECT_LT(after, before - 0.05);
  std::printf("slowest device of a layer: %.3f of an exact share by speed, %.3f by routing\n",
              before, after);
  // The rows of the slowest kind of device follow: an exact share is 1 of 7.
  const auto share = [](const Came& came) {
    const std::vector<int64_t>& rows = came.expert_rows;
    return static_cast<double>(rows[2]) / static_cast<double>(rows[0] + rows[1] + rows[2]);
  };
  EXPECT_NEAR(share(by_routing), 1.0 / 7, 0.03);
}

}  // namespace
}  // namespace pagoda
