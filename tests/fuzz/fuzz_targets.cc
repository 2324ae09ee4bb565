#include "tests/fuzz/fuzz_targets.h"

namespace pagoda {

std::span<const FuzzTarget> fuzz_targets() {
  static constexpr FuzzTarget kTargets[] = {
      {"safetensors", fuzz_safetensors, safetensors_seeds},
      {"config", fuzz_config, config_seeds},
      {"index", fuzz_index, index_seeds},
      {"tokenizer", fuzz_tokenizer, tokenizer_seeds},
      {"rows", fuzz_rows, rows_seeds},
      {"template", fuzz_template, template_seeds},
      {"run_file", fuzz_run_file, run_file_seeds},
      {"sheet", fuzz_sheet, sheet_seeds},
      {"manifest", fuzz_manifest, manifest_seeds},
      {"pages", fuzz_pages, pages_seeds},
  };
  return kTargets;
}

}  // namespace pagoda
