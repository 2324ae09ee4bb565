#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/edit_distance.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/process_limits.h"
#include "cli/commands.h"
#include "hardware/machine.h"

namespace pagoda {
namespace {

constexpr const char* kAbout =
    "pagoda: fine-tunes every parameter of a Mixture-of-Experts model whose experts do not fit";

// The page that says more about a command and those below it.
struct CommandPage {
  const char* command;
  const char* page;
};
constexpr CommandPage kCommandPages[] = {
    {"train", "docs/train.md"},    {"plan", "docs/plan.md"},         {"init", "docs/models.md"},
    {"eval", "docs/train.md"},     {"generate", "docs/generate.md"}, {"upcycle", "docs/models.md"},
    {"export", "docs/train.md"},   {"ckpt", "docs/reliability.md"},  {"data", "docs/data.md"},
    {"report", "docs/measure.md"}, {"bench", "docs/bench.md"},       {"doctor", "docs/gpu.md"},
};

constexpr size_t kHelpColumn = 38;
constexpr size_t kMaxMessage = 2000;

struct CommandLine {
  CLI::App root{kAbout, "pagoda"};
  std::vector<CommandPtr> commands;
  bool version = false;
  bool json = false;
};

// Ends every help with its page and the exit codes. `page`: the page of the command above this one.
void add_footers(CLI::App& app, const char* page) {
  for (const CommandPage& entry : kCommandPages) {
    if (app.get_name() == entry.command) page = entry.page;
  }
  const std::string own = app.get_footer();
  app.footer((own.empty() ? "" : own + "\n\n") + "More: " + page + "\n\n" + exit_codes_text());
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) add_footers(*sub, page);
}

void declare(CommandLine& line) {
  CLI::App& root = line.root;
  // Left-overs are refused by refuse_extras, which knows what was meant.
  root.allow_extras();
  root.get_formatter()->column_width(kHelpColumn);
  root.set_help_flag("-h,--help", "print this help");
  root.add_flag("--version", line.version, "print the version and what the program is made of");
  root.add_flag("--json", line.json, "with --version: print one JSON object");
  line.commands.push_back(add_train_command(root));
  line.commands.push_back(add_plan_command(root));
  line.commands.push_back(add_init_command(root));
  line.commands.push_back(add_upcycle_command(root));
  line.commands.push_back(add_eval_command(root));
  line.commands.push_back(add_generate_command(root));
  line.commands.push_back(add_export_command(root));
  for (CommandPtr& command : add_ckpt_commands(root)) line.commands.push_back(std::move(command));
  line.commands.push_back(add_data_command(root));
  line.commands.push_back(add_report_command(root));
  line.commands.push_back(add_doctor_command(root));
  for (CommandPtr& command : add_bench_commands(root)) line.commands.push_back(std::move(command));
  for (CommandPtr& command : add_about_commands(root)) line.commands.push_back(std::move(command));
  add_footers(root, "README.md and the pages of docs/ that it names");
}

// The deepest subcommand that was named.
CLI::App& chosen_app(CLI::App& root) {
  CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

std::string meant(const std::string& word, const std::vector<std::string>& words) {
  const std::string near = nearest_word(word, words);
  return near.empty() ? "" : ", did you mean \"" + near + "\"?";
}

// "--train.stepz=5" and "--steps" both mean --train.steps.
std::string meant_flag(const CLI::App& app, const std::string& flag) {
  std::vector<std::string> names, last_parts;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
      last_parts.push_back("--" + name.substr(name.rfind('.') + 1));
    }
  }
  const std::string word = flag.substr(0, flag.find('='));
  const std::string near = meant(word, names);
  if (!near.empty()) return near;
  const std::string last = nearest_word(word, last_parts);
  for (size_t i = 0; i < names.size(); ++i) {
    if (last_parts[i] == last) return ", did you mean \"" + names[i] + "\"?";
  }
  return "";
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

Status refuse_extras(CLI::App& root) {
  const CLI::App& app = chosen_app(root);
  const std::vector<std::string> extras = root.remaining(/*recurse=*/true);
  const std::vector<std::string> names = subcommand_names(app);
  if (extras.empty() && names.empty()) return Status();
  const std::string path = &app == &root ? "pagoda" : "pagoda " + app.get_name();
  const std::string see = " (see " + path + " --help)";
  if (extras.empty()) return Status(Exit::kUsage, "no command given" + see);
  const std::string& extra = extras.front();
  const std::string quoted = "\"" + printable(extra) + "\"";
  if (extra.starts_with("-")) {
    return Status(Exit::kUsage, "unknown flag " + quoted + meant_flag(app, extra) + see);
  }
  if (names.empty()) return Status(Exit::kUsage, "unexpected argument " + quoted + see);
  return Status(Exit::kUsage, "unknown command " + quoted + meant(extra, names) + see);
}

// CLI11 takes the argument after "--flag=" as its value.
Status refuse_empty_values(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--") || word.find('=') != word.size() - 1) continue;
    return Status(Exit::kUsage, printable(word) + ": a value is missing behind the =");
  }
  return Status();
}

