#include "cli/man_page.h"

#include <CLI/CLI.hpp>

#include "base/exit_codes.h"
#include "base/log.h"

namespace pagoda {
namespace {

std::vector<CLI::App*> commands_of(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

std::vector<CLI::Option*> shown_options(CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
}

// Text that roff prints as it is.
std::string roff(const std::string& text) {
  std::string out;
  bool begins = true;  // a line
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else {
      out += c == '-' ? "\\-" : std::string(1, c);
    }
    begins = c == '\n';
  }
  return out;
}

// "-q, --quiet", "--train.steps INT"
std::string option_names(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const std::string& name : option.get_lnames()) {
    names += (names.empty() ? "--" : ", --") + name;
  }
  return names.empty() ? option.get_name() : names;
}

bool is_of_run_file(const CLI::Option& option) {
  return option.get_name().find('.') != std::string::npos;
}

// `path`: "pagoda bench disk". Options of a run file are only said to be there, except of `train`.
void add_command(CLI::App& app, const std::string& path, std::string& page) {
  std::string upper = path;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  page += ".SH \"" + roff(upper) + "\"\n" + roff(app.get_description()) + ".\n";
  const bool whole = app.get_name() == "train";
  bool left_out = false;
  for (const CLI::Option* option : shown_options(app)) {
    left_out = left_out || (is_of_run_file(*option) && !whole);
    if (is_of_run_file(*option) && !whole) continue;
    page += ".TP\n\\fB" + roff(option_names(*option)) + "\\fR";
    const std::string type = option->get_type_name();
    if (!type.empty()) page += " \\fI" + roff(type) + "\\fR";
    page += "\n" + roff(option->get_description()) + "\n";
  }
  if (left_out) {
    page += ".P\nAlso takes options of a run file, as \\fBtrain\\fR has them; \\fB" +
            roff(path + " --help") + "\\fR lists which.\n";
  }
  for (CLI::App* below : commands_of(app)) {
    add_command(*below, path + " " + below->get_name(), page);
  }
}

}  // namespace

std::string man_page(CLI::App& root) {
  std::string page = strf(".TH PAGODA 1 \"\" \"pagoda %s\" \"User Commands\"\n", PAGODA_VERSION);
  const std::string about = root.get_description();
  page += ".SH NAME\n" + roff("pagoda - " + about.substr(about.find(": ") + 2)) + "\n";
  page +=
      ".SH SYNOPSIS\n.B pagoda\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.br\n.B pagoda train\n"
      "\\fIrun.toml\\fR [\\fB" +
      roff("--KEY VALUE") + "\\fR]...\n";
  page += ".SH DESCRIPTION\nEvery key of a run file, as steps of [train], is also a flag, as \\fB" +
          roff("--train.steps") + "\\fR, and a flag wins.\n";
  for (CLI::App* command : commands_of(root)) {
    add_command(*command, "pagoda " + command->get_name(), page);
  }
  page += ".SH \"EXIT STATUS\"\n.nf\n" + roff(exit_codes_text()) + "\n.fi\n";
  return page;
}

