// `pagoda generate`.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "base/number_text.h"
#include "base/terminal_text.h"
#include "commands/commands.h"
#include "commands/forward_run.h"
#include "report/report.h"
#include "tokenizer/text_stream.h"
#include "train/model_input.h"
#include "train/process_memory.h"
#include "train/prompts.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

// A pass reads all experts that its tokens want, so long prompts go through in as few passes as
// leave half of memory.device to experts, and all experts there that would be: what is generated
// then wants them token by token. All ranks make the same passes.
Status widen_passes(const ForwardRun& run, int64_t waiting, SessionOptions& options) {
  const ModelConfig& architecture = run.model().folder->config();
  const auto narrow = Session::plan(architecture, options);
  SessionOptions wider = options;
  int64_t& tokens = wider.size.microbatch_tokens;
  while (narrow.ok() && tokens < waiting) {
    tokens = std::min(2 * tokens, waiting);
    const auto wide = Session::plan(architecture, wider);
    const bool pages = !wide.ok() || !wide.value().state_on_device;
    if (pages && narrow.value().state_on_device) return Status();
    const bool fills =
        !wide.ok() || wide.value().min_device_bytes > options.device_bytes.least() / 2;
    ASSIGN_OR_RETURN(const int64_t one_fills, run.ranks().most(fills));
    if (one_fills != 0) return Status();
    options.size.microbatch_tokens = tokens;
  }
  return Status();
}

// The most tokens of prompts that one device has.
int64_t waiting_tokens(const std::vector<TokenIds>& prompts, const SessionOptions& options) {
  std::vector<int64_t> waiting(static_cast<size_t>(options.size.microbatches), 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int of_prompt = options.sequence_microbatch[i];
    waiting[static_cast<size_t>(of_prompt)] += static_cast<int64_t>(prompts[i].size());
  }
  return *std::max_element(waiting.begin(), waiting.end());
}

// A session that only generates, no larger than these prompts need.
Result<SessionOptions> generation_options(const ForwardRun& run, const GenerateFlags& flags,
                                          const std::vector<TokenIds>& prompts) {
  ASSIGN_OR_RETURN(SessionOptions options, run.options(flags.routing));
  options.size.cache = cache_for(prompts, flags.max_new_tokens);
  options.lower = "--max_new_tokens or the number of prompts";
  run.deal_to_devices(options, [&](SessionOptions& dealt, int64_t most) {
    dealt.deal_sequences(std::ssize(prompts), most);
    dealt.size.microbatch_tokens = std::min(waiting_tokens(prompts, dealt), kRowBlock);
  });
  RETURN_IF_ERROR(widen_passes(run, waiting_tokens(prompts, options), options));
  return options;
}

// What was asked for, and what came of it.
struct Answers {
  const Tokenizer& tokenizer;
  const std::vector<std::string>& texts;  // the prompts
  const std::vector<TokenIds>& prompts;
  std::vector<Continuation> continuations;
  double seconds = 0;
  int64_t fetch_bytes = 0, upload_bytes = 0;  // of all ranks

  std::string text(size_t i) const {
    return continuation_text(tokenizer, prompts[i], continuations[i].tokens);
  }
  int64_t new_tokens() const {
    int64_t count = 0;
    for (const Continuation& c : continuations) count += static_cast<int64_t>(c.tokens.size());
    return count;
  }
};

std::string json_text(const Answers& answers) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < answers.prompts.size(); ++i) {
    list.push_back({{"prompt", answers.texts[i]},
                    {"prompt_tokens", answers.prompts[i]},
                    {"text", answers.text(i)},
                    {"tokens", answers.continuations[i].tokens},
                    {"ended", answers.continuations[i].ended}});
  }
  const nlohmann::ordered_json object = {
      {"generated", list},
      {"seconds", answers.seconds},
      {"tokens_per_s", static_cast<double>(answers.new_tokens()) / answers.seconds},
      {"fetch_bytes", answers.fetch_bytes},
      {"upload_bytes", answers.upload_bytes}};
  return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// What a model writes may be any characters. Whoever redirects it wants exactly those.