// "-q", "--train.steps" or "--train.steps=5", and not every text that begins with '-'.
bool is_flag(const CLI::App& app, const std::string& word) {
  const bool valued = word.starts_with("--") && word.find('=') != std::string::npos;
  const std::string name = valued ? word.substr(0, word.find('=')) : word;
  return name.starts_with("-") && app.get_option_no_throw(name) != nullptr;
}

// CLI11 also takes the next flag for a value.
Status refuse_flags_as_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& value : option->results()) {
      if (!is_flag(app, value)) continue;
      return Status(Exit::kUsage, option->get_name() + ": a value is missing before " +
                                      printable(value) + " (a name that begins so: ./" +
                                      printable(value) + ")");
    }
  }
  return Status();
}

constexpr const char* kOutOfMemory =
    "out of memory; end other programs, or use a machine with more of it";

// Only some commands have budgets that could be lower; options that a command does not read are
// not in its help.
Status run_command(Command& command) {
  try {
    return command.run();
  } catch (const std::bad_alloc&) {
    const CLI::Option* budget = command.app().get_option_no_throw("--memory.device");
    const bool has_budgets = budget != nullptr && !budget->get_group().empty();
    return Status(Exit::kHostMemory, has_budgets
                                         ? "out of memory; lower memory.device or memory.host"
                                         : kOutOfMemory);
  }
}

Status run(CommandLine& line, int argc, const char* const* argv) {
  RETURN_IF_ERROR(refuse_empty_values(argc, argv));
  declare(line);
  try {
    line.root.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(line.root.help().c_str(), stdout);
    return Status();
  } catch (const CLI::ParseError& error) {
    return Status(Exit::kUsage, error.what());
  }
  if (line.version && line.root.remaining(true).empty()) {
    std::puts(version_text(line.json).c_str());
    return Status();
  }
  RETURN_IF_ERROR(refuse_flags_as_values(chosen_app(line.root)));
  RETURN_IF_ERROR(refuse_extras(line.root));
  for (const CommandPtr& command : line.commands) {
    if (&command->app() == &chosen_app(line.root)) return run_command(*command);
  }
  return Status(Exit::kInternal, "a command without a body");
}

// A result that did not arrive is no success.
Status flush_results() {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return Status();
  return Status(Exit::kIoError, strf("standard output: cannot write: %s; the results are "
                                     "incomplete",
                                     flushed ? "an earlier line was lost" : std::strerror(errno)));
}

}  // namespace

void print_error(const Status& error) {
  // Not fprintf(), which takes more of a stack than a small one may have.
  std::fputs(("pagoda: " + printable(error.message(), kMaxMessage) + "\n").c_str(), stderr);
}

int run_command_line(int argc, const char* const* argv) {
  // Before all that takes more of the stack than there may be.
  Status status = check_process_limits();
  if (!status.ok()) {
    print_error(status);
    return static_cast<int>(status.code());
  }
  set_thread_stacks();
  try {
    CommandLine line;
    status = run(line, argc, argv);
  } catch (const std::bad_alloc&) {
    status = Status(Exit::kHostMemory, kOutOfMemory);
  } catch (const std::system_error& error) {
    status = threads_refused(error);
  } catch (const std::exception& error) {
    status = Status(Exit::kInternal, std::string("internal error: ") + error.what());
  }
  if (status.ok()) status = flush_results();
  set_status_line("");
  if (!status.message().empty()) print_error(status);
  return static_cast<int>(status.code());
}

}  // namespace pagoda
