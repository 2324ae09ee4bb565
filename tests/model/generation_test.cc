// Generation through the pager: against the full forward, whatever the budgets and the company.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/golden.h"
#include "tests/testing/session_model.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "train/prompts.h"

namespace pagoda {
namespace {

TokenIds random_tokens(int64_t n, uint64_t seed, uint64_t vocab) {
  TokenIds tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<uint32_t>(
        philox(seed, RandomPurpose::kTest, 0, static_cast<uint64_t>(i))[0] % vocab));
  }
  return tokens;
}

// The tokens [from, to) of a sequence, the last of them wanted.
GenerationPass pass_of(const TokenIds& tokens, int64_t from, int64_t to, int32_t sequence) {
  GenerationPart pass;
  for (int64_t p = from; p < to; ++p) {
    pass.tokens.push_back(static_cast<int32_t>(tokens[p]));
    pass.positions.push_back(static_cast<int32_t>(p));
    pass.sequences.push_back(sequence);
  }
  pass.wanted = {static_cast<int32_t>(to - from) - 1};
  return {pass};
}

std::vector<float> run_pass(PassRunner& runner, const GenerationPass& pass) {
  const Status status = runner.run(pass);
  CHECK(status.ok(), "%s", status.message().c_str());
  std::vector<float> logits;
  runner.read_logits(0, logits);
  return logits;
}

// Two whole sequences, a microbatch each.
StepBatch batch_of(const TokenIds& first, const TokenIds& second) {
  StepBatch batch;
  for (const TokenIds* tokens : {&first, &second}) {
    for (size_t p = 0; p < tokens->size(); ++p) {
      batch.tokens.push_back(static_cast<int32_t>((*tokens)[p]));
      batch.positions.push_back(static_cast<int32_t>(p));
    }
    batch.document_start.push_back({0, static_cast<int32_t>(tokens->size())});
  }
  batch.targets.assign(batch.tokens.size(), 1);
  batch.weights.assign(batch.tokens.size(), 1.0f);
  batch.total_weight = static_cast<double>(batch.tokens.size());
  return batch;
}

class CachedForward : public testing::TestWithParam<const char*> {};

// Every family, fp32: the logits of each token are those of the training path's forward. Both round
// each sum of some thousand terms differently: 1e-5 is what parity with Transformers allows too.
TEST_P(CachedForward, LogitsAreThoseOfTheFullForward) {
  constexpr int64_t kTokens = 40;
  SessionModel model(golden(GetParam()), DType::kF32, kTokens, 2, {2, kTokens});
  const auto vocab = static_cast<uint64_t>(model.session().config().vocab_size);
  const TokenIds first = random_tokens(kTokens, 71, vocab), second = random_tokens(kTokens, 72,
                                                                                   vocab);
  const StepBatch batch = batch_of(first, second);
  const std::vector<float> want[] = {model.logits(batch, 0), model.logits(batch, 1)};
  PassRunner runner(&model.session());
  double worst = 0;
  for (int32_t s = 0; s < 2; ++s) {
    const TokenIds& tokens = s == 0 ? first : second;
    const int64_t prompt = s == 0 ? 1 : 25;  // the rest one at a time
    for (int64_t end = prompt; end <= kTokens; ++end) {
      const int64_t from = end == prompt ? 0 : end - 1;
      const std::vector<float> got = run_pass(runner, pass_of(tokens, from, end, s));
      const auto row = want[s].begin() + (end - 1) * static_cast<int64_t>(vocab);
      const double off = relative_l2(got, {row, row + static_cast<int64_t>(vocab)});
      EXPECT_LE(off, 1e-5) << "token " << end - 1 << " of sequence " << s << ", seeds 71 and 72";
      worst = std::max(worst, off);
    }
  }
  std::printf("%s: worst distance to the full forward: %.2e\n", GetParam(), worst);
}

