// Every option of a run, declared once.
#include "config/run_config.h"

namespace pagoda {
namespace {

constexpr Affects kResults = Affects::kResults;
constexpr Affects kRunOnly = Affects::kRunOnly;
constexpr Affects kLocal = Affects::kLocal;

// Model and texts are known by what is in them (their fingerprints), so a run's folder may move.
void declare_inputs(RunConfig& c, OptionTable& t) {
  t.section("model", "Model");
  t.add("path", c.model.path, kRunOnly, "Hugging Face folder to start from");
  t.section("data", "Data");
  t.add("path", c.data.path, kRunOnly,
        "training data: .txt, .jsonl, .json, also .gz and .zst; repeat for several files");
  t.add("eval_path", c.data.eval_path, kRunOnly, "held-out text; none: train does not evaluate");
  t.add("sequence_len", c.data.sequence_len, kResults, "length of a row that documents share",
        "tokens");
  t.add("too_long", c.data.too_long, {"truncate", "drop", "error"}, kResults,
        "what to do with a conversation longer than a row; a text is cut into pieces");
  t.add(
      "kind", c.data.kind,
      {"auto", "text", "messages", "conversations", "instruction", "prompt", "question", "tokens"},
      kResults, "kind of the rows of .jsonl and .json; auto: that of a file's first row");
  t.add("fields", c.data.fields, kResults,
        "names of the rows' fields if they differ, for example prompt=query,completion=reply");
  t.add("chat_template", c.data.chat_template, kResults,
        "auto: the model's; run: it is run even if there is a preset; none: prompts are joined "
        "plainly; or a preset, see docs/data.md");
  t.alias("chat-template");
  t.add("chat_date", c.data.chat_date, kResults,
        "day that a chat template is told, for example 2026-11-23; empty: today");
  t.add("train_on", c.data.train_on, {"assistant", "last", "all"}, kResults,
        "part of a conversation to train: answers, the last answer, or everything");
}

void declare_train(RunConfig& c, OptionTable& t) {
  const bool steps_shape_rate = c.optim.schedule != ScheduleKind::kConstant;
  t.section("train", "Training");
  t.add("steps", c.train.steps, steps_shape_rate ? kResults : kRunOnly, "length of the run",
        "steps");
  t.add("tokens_per_step", c.train.tokens_per_step, kResults, "size of one optimizer step",
        "tokens");
  t.add_or_auto("micro_batch_tokens", c.train.micro_batch_tokens, kResults,
                "size that attention and routing take at a time; auto: the planner chooses",
                "tokens");
  t.add("chunks", c.train.chunks, kResults,
        "parts of a step in which an expert's rows are summed, one part after the other; zebra and "
        "pipelines work at several at a time",
        "parts");
  t.add_or_auto("shards", c.train.shards, kResults,
                "parts of a step whose dense gradients are summed apart, so that as many devices "
                "may share attention; auto: 8, 4, 2 or 1, whichever divides the microbatches of a "
                "chunk",
                "parts");
  t.add(
      "expert_shards", c.train.expert_shards, kResults,
      "parts of a step whose gradients of experts are summed apart: one, or train.shards, so that "
      "several devices may compute rows of one expert",
      "parts");
  t.add("seed", c.train.seed, kResults, "seed of the data order");
  t.add("dtype", c.train.dtype, {"fp32", "bf16"}, kResults,
        "type of weights and activations; master weights are fp32");
  t.add("freeze", c.train.freeze, kResults,
        "tensors that are not trained and have no optimizer state: embed, head, attention, norms, "
        "router, experts, shared, mlp, or names as \"model.layers.0.*\"");
  t.add("devices", c.train.devices, kLocal,
        "devices that compute: auto (an NVIDIA GPU if one is usable, else the CPU), cpu, cuda:0; "
        "cuda*2: the first two GPUs, cpu*4: four CPU devices, cpu/8: one slowed 8 times, cpu/8:24: "
        "8 times at experts and 24 at the rest");
  t.add("output_dir", c.train.output_dir, kRunOnly, "folder of the run; new or empty");
  t.add("save_steps", c.train.save_steps, kRunOnly, "interval of checkpoints; 0: no checkpoints",
        "steps");
  t.add("eval_steps", c.train.eval_steps, kRunOnly, "interval of evaluations; 0: no evaluations",
        "steps");
  t.add("eval_batches", c.train.eval_batches, kRunOnly,
        "length of one evaluation; `pagoda eval` takes the whole text unless this is set",
        "microbatches");
  t.add("early_stop", c.train.early_stop, kRunOnly,
        "evaluations in a row without a lower loss that end the run; 0: none do", "evaluations");
  t.add("keep_best", c.train.keep_best, kRunOnly,
        "the model of the evaluation with the lowest loss is exported to OUTPUT_DIR/best");
  t.add("keep_copies", c.train.keep_copies, kRunOnly,
        "how many of the newest checkpoints are exported as models to OUTPUT_DIR/copies/STEP",
        "copies");
  t.add("log_steps", c.train.log_steps, kRunOnly, "interval of printed lines", "steps");
  t.add("tensorboard", c.train.tensorboard, kRunOnly,
        "the numbers of metrics.jsonl are written to OUTPUT_DIR/tensorboard, too");
  t.add("watch_steps", c.train.watch_steps, kRunOnly,
        "span over which experts without tokens, or with too many, are noticed; 0: none are",
        "steps");
  t.add("watch_load", c.train.watch_load, kRunOnly,
        "an expert with more than so many times the mean of its layer is warned of; 0: none is");
  t.add("trace_steps", c.train.trace_steps, kRunOnly,
        "FIRST:LAST, steps to trace in OUTPUT_DIR/trace.json (ui.perfetto.dev); none: no trace");
  t.alias("trace-steps");
  t.add("trace_routing", c.train.trace_routing, kRunOnly,
        "new file that records the tokens of each expert, by step, microbatch and layer, for "
        "planning; none: no record");
  t.alias("trace-routing");
  t.add("threads", c.train.threads, kLocal, "compute threads; 0: one per core");
  t.add("optimizer_threads", c.train.optimizer_threads, kLocal,
        "threads that update weights, beside the compute threads; 0: as many as those, at most 16 "
        "for each NUMA node");
}

void declare_exchange(RunConfig& c, OptionTable& t) {
  t.add("exchange", c.parallel.exchange, {"auto", "flat", "halo", "rounds"}, kRunOnly,
        "how devices send each other rows of experts: flat: receiver by receiver; rounds: each "
        "sends to one other at a time, and takes from one, so that none waits for another's "
        "receiver (Aurora); halo: between processes in one message to each device's counterpart, "
        "which passes them on (Piper); auto: flat; a plan of a cluster may name another");
  t.add("network_gb_s", c.parallel.network_gb_s, kRunOnly,
        "rates of the processes' network cards where they differ, a number for each process; only "
        "their ratios count: rounds then take as long for each pair, and a fast card has several "
        "slow partners at a time; none: all are equally fast",
        "GB/s");
}

void declare_sharing(RunConfig& c, OptionTable& t) {
  t.add(
      "shares", c.parallel.shares, {"speed", "uniform", "measured"}, kRunOnly,
      "what devices of unequal speed have of microbatches, experts and, in stages, layers: speed: "
      "in proportion to what train.devices says of it; uniform: as much as the others; measured: "
      "in proportion to what they do in the run, also when that changes; but layers, and experts "
      "that stay at home (parallel.place), as with speed");
  t.add("place", c.parallel.place, {"step", "home"}, kRunOnly,
        "where an expert is computed: step: by its tokens in each step, so that all devices end "
        "together; home: always on the same device, as where all weights stay on devices or "
        "memory.pin is set");
  t.add("sharing", c.parallel.sharing, {"auto", "rows", "data", "model"}, kRunOnly,
        "what travels between devices where train.expert_shards are train.shards and experts need "
        "not be at home: rows: to their expert; data: the expert's weights, to each device that "
        "attends to rows of it, which computes these; auto: for each expert and device what has "
        "fewer bytes, where all devices attend; model: rows, to all devices, since each has a part "
        "of every expert");
  t.add("hidden_shares", c.parallel.hidden_shares, kResults,
        "model: shares of an expert's hidden columns, one for each device in their order, by its "
        "speed; what the parts give is added in this order, whoever computes them",
        "shares");
}

void declare_parallel(RunConfig& c, OptionTable& t) {
  t.section("parallel",
            "Devices, and what each of them does; none of it changes a bit but hidden_shares");
  t.add("layout", c.parallel.layout, {"auto", "experts", "zebra", "pipeline"}, kRunOnly,
        "order of the devices' work: experts: all compute a layer's experts together; zebra: "
        "devices that attend and those with the experts work at different train.chunks at a time; "
        "pipeline: each of parallel.stages has layers of its own, and train.chunks follow each "
        "other through them; auto: experts, or in one process, with 2 train.chunks at least and a "
        "sheet that has the run's devices, the faster of experts and zebra");
  t.add_or_auto(
      "attention_devices", c.parallel.attention_devices, kRunOnly,
      "devices, of each copy of a stage, that share all work but the experts'; auto: all, or as "
      "many as there are train.shards; in zebra as planned",
      "devices");
  t.add("offloaded", c.parallel.offloaded, kRunOnly,
        "zebra: experts of a layer that the devices which attend keep; a number for each layer, "
        "or one for all; auto: as planned",
        "experts");
  t.add("lags", c.parallel.lags, kRunOnly,
        "zebra: chunks by which the last layer's attention is ahead of the head, the head of the "
        "attention's backward, and the last experts of their backward; auto: as planned",
        "chunks");
  t.add("kept_rows", c.parallel.kept_rows, kRunOnly,
        "rows of a layer and chunk that a device keeps from other devices for its experts' "
        "backward; further ones come again; auto: in zebra all, where there is room",
        "rows");
  t.add_or_auto("stages", c.parallel.stages, kRunOnly,
                "pipeline, zebra: groups of neighbouring devices, each with layers of its own; in "
                "zebra each has devices that attend and others; auto: 2, in zebra 1",
                "stages");
  t.add("stage_layers", c.parallel.stage_layers, kRunOnly,
        "how many layers each of parallel.stages has; auto: by the speed of its devices as "
        "train.devices say it, or as many as the others (parallel.shares = uniform)",
        "layers");
  t.add(
      "copies", c.parallel.copies, kRunOnly,
      "groups of neighbouring devices, in each stage, that have all of its experts each: rows stay "
      "in the group whose devices attend to them, and gradients are summed over the groups; needs "
      "train.expert_shards = train.shards",
      "groups");
  t.add("order", c.parallel.order, {"gpipe", "1f1b", "breadth_first"}, kRunOnly,
        "of stages: gpipe: a stage takes all train.chunks forward, then all backward; 1f1b: one "
        "forward, one backward, so that few activations wait; breadth_first: all chunks through a "
        "layer before the stage's next one, so that paged weights are read once in each phase");
  declare_exchange(c, t);
  declare_sharing(c, t);
  t.add("migrate_steps", c.parallel.migrate_steps, kRunOnly,
        "interval at which experts may exchange homes, where devices or processes have had unequal "
        "numbers of rows and that pays; 0: homes stay",
        "steps");
  t.add("deadline_s", c.parallel.deadline_s, kRunOnly,
        "of several processes: one that is silent, or that a transfer waits for, is lost after "
        "this time",
        "seconds");
  t.add("work_s", c.parallel.work_s, kRunOnly,
        "the same while a process does work of its own that others wait for, if that is longer: "
        "it makes tokens, loads or saves",
        "seconds");
  t.add("heartbeat_s", c.parallel.heartbeat_s, kRunOnly,
        "interval at which processes tell each other that they live", "seconds");
  t.add("ports", c.parallel.ports, kRunOnly,
        "the first and the last port that processes may listen on for that, \"7000:7099\"; empty: "
        "the system chooses");
  t.add("nccl", c.parallel.nccl, kRunOnly,
        "GPUs of different processes send to each other by NCCL, if there is one; else by MPI");
}

void declare_sample(RunConfig& c, OptionTable& t) {
  t.section("sample", "Samples: what the model makes of prompts before, during and after");
  t.add("prompts", c.sample.prompts, kRunOnly, "texts to continue, always by the likeliest token");
  t.add("max_new_tokens", c.sample.max_new_tokens, kRunOnly, "length of a continuation, at most",
        "tokens");
  t.add("steps", c.sample.steps, kRunOnly, "interval of samples; 0: only before and after",
        "steps");
  t.add("chat", c.sample.chat, kRunOnly, "a prompt is a user's turn in data.chat_template");
}

void declare_optim(RunConfig& c, OptionTable& t) {
  t.section("optim", "Optimizer (AdamW)");
  t.add("learning_rate", c.optim.learning_rate, kResults, "learning rate at its peak");
  t.add("weight_decay", c.optim.weight_decay, kResults,
        "decoupled weight decay; not for norms and biases");
  t.add("beta1", c.optim.beta1, kResults, "decay of the first moment");
  t.add("beta2", c.optim.beta2, kResults, "decay of the second moment");
  t.add("eps", c.optim.eps, kResults, "added to the root of the second moment");
  t.add("schedule", c.optim.schedule, {"constant", "linear", "cosine"}, kResults,
        "learning rate after warmup; linear and cosine end at 0");
  t.add("warmup_steps", c.optim.warmup_steps, kResults, "linear rise at the start", "steps");
  t.add("clip", c.optim.clip, {"global", "per_expert", "none"}, kResults,
        "gradient clipping; global is exact");
  t.add("clip_norm", c.optim.clip_norm, kResults, "largest norm that clipping lets through");
  t.add("correction_speed", c.optim.correction_speed, kResults,
        "how far a step moves a router's corrections of the choice, up for experts with fewer "
        "tokens than the mean, down for those with more (DeepSeek-V3: 0.001); 0: they stay");
  t.add_or_auto("balance_loss", c.optim.balance_loss, kResults,
                "coefficient of the balance loss, by which routers share tokens out evenly; auto: "
                "the model's router_aux_loss_coef");
  t.add("z_loss", c.optim.z_loss, kResults,
        "coefficient of the z-loss, which keeps the logits of routers small (ST-MoE: 0.001); "
        "0: there is none");
  t.add("untouched", c.optim.untouched, {"exact", "skip"}, kResults,
        "an expert without tokens: AdamW of a zero gradient, or nothing");
  t.add("state", c.optim.state, {"fp32", "bf16", "8bit"}, kResults,
        "format of the moments; with bf16 weights 12, 8 or 6 bytes a parameter in all");
}

void declare_memory(RunConfig& c, OptionTable& t) {
  t.section("memory",
            "Memory, as \"24GiB\" or as \"40%\" of the machine's or cgroup's (device: of a GPU's)");
  t.add("device", c.memory.device, kLocal,
        "budget of each device, or a list in the order of train.devices; auto: 85% of a GPU's "
        "memory; on the CPU, 30% of RAM; CPU devices share what is in percent or auto");
  t.add("host", c.memory.host, kLocal, "budget of host RAM beside the device's; auto: 40%");
  t.add("disk", c.memory.disk, kLocal,
        "folder for the rest, repeat for several (none: OUTPUT_DIR/store); eval and generate put "
        "scratch files as large as the weights into the first (none: the working directory)");
  t.add("io", c.memory.io, {"auto", "uring", "threads"}, kLocal, "how the disk is driven");
  t.add("pin", c.memory.pin, kRunOnly,
        "percentage of a layer's experts, those with most tokens, that stay on the device from "
        "step to step; auto, off: none, since foreseen uses keep them as well");
  t.add("drive_tbw", c.memory.drive_tbw, kLocal,
        "rated endurance of each drive of memory.disk; train then tells how long it lasts; "
        "0: unknown",
        "TB");
}

void declare_plan(RunConfig& c, OptionTable& t) {
  t.section("plan", "Order of a step, to measure what each part of it is worth");
  t.add("prefetch", c.plan.prefetch, kRunOnly,
        "upload pages ahead of use; false: when the next task needs them");
  t.add("optimizer_at_end", c.plan.optimizer_at_end, kRunOnly,
        "the optimizer runs between steps, not beside them");
  t.add("whole_layers", c.plan.whole_layers, kRunOnly,
        "upload all experts of a layer before any of them computes");
  t.add("microbatch_major", c.plan.microbatch_major, kRunOnly,
        "the forward takes one microbatch after the other and reads weights for each");
  t.add("padded_experts", c.plan.padded_experts, kRunOnly,
        "every expert of a layer computes as many rows as the busiest one, zeros among them");
  t.add("in_place", c.plan.in_place, kRunOnly,
        "experts read rows where attention left them, if a device has room for those of all its "
        "microbatches, and on one CPU device add there what they give; false: they read copies");
  t.add("send_ahead", c.plan.send_ahead, kRunOnly,
        "experts' weights leave for another process a layer ahead of their use, where they travel "
        "(parallel.sharing) and both have room; false: when their layer is due, as also without "
        "plan.prefetch");
  t.add_or_auto("group_blocks", c.plan.group_blocks, kRunOnly,
                "row blocks of experts computed together; auto: 1 on a CPU alone, else up to "
                "16, in zebra up to 128",
                "blocks of 256 rows");
  t.add_or_auto("waves_in_flight", c.plan.waves_in_flight, kRunOnly,
                "groups of a layer's experts whose rows have room on each of several devices at a "
                "time, so that one with fewer rows goes on; auto: 8, 4 or 2, for which an eighth "
                "of what a step leaves has room; zebra has 2",
                "groups");
}

}  // namespace

void RunConfig::declare(OptionTable& table) {
  declare_inputs(*this, table);
  declare_train(*this, table);
  declare_parallel(*this, table);
  declare_sample(*this, table);
  declare_optim(*this, table);
  declare_memory(*this, table);
  declare_plan(*this, table);
}

}  // namespace pagoda
