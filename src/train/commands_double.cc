#include <cstdio>
#include "train/commands.h"
#include "offload/storage.h"
namespace pagoda {
Status run_train(const RunConfig& c, const TrainFlags& f) { std::fputs(c.to_toml().c_str(), stdout); std::printf("resume %d\n", f.resume); return Status(); }
Status run_eval(const RunConfig&, const EvalFlags& f) { std::printf("eval %s\n", f.checkpoint.c_str()); return Status(); }
Status run_init(const InitFlags&) { return Status(); }
Status run_export(const ExportFlags&) { return Status(); }
Status run_ckpt_list(const CkptFlags&) { return Status(); }
Status run_ckpt_verify(const CkptFlags&) { return Status(); }
}
