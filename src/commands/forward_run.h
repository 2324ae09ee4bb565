// What `eval` and `generate` share: a model that is read and not trained, and a session of it whose
// store lies in a scratch folder and is removed at the end. One thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "offload/scratch_folder.h"
#include "train/model_input.h"
#include "train/session.h"

namespace pagoda {

class ForwardRun {
 public:
  // `config` is not owned.
  explicit ForwardRun(const RunConfig& config)
      : config_(config), scratch_(config.scratch_parent()) {}

  // Stops at signals from now on, and opens model.path or a run's newest checkpoint. Errors as
  // open_storage and open_model.
  Status open(const std::string& run);
  // REQUIRES: open() has succeeded.
  const ModelInput& model() const { return *model_; }

  // A session of one microbatch that trains nothing.
  SessionOptions options() const;
  // The folder that the session's store will lie in, created at the first call. kCannotCreate.
  Result<std::string> scratch();
  // Calls `work` with a session that has the model's weights, and removes its store whatever comes
  // of it. REQUIRES: open() has succeeded.
  Status in_session(SessionOptions options, const std::function<Status(Session&)>& work);

 private:
  const RunConfig& config_;
  std::unique_ptr<Storage> storage_;
  ScratchFolder scratch_;
  bool has_scratch_ = false;
  std::optional<ModelInput> model_;
};

}  // namespace pagoda
