// pagoda upcycle --from DIR --experts E --top-k K [--noise S] [--seed N] --out DIR
#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/value_option.h"
#include "commands/commands.h"
#include "model/model_config.h"

namespace pagoda {
namespace {

class UpcycleCommand : public Command {
 public:
  explicit UpcycleCommand(CLI::App& root)
      : Command(root.add_subcommand(
            "upcycle", "Make a Mixtral from a dense Llama; experts begin as copies of its MLP")) {
    app()
        .add_option("--from", flags_.dense_path, "folder of a dense model (llama, mistral)")
        ->type_name("DIR")
        ->required();
    app().add_option("--experts", flags_.experts, "experts of each layer")
        ->type_name("INT")
        ->required();
    app().add_option("--top-k", flags_.top_k, "experts that a token visits")
        ->type_name("INT")
        ->required();
    add_value(app(), "--noise", flags_.noise,
              "noise on the experts, as a share of each tensor's spread")
        ->type_name("FLOAT");
    add_value(app(), "--seed", flags_.seed, "seed of routers and noise")->type_name("INT");
    app()
        .add_option("--out", flags_.output_dir, "folder to write; new or empty")
        ->type_name("DIR")
        ->required();
  }

  Status run() override {
    if (flags_.experts < 1 || flags_.experts > kMaxExperts) {
      return Status(Exit::kUsage,
                    strf("--experts: must be from 1 to %lld", (long long)kMaxExperts));
    }
    if (flags_.top_k < 1 || flags_.top_k > flags_.experts) {
      return Status(Exit::kUsage, "--top-k: must be at least 1 and at most --experts");
    }
    if (!(flags_.noise >= 0 && flags_.noise <= 100)) {
      return Status(Exit::kUsage, "--noise: must be from 0 to 100");
    }
    if (flags_.seed < 0) return Status(Exit::kUsage, "--seed: must not be negative");
    return run_upcycle(flags_);
  }

 private:
  UpcycleFlags flags_;
};

}  // namespace

CommandPtr add_upcycle_command(CLI::App& root) { return std::make_unique<UpcycleCommand>(root); }

}  // namespace pagoda
