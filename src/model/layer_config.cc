#include "model/layer_config.h"

#include <algorithm>

#include "base/log.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

using Fields = ConfigFields;

void parse_listed_layers(Fields& f, ModelConfig& c) {
  c.decoder_sparse_step = f.integer_or("decoder_sparse_step", 1, 1, kMaxSize);
  const Json* layers = f.find("mlp_only_layers");
  if (layers == nullptr) return;
  if (!layers->is_array()) return f.refuse("\"mlp_only_layers\" must be a list of layer numbers");
  for (const Json& layer : *layers) {
    if (!layer.is_number_integer()) {
      return f.refuse(strf("\"mlp_only_layers\" holds %s; it must hold layer numbers",
                           Fields::shown(layer).c_str()));
    }
    const auto index = layer.get<int64_t>();
    const bool exists = index >= 0 && index < c.num_layers;
    if (exists) c.mlp_only_layers.push_back(index);  // others name no layer
  }
}

void parse_convolutions(Fields& f, ModelConfig& c) {
  constexpr int64_t kDefault = 3;
  c.conv_width = f.integer_or("conv_L_cache", kDefault, 2, kMaxConvWidth);
  f.only("conv_bias", false);
  const Json* types = f.find("layer_types");
  if (types == nullptr || !types->is_array() || std::ssize(*types) != c.num_layers) {
    return f.refuse("\"layer_types\" must be a list of one word for each layer");
  }
  for (const Json& type : *types) {
    c.conv_layers.push_back(type == "conv");
    if (type == "conv" || type == "full_attention") continue;
    return f.refuse(
        strf("\"layer_types\" holds %s; only \"full_attention\" and \"conv\" are "
             "implemented",
             Fields::shown(type).c_str()));
  }
}

// The layers that "mlp_layer_types" calls "dense"; without it, the first.
void parse_typed_layers(Fields& f, ModelConfig& c) {
  const Json* types = f.find("mlp_layer_types");
  if (types == nullptr) {
    c.first_dense_layers = 1;
    return;
  }
  if (!types->is_array() || std::ssize(*types) != c.num_layers) {
    return f.refuse("\"mlp_layer_types\" must be a list of one word for each layer");
  }
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const Json& type = (*types)[static_cast<size_t>(layer)];
    if (type == "dense") c.mlp_only_layers.push_back(layer);
    if (type == "dense" || type == "sparse") continue;
    return f.refuse(strf("\"mlp_layer_types\" holds %s; it must hold \"dense\" or \"sparse\"",
                         Fields::shown(type).c_str()));
  }
}

}  // namespace

void parse_layers(ConfigFields& f, ModelConfig& c) {
  switch (c.family->dense_layers) {
    case DenseLayers::kNone:
      break;
    case DenseLayers::kListed:
      parse_listed_layers(f, c);
      break;
    case DenseLayers::kTyped:
      parse_typed_layers(f, c);
      break;
    case DenseLayers::kFirst:
      c.first_dense_layers =
          f.integer_or(c.family->first_dense, c.family->first_dense_default, 0, kMaxSize);
      break;
  }
  if (c.family->convolutions) parse_convolutions(f, c);
  if (!c.family->next_token_layers) return;
  const bool other = f.find("num_nextn_predict_layers") == nullptr;
  c.next_token_layers =
      f.integer_or(other ? "num_mtp_layers" : "num_nextn_predict_layers", 1, 0, 1024);
}

namespace {

// Names the layers with the window, of a family that says so for each: those that the file lists,
// or else every other one, perhaps of the first "max_window_layers" only, or those behind them.
std::vector<uint8_t> sliding_layers(Fields& f, const ModelConfig& c, bool switched_on) {
  std::vector<uint8_t> slides;
  const Json* types = f.find("layer_types");
  if (types == nullptr) {
    const bool late = c.family->window == WindowRule::kLate;
    int64_t border = c.num_layers;
    if (c.family->window != WindowRule::kAlternating) {
      border = f.integer_or("max_window_layers", late ? 62 : 28, 0, kMaxSize);
    }
    for (int64_t l = 0; l < c.num_layers; ++l) {
      slides.push_back(late ? l >= border : switched_on && l % 2 == 0 && l < border);
    }
    return slides;
  }
  if (!types->is_array() || std::ssize(*types) != c.num_layers) {
    f.refuse("\"layer_types\" must be a list of one word for each layer");
    return slides;
  }
  for (const Json& type : *types) {
    slides.push_back(type == "sliding_attention");
    const bool full = type == "full_attention" || type == "attention";
    if (full || (type == "sliding_attention" && switched_on)) continue;
    f.refuse(strf("\"layer_types\" holds %s; only \"full_attention\"%s is implemented",
                  Fields::shown(type).c_str(), switched_on ? " or \"sliding_attention\"" : ""));
    return slides;
  }
  return slides;
}

}  // namespace

void parse_window(ConfigFields& f, ModelConfig& c) {
  const WindowRule rule = c.family->window;
  if (rule == WindowRule::kNever) return;
  const bool switched = rule == WindowRule::kSwitched || rule == WindowRule::kPerLayer;
  const bool on = !switched || f.flag_or("use_sliding_window", false);
  if (rule != WindowRule::kAlways && rule != WindowRule::kSwitched) {
    c.sliding_layers = sliding_layers(f, c, on);
    const auto sliding = std::count(c.sliding_layers.begin(), c.sliding_layers.end(), 1);
    if (sliding == 0) return c.sliding_layers.clear();
  }
  if (!on) return;
  const int64_t fallback = f.is_absent("sliding_window") ? c.family->sliding_window : 0;
  c.sliding_window = f.integer_or("sliding_window", fallback, 1, int64_t{1} << 31);
}

}  // namespace pagoda