void print_text(const std::string& text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  const std::string shown = terminal ? terminal_text(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

void print_all(const Answers& answers) {
  for (size_t i = 0; i < answers.prompts.size(); ++i) {
    print_text(strf("%s> %s\n", i == 0 ? "" : "\n", answers.texts[i].c_str()) + answers.text(i) +
               "\n");
  }
}

// Generates in `session`; with `stream` prints the first prompt's text on the way.
Status answer(Session& session, const GenerationSettings& settings, bool stream,
              Answers& answers) {
  PassRunner runner(&session);
  const Pager::Counters before = session.pager().counters();
  const auto start = std::chrono::steady_clock::now();
  TextStream text(answers.tokenizer, answers.prompts[0]);
  const auto print = [&](size_t, uint32_t token) { print_text(text.add(token)); };
  auto generated = stream ? generate(runner, answers.prompts, settings, print)
                          : generate(runner, answers.prompts, settings);
  if (stream) print_text(text.finish() + "\n");
  RETURN_IF_ERROR(generated.status());
  answers.continuations = generated.take();
  answers.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Pager::Counters& after = session.pager().counters();
  ASSIGN_OR_RETURN(
      const std::vector<std::string> moved,
      session.ranks().agree(Status(),
                            strf("%lld %lld ", (long long)(after.fetch_bytes - before.fetch_bytes),
                                 (long long)(after.upload_bytes - before.upload_bytes))));
  for (const std::string& of_rank : moved) {
    NumberReader in(of_rank);
    int64_t fetched = 0, uploaded = 0;
    if (!in.read(fetched, int64_t{0}, INT64_MAX) || !in.read(uploaded, int64_t{0}, INT64_MAX)) {
      return Status(Exit::kIoError,
                    "a rank sent what are no numbers; see that all ranks run the "
                    "same program");
    }
    answers.fetch_bytes += fetched;
    answers.upload_bytes += uploaded;
  }
  return Status();
}

// What is to be continued; `settings` gets what was asked for and what ends a continuation.
Result<std::vector<TokenIds>> read_prompts(const RunConfig& config, const GenerateFlags& flags,
                                           const ModelInput& model, GenerationSettings& settings) {
  const HfFolder& folder = *model.folder;
  std::optional<ChatTemplate> found;
  if (flags.chat) {
    ASSIGN_OR_RETURN(found, find_chat_template(folder.directory(), config.data.chat_template,
                                               config.data.chat_date));
  }
  const ChatTemplate* chat = found ? &*found : nullptr;
  ASSIGN_OR_RETURN(std::vector<TokenIds> prompts,
                   encode_prompts(flags.prompts, model.tokenizer, chat));
  RETURN_IF_ERROR(check_lengths(prompts, flags.max_new_tokens, folder.config(),
                                "--max_new_tokens"));
  settings.max_new_tokens = flags.max_new_tokens;
  settings.sampling = flags.sampling;
  ASSIGN_OR_RETURN(settings.stop_tokens, stop_tokens(model.tokenizer, folder, chat));
  return prompts;
}

}  // namespace

Status run_generate(const RunConfig& config, const GenerateFlags& flags, RankGroup& ranks) {
  ForwardRun run(config, ranks);
  RETURN_IF_ERROR(run.open(flags.checkpoint));
  const ModelInput& model = run.model();
  GenerationSettings settings;
  auto prompts = read_prompts(config, flags, model, settings);
  RETURN_IF_ERROR(ranks.agree(prompts.status()));
  const ModelConfig& architecture = model.folder->config();
  ASSIGN_OR_RETURN(SessionOptions options, generation_options(run, flags, *prompts));
  ASSIGN_OR_RETURN(const MemoryPlan memory, Session::plan(architecture, options));
  options.size.group_blocks = memory.group_blocks;
  for (const std::string& line : plan_report(architecture, options, memory)) log_info(line);
  RETURN_IF_ERROR(ranks.agree(check_machine_memory(architecture, options, memory)));
  Answers answers{model.tokenizer, flags.prompts, *prompts, {}};
  const bool stream = run.leads() && prompts->size() == 1 && !flags.json;
  RETURN_IF_ERROR(run.in_session(options, [&](Session& session) {
    return answer(session, settings, stream, answers);
  }));
  if (!run.leads()) return Status();
  if (flags.json) {
    print_result(json_text(answers) + "\n");
  } else if (!stream) {
    print_all(answers);
  }
  log_info(strf("%lld tokens in %.1f s: %.1f tokens/s, %s read from disk",
                (long long)answers.new_tokens(), answers.seconds,
                static_cast<double>(answers.new_tokens()) / answers.seconds,
                format_bytes(answers.fetch_bytes).c_str()));
  return Status();
}

}  // namespace pagoda
