#include "commands/generate_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "base/number_text.h"
#include "base/terminal_text.h"
#include "report/report.h"
#include "tokenizer/text_stream.h"
#include "train/process_memory.h"
#include "train/prompts.h"

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
  RETURN_IF_ERROR(
      check_lengths(prompts, flags.max_new_tokens, folder.config(), "--max_new_tokens"));
  settings.max_new_tokens = flags.max_new_tokens;
  settings.sampling = flags.sampling;
  ASSIGN_OR_RETURN(settings.stop_tokens, stop_tokens(model.tokenizer, folder, chat));
  return prompts;
}

}  // namespace

// Whoever redirects it wants exactly those.
void print_text(const std::string& text) {
  static const bool terminal = isatty(STDOUT_FILENO) == 1;
  const std::string shown = terminal ? terminal_text(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

Status GenerateRun::open(const std::string& checkpoint) {
  RETURN_IF_ERROR(run_.open(checkpoint));
  auto prompts = read_prompts(config_, flags_, run_.model(), settings_);
  RETURN_IF_ERROR(run_.ranks().agree(prompts.status()));
  prompts_ = prompts.take();
  return Status();
}

Status GenerateRun::plan(SessionOptions options, int64_t beside_bytes) {
  options.size.cache = cache_for(prompts_, flags_.max_new_tokens);
  options.lower = "--max_new_tokens or the number of prompts";
  run_.deal_to_devices(options, [&](SessionOptions& dealt, int64_t most) {
    dealt.deal_sequences(std::ssize(prompts_), most);
    dealt.size.microbatch_tokens = std::min(waiting_tokens(prompts_, dealt), kRowBlock);
  });
  RETURN_IF_ERROR(widen_passes(run_, waiting_tokens(prompts_, options), options));
  ASSIGN_OR_RETURN(memory_, Session::plan(model(), options));
  options = with_groups(std::move(options), *memory_);
  for (const std::string& line : plan_report(model(), options, *memory_)) log_info(line);
  options_ = std::move(options);
  return run_.ranks().agree(check_machine_memory(model(), options_, *memory_, beside_bytes));
}

int64_t GenerateRun::host_memory_bytes() const {
  return pagoda::host_memory_bytes(model(), options_, *memory_);
}

Status GenerateRun::generate(bool stream, const std::atomic<bool>* stop) {
  settings_.stop = stop;
  return run_.in_session(options_, [&](Session& session) { return answer(session, stream); });
}

Status GenerateRun::answer(Session& session, bool stream) {
  PassRunner runner(&session);
  const Pager::Counters before = session.pager().counters();
  const auto start = std::chrono::steady_clock::now();
  TextStream text(run_.model().tokenizer, prompts_[0]);
  const auto print = [&](size_t, uint32_t token) { print_text(text.add(token)); };
  auto generated = stream ? pagoda::generate(runner, prompts_, settings_, print)
                          : pagoda::generate(runner, prompts_, settings_);
  if (stream) print_text(text.finish() + "\n");
  RETURN_IF_ERROR(generated.status());
  continuations_ = generated.take();
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return add_moved(session, before);
}

// Adds up what all ranks read and uploaded since.
Status GenerateRun::add_moved(Session& session, const Pager::Counters& before) {
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
    fetch_bytes_ += fetched;
    upload_bytes_ += uploaded;
  }
  return Status();
}

std::string GenerateRun::text(size_t prompt) const {
  return continuation_text(run_.model().tokenizer, prompts_[prompt], continuations_[prompt].tokens);
}

nlohmann::ordered_json GenerateRun::json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < prompts_.size(); ++i) {
    list.push_back({{"prompt", flags_.prompts[i]},
                    {"prompt_tokens", prompts_[i]},
                    {"text", text(i)},
                    {"tokens", continuations_[i].tokens},
                    {"ended", continuations_[i].ended}});
  }
  return {{"generated", list},
          {"seconds", seconds_},
          {"tokens_per_s", static_cast<double>(new_tokens()) / seconds_},
          {"fetch_bytes", fetch_bytes_},
          {"upload_bytes", upload_bytes_}};
}

void GenerateRun::print() const {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    print_text(strf("%s> %s\n", i == 0 ? "" : "\n", flags_.prompts[i].c_str()) + text(i) + "\n");
  }
}

int64_t GenerateRun::new_tokens() const {
  int64_t count = 0;
  for (const Continuation& c : continuations_) count += static_cast<int64_t>(c.tokens.size());
  return count;
}

std::string GenerateRun::summary() const {
  return strf("%lld tokens in %.1f s: %.1f tokens/s, %s read from disk", (long long)new_tokens(),
              seconds_, static_cast<double>(new_tokens()) / seconds_,
              format_bytes(fetch_bytes_).c_str());
}

}  // namespace pagoda
