// pagoda export --checkpoint RUN [--step N] [--dtype TYPE] [--format hf|gguf] --out DIR|FILE
#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/joined_run.h"
#include "commands/commands.h"

namespace pagoda {
namespace {

class ExportCommand : public Command {
 public:
  explicit ExportCommand(CLI::App& root)
      : Command(root.add_subcommand(
            "export", "Write a run's weights as a Hugging Face folder or a GGUF file")) {
    app()
        .add_option("--checkpoint", flags_.checkpoint, "folder of a run")
        ->type_name("RUN")
        ->required();
    app()
        .add_option("--model", flags_.model_path,
                    "folder the run started from, if it has moved since")
        ->type_name("DIR");
    step_ = app()
                .add_option("--step", flags_.step, "checkpoint of this step (default: the newest)")
                ->type_name("INT");
    app()
        .add_option("--dtype", dtype_,
                    "type of the weights: fp32 or bf16 (default: the model's own); in GGUF q8_0 "
                    "too (default: bf16)")
        ->type_name("TYPE");
    app()
        .add_option("--format", format_, "hf: a Hugging Face folder (default); gguf: a file")
        ->type_name("hf|gguf");
    app()
        .add_option("--out", flags_.output_dir,
                    "folder to write, new or empty; with --format gguf the file")
        ->type_name("PATH")
        ->required();
  }

  Status run() override {
    if (step_->count() > 0 && flags_.step < 0) {
      return Status(Exit::kUsage, "--step: must not be negative; leave it out for the newest");
    }
    if (format_ != "hf" && format_ != "gguf") {
      return Status(Exit::kUsage, "--format: \"" + printable(format_) + "\" must be hf or gguf");
    }
    RETURN_IF_ERROR(format_ == "gguf" ? read_gguf_type() : read_dtype());
    return run_by_one("export", [this] { return run_export(flags_); });
  }

 private:
  Status read_dtype() {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (dtype_ == dtype_name(dtype)) flags_.dtype = dtype;
    }
    if (dtype_.empty() || flags_.dtype) return Status();
    return Status(Exit::kUsage, "--dtype: \"" + printable(dtype_) + "\" must be fp32 or bf16");
  }
  Status read_gguf_type() {
    if (dtype_.empty() || dtype_ == "bf16") flags_.gguf = GgufType::kBF16;
    if (dtype_ == "fp32") flags_.gguf = GgufType::kF32;
    if (dtype_ == "q8_0") flags_.gguf = GgufType::kQ8_0;
    if (flags_.gguf) return Status();
    return Status(Exit::kUsage,
                  "--dtype: \"" + printable(dtype_) + "\" must be fp32, bf16 or q8_0 in GGUF");
  }

  ExportFlags flags_;
  CLI::Option* step_ = nullptr;
  std::string dtype_, format_ = "hf";
};

}  // namespace

CommandPtr add_export_command(CLI::App& root) { return std::make_unique<ExportCommand>(root); }

}  // namespace pagoda
