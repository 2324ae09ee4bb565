#include "model/rope_config.h"

#include <cmath>

#include "base/log.h"

namespace pagoda {
namespace {

using Fields = ConfigFields;

// Sets how much of a head turns. The rotary parameters, where they say so, come first.
void parse_rotary_dim(Fields& f, const char* key, const Json* rope, ModelConfig& c) {
  constexpr const char* kKey = "partial_rotary_factor";
  c.rotary_dim = c.latent() ? c.rope_head_dim : c.head_dim;
  if (c.latent() && rope != nullptr && rope->is_object() && rope->value(kKey, Json(1.0)) != 1.0) {
    f.refuse(strf("\"%s\" has a \"%s\"; \"qk_rope_head_dim\" numbers of a head are rotated", key,
                  kKey));
  }
  if (c.family->partial_rotary_factor == 0.0) return;
  double factor = f.is_absent(kKey) ? c.family->partial_rotary_factor : 1.0;  // null: whole heads
  if (c.family->rotary_dim && f.is_absent(kKey) && f.find("rotary_dim") != nullptr) {
    factor = static_cast<double>(f.integer("rotary_dim", 0, c.head_dim)) /
             static_cast<double>(c.head_dim);
  }
  factor = f.real_or(kKey, factor, 0.0, 1.0);
  if (rope != nullptr && rope->is_object()) {
    Fields inner(*rope, "");
    factor = inner.real_or(kKey, factor, 0.0, 1.0);
    if (!inner.status().ok()) {
      return f.refuse(strf("\"%s\"%s", key, inner.status().message().c_str()));
    }
  }
  c.rotary_dim = static_cast<int64_t>(static_cast<double>(c.head_dim) * factor);
  if (c.rotary_dim >= 2 && c.rotary_dim % 2 == 0) return;
  f.refuse(strf("\"%s\" %g leaves %lld numbers of a head to rotate; rotary embedding needs an even "
                "number of at least 2",
                kKey, factor, (long long)c.rotary_dim));
}

// Reads what YaRN changes, as Transformers does (modeling_rope_utils.py).
void parse_yarn(Fields& f, const char* key, const Json& rope, ModelConfig& c) {
  constexpr double kMost = 1e9;
  Fields inner(rope, "");
  Rotation& r = c.rotation;
  const auto pretrained = static_cast<double>(c.max_position_embeddings);
  r.original_positions =
      inner.real_or("original_max_position_embeddings", pretrained, 1.0, kMost);
  r.factor = inner.real_or("factor", pretrained / r.original_positions, 1e-3, kMost);
  r.fast_turns = inner.real_or("beta_fast", 32.0, 1e-6, kMost);
  r.slow_turns = inner.real_or("beta_slow", 1.0, 1e-6, kMost);
  r.whole_pairs = inner.flag_or("truncate", true);
  const auto growth = [&](double by) {
    return r.factor <= 1.0 ? 1.0 : 0.1 * by * std::log(r.factor) + 1.0;
  };
  const double above = inner.real_or("mscale", 0.0, 0.0, kMost);
  const double below = inner.real_or("mscale_all_dim", 0.0, 0.0, kMost);
  const double size = above > 0.0 && below > 0.0 ? growth(above) / growth(below) : growth(1.0);
  r.size = inner.real_or("attention_factor", size, 1e-6, 1e6);
  // Transformers scales the scores, of which queries are half.
  if (c.latent() && below > 0.0) c.query_scale *= growth(below) * growth(below);
  if (inner.status().ok()) return;
  f.refuse(strf("\"%s\"%s", key, inner.status().message().c_str()));
}

// Reads Llama 3.1's rule, of which Transformers wants every number.
void parse_llama3(Fields& f, const char* key, const Json& rope, ModelConfig& c) {
  constexpr double kMost = 1e9;
  Fields inner(rope, "");
  Rotation& r = c.rotation;
  r.by_turns = true;
  r.factor = inner.real("factor", 1e-3, kMost);
  r.slow_turns = inner.real("low_freq_factor", 1e-6, kMost);
  r.fast_turns = inner.real("high_freq_factor", 1e-6, kMost);
  r.original_positions = inner.real("original_max_position_embeddings", 1.0, kMost);
  if (!inner.status().ok()) {
    return f.refuse(strf("\"%s\"%s", key, inner.status().message().c_str()));
  }
  if (r.slow_turns < r.fast_turns) return;
  f.refuse(strf("\"%s\": \"low_freq_factor\" must be below \"high_freq_factor\"", key));
}

}  // namespace

// Transformers 4 writes rope_theta and rope_scaling, 5 writes rope_parameters with both inside. The
// default type ignores what else is inside, and so does division of all frequencies by 1.
void parse_rope(Fields& f, ModelConfig& c) {
  constexpr double kMaxTheta = 1e12;
  c.rotation.theta = f.real_or("rope_theta", c.family->rope_theta, 1.0, kMaxTheta);
  const Json* scaling = f.find("rope_scaling");
  const char* key = scaling != nullptr && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  const Json* rope = f.find(key);
  parse_rotary_dim(f, key, rope, c);
  const Json usual = *c.family->rope_parameters != 0 ? Json::parse(c.family->rope_parameters)
                                                     : Json();
  if (rope == nullptr && usual.is_object()) rope = &usual;
  if (rope == nullptr) return;
  if (!rope->is_object()) return f.refuse(strf("\"%s\" must be an object", key));
  const Json type = rope->value("rope_type", rope->value("type", Json("default")));
  const bool plain = type == "default" || (type == "linear" && rope->value("factor", Json()) == 1);
  if (!plain && type != "yarn" && type != "llama3") {
    return f.refuse(
        strf("\"%s\" asks for %s; only the default rotary embedding, \"yarn\" and "
             "\"llama3\" are implemented",
             key, Fields::shown(type).c_str()));
  }
  for (const auto& [name, value] : rope->items()) {
    if (!value.is_object()) continue;
    return f.refuse(
        strf("\"%s\" has parameters of its own for \"%s\"; only one rotary "
             "embedding for all layers is implemented",
             key, printable(name, 60).c_str()));
  }
  Fields inner(*rope, "");
  const double theta = inner.real_or("rope_theta", c.rotation.theta, 1.0, kMaxTheta);
  if (!inner.status().ok()) {
    return f.refuse(strf("\"%s\"%s", key, inner.status().message().c_str()));
  }
  if (f.find("rope_theta") != nullptr && theta != c.rotation.theta) {
    return f.refuse(strf("\"rope_theta\" and \"%s\" differ", key));
  }
  c.rotation.theta = theta;
  if (type == "yarn") parse_yarn(f, key, *rope, c);
  if (type == "llama3") parse_llama3(f, key, *rope, c);
}

}  // namespace pagoda
