// `pagoda data inspect`.
#include <unistd.h>

#include <cstdio>

#include "base/terminal_text.h"
#include "commands/commands.h"
#include "data/inspection.h"
#include "model/json.h"
#include "report/progress.h"

namespace pagoda {

Status run_data_inspect(const RunConfig& config, const InspectFlags& flags) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::open(config.model.path));
  ASSIGN_OR_RETURN(const ExampleOptions options, config.example_options(config.model.path));
  std::vector<std::string> paths = config.data.path;
  if (!config.data.eval_path.empty()) paths.push_back(config.data.eval_path);
  Inspection inspection(config.data.sequence_len, config.data.too_long, flags.rows);
  // What was read before an error helps to find its cause, and stdout is one object or nothing.
  const Status status = read_examples(paths, tokenizer, options, inspection);
  if (flags.json) RETURN_IF_ERROR(status);
  ASSIGN_OR_RETURN(const std::string about, template_line(options, tokenizer));
  if (flags.json) {
    print_result(inspection_json(inspection, tokenizer, options)
                     .dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return status;
  }
  // Not print_result(): the colours are commands to the terminal.
  const bool colour = wants_colour(isatty(STDOUT_FILENO) == 1);
  std::fputs(inspection_text(inspection, tokenizer, about, colour).c_str(), stdout);
  return status;
}

}  // namespace pagoda