namespace {

// A flag's choices, "fp32 bf16"; empty if it has none.
std::string choices_of(const CLI::Option& option) {
  std::string type = option.get_type_name();
  if (type.find('|') == std::string::npos || type.find("INT") != std::string::npos ||
      type.find("REAL") != std::string::npos) {
    return "";
  }
  std::replace(type.begin(), type.end(), '|', ' ');
  return type;
}

std::string flags_of(CLI::App& app) {
  std::string words;
  for (const CLI::Option* option : shown_options(app)) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  for (CLI::App* below : commands_of(app)) words += " " + below->get_name();
  return words.empty() ? words : words.substr(1);
}

// Visits every command with its path below pagoda: "", "train", "bench disk".
template <typename Visit>
void for_each_command(CLI::App& app, const std::string& path, const Visit& visit) {
  visit(app, path);
  for (CLI::App* below : commands_of(app)) {
    for_each_command(*below, (path.empty() ? "" : path + " ") + below->get_name(), visit);
  }
}

// What bash's and zsh's functions have in common: from the words before the one that is completed
// ($word, by turns) they find the command ($found), and with it and the word before ($prev) what to
// offer ($offered): behind a flag with a choice its choices, else flags and commands.
struct ShellCases {
  std::string commands, choices, flags;
};

ShellCases shell_cases(CLI::App& root) {
  ShellCases cases;
  for_each_command(root, "", [&](CLI::App& app, const std::string& path) {
    if (!path.empty()) {
      const size_t last = path.rfind(' ');
      const std::string before = last == std::string::npos ? "" : path.substr(0, last);
      cases.commands +=
          (cases.commands.empty() ? "\"" : "|\"") + before + " " + app.get_name() + "\"";
    }
    cases.flags += "    \"" + path + "\") offered=\"" + flags_of(app) + "\" ;;\n";
    for (const CLI::Option* option : shown_options(app)) {
      const std::string of = choices_of(*option);
      if (of.empty() || option->get_lnames().empty()) continue;
      cases.choices += "    \"" + path + " --" + option->get_lnames().front() + "\") offered=\"" +
                       of + "\" ;;\n";
    }
  });
  return cases;
}

std::string shell_body(CLI::App& root, const std::string& words_before) {
  const ShellCases cases = shell_cases(root);
  return "  for word in " + words_before + "; do\n    case \"$found $word\" in\n      " +
         cases.commands +
         ") found=\"${found:+$found }$word\" ;;\n    esac\n  done\n"
         "  case \"$found $prev\" in\n" +
         cases.choices + "  esac\n  [ \"$offered\" ] || case \"$found\" in\n" + cases.flags +
         "  esac\n";
}

// What is neither is a path, which is bash's own business.
std::string bash_completion(CLI::App& root) {
  return "_pagoda() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  local found= word offered=\n" +
         shell_body(root, "\"${COMP_WORDS[@]:1:COMP_CWORD-1}\"") +
         "  COMPREPLY=($(compgen -W \"$offered\" -- \"$cur\"))\n"
         "}\ncomplete -o default -F _pagoda pagoda\n";
}

// It may be sourced, or lie as _pagoda in a folder of $fpath, where zsh takes it for the function
// itself when that is first called.
std::string zsh_completion(CLI::App& root) {
  return "#compdef pagoda\n"
         "_pagoda() {\n"
         "  local prev=\"${words[CURRENT-1]}\" found= word offered=\n" +
         shell_body(root, "\"${(@)words[2,CURRENT-1]}\"") +
         "  compadd -- ${=offered} || _files\n"
         "}\n"
         "if [ \"$funcstack[1]\" = _pagoda ]; then _pagoda \"$@\"; else compdef _pagoda pagoda; "
         "fi\n";
}

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text)
    out += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

std::string fish_completion(CLI::App& root) {
  std::string script;
  for_each_command(root, "", [&](CLI::App& app, const std::string& path) {
    std::string when = "__fish_use_subcommand";
    if (!path.empty()) {
      when.clear();
      std::istringstream names(path);
      for (std::string name; names >> name;) {
        when += (when.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + name);
      }
    }
    const std::string begin = "complete -c pagoda -n " + fish_quoted(when);
    for (CLI::App* below : commands_of(app)) {
      script += begin + " -f -a " + below->get_name() + " -d " +
                fish_quoted(below->get_description()) + "\n";
    }
    for (const CLI::Option* option : shown_options(app)) {
      if (option->get_lnames().empty()) continue;
      script += begin + " -l " + option->get_lnames().front();
      if (!option->get_snames().empty()) script += " -s " + option->get_snames().front();
      const std::string choices = choices_of(*option);
      if (!choices.empty()) script += " -x -a " + fish_quoted(choices);
      if (choices.empty() && option->get_expected_min() > 0) script += " -r";
      script += " -d " + fish_quoted(option->get_description()) + "\n";
    }
  });
  return script;
}

}  // namespace

Result<std::string> completion(CLI::App& root, const std::string& shell) {
  if (shell == "bash") return bash_completion(root);
  if (shell == "zsh") return zsh_completion(root);
  if (shell == "fish") return fish_completion(root);
  return Status(Exit::kUsage, "completion: \"" + printable(shell) + "\" must be bash, zsh or fish");
}

}  // namespace pagoda