// The tokens that the reference likes best (greedy.safetensors of tests/golden/README.md).
TEST_P(CachedForward, GreedyTokensAreTheReferences) {
  const Golden expected(golden(GetParam()) + "/greedy.safetensors");
  const auto prompts = expected.ints("prompts"), tokens = expected.ints("tokens");
  constexpr int64_t kPrompts = 4, kLength = 6;
  const int64_t wanted = std::ssize(tokens) / kPrompts;
  ASSERT_EQ(std::ssize(prompts), kPrompts * kLength);
  std::vector<TokenIds> given;
  for (int64_t p = 0; p < kPrompts; ++p) {
    given.emplace_back(prompts.begin() + p * kLength, prompts.begin() + (p + 1) * kLength);
  }
  SessionModel model(golden(GetParam()), DType::kF32, kPrompts * kLength, 1,
                     cache_for(given, wanted));
  PassRunner runner(&model.session());
  const auto got = generate(runner, given, {wanted, {}, {}});
  ASSERT_TRUE(got.ok()) << got.status().message();
  for (int64_t p = 0; p < kPrompts; ++p) {
    EXPECT_EQ(got.value()[static_cast<size_t>(p)].tokens,
              TokenIds(tokens.begin() + p * wanted, tokens.begin() + (p + 1) * wanted))
        << "prompt " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CachedForward,
                         testing::Values("qwen3_moe_tiny", "qwen3_moe_tied", "mixtral", "olmoe",
                                         "qwen2_moe", "glm4_moe", "lfm2_moe", "gpt_oss",
                                         "deepseek_v2", "deepseek_v3", "glm4_moe_lite",
                                         "granitemoe", "dots1", "minimax_m2"),
                         [](const auto& info) { return std::string(info.param); });

// A session that only generates, in folders of its own.
class GenerationModel {
 public:
  GenerationModel(const TinyRun& run, Storage* storage, CacheSize cache, int64_t pass_tokens,
                  bool minimum_budgets, int devices = 1, int64_t group_blocks = 0)
      : folder_(std::move(HfFolder::open(run.dir().file("model")).value())) {
    SessionOptions options;
    options.size = {1, pass_tokens, DType::kBF16, false, cache};
    options.devices.assign(static_cast<size_t>(devices), {.threads = 2, .throttle = {}});
    options.directories = {run.dir().file(strf("generation-%d", ++made_))};
    options.page_slots = 1;
    options.plan.group_blocks = group_blocks;
    options.device_bytes = options.host_bytes = 64 * kMiB;
    if (minimum_budgets) {
      const auto plan = Session::plan(folder_.config(), options);
      CHECK(plan.ok());
      options.device_bytes = plan.value().min_device_bytes;
      options.host_bytes = plan.value().min_host_bytes;
    }
    auto session = Session::create(folder_.config(), options, storage);
    CHECK(session.ok(), "%s", session.status().message().c_str());
    session_ = session.take();
    CHECK(load_weights(*weights_of_folder(folder_), *session_).ok());
    runner_ = std::make_unique<PassRunner>(session_.get());
  }

  PassRunner& runner() { return *runner_; }
  Session& session() { return *session_; }

  std::vector<Continuation> generate(const std::vector<TokenIds>& prompts, int64_t max_new_tokens,
                                     const SamplingSettings& sampling = {}, TokenIds stop = {}) {
    auto result = pagoda::generate(*runner_, prompts, {max_new_tokens, sampling, std::move(stop)});
    CHECK(result.ok(), "%s", result.status().message().c_str());
    return result.take();
  }

 private:
  static inline int made_ = 0;
  HfFolder folder_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<PassRunner> runner_;
};

std::vector<TokenIds> some_prompts() {
  return {random_tokens(5, 81, 257), random_tokens(30, 82, 257), random_tokens(1, 83, 257)};
}

constexpr int64_t kNewTokens = 12;
constexpr CacheSize kCache{3, 48};

std::vector<TokenIds> tokens_of(const std::vector<Continuation>& continuations) {
  std::vector<TokenIds> tokens;
  for (const Continuation& c : continuations) tokens.push_back(c.tokens);
  return tokens;
}

// Logits of every token of the prompts, one at a time, in turns.
std::string logits_bits(PassRunner& runner) {
  std::string bits;
  const std::vector<TokenIds> prompts = some_prompts();
  for (int64_t p = 0; p < 30; ++p) {
    for (size_t s = 0; s < prompts.size(); ++s) {
      if (p >= static_cast<int64_t>(prompts[s].size())) continue;
      const auto logits = run_pass(runner, pass_of(prompts[s], p, p + 1, static_cast<int>(s)));
      bits.append(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
    }
  }
  return bits;
}

TEST(Generation, BudgetsDoNotChangeABit) {
  const TinyRun run;
  SimStorage storage(91), other(92);
  GenerationModel roomy(run, &storage, kCache, 16, false), paged(run, &other, kCache, 16, true);
  const int64_t loaded = paged.session().pager().counters().fetches;
  EXPECT_TRUE(logits_bits(roomy.runner()) == logits_bits(paged.runner())) << "seeds 81 to 83";
  EXPECT_EQ(tokens_of(roomy.generate(some_prompts(), kNewTokens)),
            tokens_of(paged.generate(some_prompts(), kNewTokens)));
  const Pager::Counters& counters = paged.session().pager().counters();
  EXPECT_EQ(roomy.session().pager().counters().write_backs, 0) << "written though nothing pages";
  EXPECT_GT(counters.fetches, loaded) << "no disk read";
  EXPECT_GT(counters.uses, counters.hits) << "no eviction";
}

TEST(Generation, GroupsDoNotChangeABit) {
  const TinyRun run;
  SimStorage storage(101), other(102);
  GenerationModel alone(run, &storage, kCache, 16, true);
  GenerationModel grouped(run, &other, kCache, 16, true, 1, 16);
  EXPECT_EQ(grouped.session().shape().group_blocks, 16);
  EXPECT_TRUE(logits_bits(alone.runner()) == logits_bits(grouped.runner())) << "seeds 81 to 83";
  EXPECT_EQ(tokens_of(alone.generate(some_prompts(), kNewTokens)),
            tokens_of(grouped.generate(some_prompts(), kNewTokens)));
  const Pager::Counters& counters = grouped.session().pager().counters();
  EXPECT_GT(counters.uses, counters.hits) << "no eviction";
}

// In chunks of any size, alone or with others.
TEST(Generation, CompanyDoesNotChangeABit) {
  const TinyRun run;
  SimStorage storage(93);
  GenerationModel model(run, &storage, kCache, 64, false);
  const std::vector<TokenIds> prompts = some_prompts();
  const auto together = tokens_of(model.generate(prompts, kNewTokens));
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(tokens_of(model.generate({prompts[i]}, kNewTokens))[0], together[i]) << i;
  }
  GenerationModel narrow(run, &storage, kCache, 4, false);
  EXPECT_EQ(tokens_of(narrow.generate(prompts, kNewTokens)), together) << "in passes of 4 tokens";
  const auto whole = run_pass(model.runner(), pass_of(prompts[1], 0, 30, 0));
  run_pass(model.runner(), pass_of(prompts[1], 0, 13, 1));
  EXPECT_EQ(run_pass(model.runner(), pass_of(prompts[1], 13, 30, 1)), whole);
}

// More tokens than a row block, and more prompts than logits have rows.
TEST(Generation, WidePassesDoNotChangeABit) {
  const TinyRun run;
  SimStorage storage(99), other(100);
  const std::vector<TokenIds> two = {random_tokens(150, 87, 257), random_tokens(170, 88, 257)};
  GenerationModel wide(run, &storage, {2, 200}, 320, false);
  GenerationModel narrow(run, &other, {2, 200}, 64, true);
  EXPECT_EQ(tokens_of(wide.generate(two, kNewTokens)), tokens_of(narrow.generate(two, kNewTokens)))
      << "seeds 87 and 88";
  std::vector<TokenIds> many;
  for (uint32_t i = 0; i < kRowBlock + 4; ++i) many.push_back({i % 257});
  GenerationModel crowd(run, &storage, {kRowBlock + 4, 4}, kRowBlock + 4, false);
  const auto together = tokens_of(crowd.generate(many, 2));
  for (const size_t i : {size_t{0}, size_t{255}, size_t{256}, size_t{259}}) {
    EXPECT_EQ(tokens_of(narrow.generate({many[i]}, 2))[0], together[i]) << "prompt " << i;
  }
}

TEST(Generation, SeveralDevicesDoNotChangeABit) {
  const TinyRun run;
  SimStorage storage(98);
  GenerationModel one(run, &storage, kCache, 16, false), two(run, &storage, kCache, 16, true, 2);
  EXPECT_TRUE(logits_bits(one.runner()) == logits_bits(two.runner()));
  EXPECT_EQ(tokens_of(one.generate(some_prompts(), kNewTokens)),
            tokens_of(two.generate(some_prompts(), kNewTokens)));
}

TEST(Generation, ASequenceIsWrittenOverTheOneBefore) {
  const TinyRun run;
  SimStorage storage(94);
  GenerationModel model(run, &storage, kCache, 16, false);
  const std::string first = logits_bits(model.runner());
  model.generate({random_tokens(30, 86, 257)}, kNewTokens);
  EXPECT_TRUE(logits_bits(model.runner()) == first);
}

// Greedy tokens are the largest logits of the full forward over what was generated, unless the two
// largest are within rounding of each other.
TEST(Generation, GreedyTokensAreTheFullForwards) {
  constexpr int64_t kPrompt = 8, kTotal = 40;
  const TinyRun run;
  SessionModel model(run.dir().file("model"), DType::kF32, kTotal, 2, {2, kTotal});
  const std::vector<TokenIds> prompts = {random_tokens(kPrompt, 84, 257),
                                         random_tokens(kPrompt, 85, 257)};
  PassRunner runner(&model.session());
  auto result = generate(runner, prompts, {kTotal - kPrompt, {}, {}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  std::vector<TokenIds> whole = prompts;
  for (size_t s = 0; s < 2; ++s) {
    const TokenIds& more = result.value()[s].tokens;
    ASSERT_EQ(more.size(), static_cast<size_t>(kTotal - kPrompt));
    whole[s].insert(whole[s].end(), more.begin(), more.end());
  }
  const StepBatch batch = batch_of(whole[0], whole[1]);
  const int64_t vocab = model.session().config().vocab_size;
  int compared = 0;
  for (int64_t s = 0; s < 2; ++s) {
    const std::vector<float> logits = model.logits(batch, s);
    for (int64_t p = kPrompt - 1; p + 1 < kTotal; ++p) {
      std::vector<float> row(logits.begin() + p * vocab, logits.begin() + (p + 1) * vocab);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      std::vector<float> sorted = row;
      std::sort(sorted.rbegin(), sorted.rend());
      if (sorted[0] - sorted[1] < 1e-4f * std::abs(sorted[0])) continue;
      EXPECT_EQ(whole[s][p + 1], static_cast<uint32_t>(best)) << "token " << p + 1;
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

TEST(Generation, StopsAtAStopToken) {
  const TinyRun run;
  SimStorage storage(95);
  GenerationModel model(run, &storage, kCache, 16, false);
  const auto free = model.generate(some_prompts(), kNewTokens);
  const uint32_t stop = free[1].tokens[4];
  const auto stopped = model.generate(some_prompts(), kNewTokens, {}, {stop});
  for (size_t i = 0; i < free.size(); ++i) {
    const TokenIds& all = free[i].tokens;
    const auto at = std::find(all.begin(), all.end(), stop);
    EXPECT_EQ(stopped[i].tokens, TokenIds(all.begin(), at)) << i;
    EXPECT_EQ(stopped[i].ended, at != all.end()) << i;
    EXPECT_EQ(all.size(), static_cast<size_t>(kNewTokens));
    EXPECT_FALSE(free[i].ended);
  }
}

// Every file that names an end is heard, and the end of an answer in a chat.
TEST(Generation, StopTokensComeFromEveryFile) {
  const TinyRun run;
  const std::string model = run.dir().file("model");
  Json tokenizer = Json::parse(byte_tokenizer_json());
  Json end = tokenizer["added_tokens"][0];
  end["id"] = 257;
  end["content"] = "<|im_end|>";
  tokenizer["added_tokens"].push_back(end);
  put_file(model + "/tokenizer.json", tokenizer.dump());
  Json config = Json::parse(kTinyConfig);
  const auto stops = [&](const Json& in_config, const Json& in_generation, const char* chat) {
    config["eos_token_id"] = in_config;
    put_file(model + "/config.json", config.dump());
    put_file(model + "/generation_config.json", Json{{"eos_token_id", in_generation}}.dump());
    const HfFolder folder = std::move(HfFolder::open(model).value());
    const ChatTemplate found = std::move(find_chat_template(model, chat).value());
    auto tokens = stop_tokens(Tokenizer::open(model).value(), folder, &found);
    if (tokens.ok()) std::sort(tokens->begin(), tokens->end());
    return tokens;
  };
  EXPECT_EQ(stops(nullptr, nullptr, "none").value(), (TokenIds{256}));
  EXPECT_EQ(stops(3, Json{5, 7}, "none").value(), (TokenIds{3, 5, 7, 256}));
  EXPECT_EQ(stops(Json{3, 271}, nullptr, "chatml").value(), (TokenIds{3, 256, 257, 271}));
  EXPECT_EQ(stops(nullptr, nullptr, "tulu").value(), (TokenIds{256, 256}));
  // 272 ids; the last of these would be 1 in 32 bits.
  for (const Json& bad : {Json(272), Json{3, 272}, Json(-1), Json("3"), Json(4294967297)}) {
    for (const bool in_config : {true, false}) {
      const auto refused = stops(in_config ? bad : Json(), in_config ? Json() : bad, "none");
      ASSERT_FALSE(refused.ok()) << bad;
      EXPECT_EQ(refused.status().code(), Exit::kBadData) << bad;
      EXPECT_NE(refused.status().message().find("\"eos_token_id\" is"), std::string::npos);
    }
  }
}

TEST(Generation, DrawsFollowTheSeed) {
  const TinyRun run;
  SimStorage storage(96);
  GenerationModel model(run, &storage, kCache, 16, false);
  const auto drawn = [&](uint64_t seed) {
    return tokens_of(model.generate(some_prompts(), kNewTokens, {1.0, 0.9, seed}));
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

// Samples between steps change no bit of a run, and are the same paged.
class SampledTraining : public testing::TestWithParam<ClipKind> {};

TEST_P(SampledTraining, SameBits) {
  std::string hashes[3];
  std::vector<std::string> texts[3];
  for (int i = 0; i < 3; ++i) {
    TinyRun run;
    run.config().optim.clip = GetParam();
    run.config().sample.max_new_tokens = 10;
    if (i > 0) run.config().sample.prompts = {"row 7", "row 11 bbb"};
    if (i == 2) run.use_minimum_budgets();
    SimStorage storage(static_cast<uint64_t>(97 + i));
    auto trainer = Trainer::start(run.config(), false, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    std::vector<double> losses;
    while ((*trainer)->steps_done() < 6) {
      auto result = (*trainer)->step();
      ASSERT_TRUE(result.ok()) << result.status().message();
      losses.push_back(result->loss);
      if (!(*trainer)->can_sample()) continue;
      auto samples = (*trainer)->sample();
      ASSERT_TRUE(samples.ok()) << samples.status().message();
      ASSERT_EQ(samples->size(), 2u);
      for (const Sample& sample : samples.value()) texts[i].push_back(sample.text);
    }
    hashes[i] = outcome_hash(**trainer, losses);
  }
  EXPECT_EQ(hashes[1], hashes[0]) << "with samples";
  EXPECT_EQ(hashes[2], hashes[0]) << "with samples, paged";
  EXPECT_EQ(texts[1], texts[2]);
  EXPECT_EQ(texts[1].size(), 12u);
}

INSTANTIATE_TEST_SUITE_P(Clipping, SampledTraining,
                         testing::Values(ClipKind::kGlobal, ClipKind::kNone));

TEST(Generation, TrainingSharesItsBytesWithTheCache) {
  TinyRun run;
  const HfFolder folder = std::move(HfFolder::open(run.config().model.path).value());
  const ModelShape model = model_shape(folder.config());
  const auto bytes = [&](CacheSize cache) {
    WorkspaceSize size = session_options(run.config()).size;
    size.cache = cache;
    return workspace_bytes(model, size, 0);
  };
  EXPECT_EQ(bytes({1, 8}), bytes({})) << "a small cache fits into what training needs";
  EXPECT_GT(bytes({2, 100000}), bytes({}));
}

TEST(Generation, RefusesWhatIsTooLong) {
  ModelConfig config;
  config.max_position_embeddings = 100;
  const std::vector<TokenIds> prompts = {TokenIds(20, 1), TokenIds(60, 1)};
  EXPECT_TRUE(check_lengths(prompts, 40, config, "max_new_tokens").ok());
  const Status status = check_lengths(prompts, 41, config, "max_new_tokens");
  EXPECT_EQ(status.code(), Exit::kBadData);
  EXPECT_NE(status.message().find("prompt 2 has 60 tokens"), std::string::npos);
}

}  // namespace
}  // namespace pagoda
