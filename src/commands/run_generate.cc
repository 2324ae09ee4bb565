// `pagoda generate`.
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/terminal_text.h"
#include "commands/commands.h"
#include "commands/generate_run.h"
#include "commands/generate_together.h"

namespace pagoda {
namespace {

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Status generate_two(const RunConfig& config, const GenerateFlags& flags) {
  GeneratedTogether together(config, flags);
  RETURN_IF_ERROR(together.generate());
  if (flags.json) {
    print_result(text_of(together.json()));
  } else {
    together.print();
  }
  return Status();
}

}  // namespace

Status run_generate(const RunConfig& config, const GenerateFlags& flags, RankGroup& ranks) {
  if (!flags.with.empty()) return generate_two(config, flags);
  GenerateRun run(config, flags, ranks);
  RETURN_IF_ERROR(run.open(flags.checkpoint));
  ASSIGN_OR_RETURN(SessionOptions options, run.forward().options(flags.routing));
  RETURN_IF_ERROR(run.plan(std::move(options)));
  const bool leads = run.forward().leads();
  const bool stream = leads && flags.prompts.size() == 1 && !flags.json;
  RETURN_IF_ERROR(run.generate(stream));
  if (!leads) return Status();
  if (flags.json) {
    print_result(text_of(run.json()));
  } else if (!stream) {
    run.print();
  }
  log_info(run.summary());
  return Status();
}

}  // namespace pagoda
