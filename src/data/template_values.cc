#include "data/template_values.h"

#include <nlohmann/json.hpp>

namespace pagoda {

using jinja::Value;

Value template_value(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return Value(json.get<double>());
      return Value(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return Value(json.get<double>());
    case OrderedJson::value_t::string:
      return Value(json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      for (const OrderedJson& item : json) items.push_back(template_value(item));
      return Value::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      jinja::Pairs pairs;
      for (const auto& [key, item] : json.items()) {
        pairs.emplace_back(Value(key), template_value(item));
      }
      return Value::dict(std::move(pairs));
    }
    default:
      return Value(jinja::None{});
  }
}

}  // namespace pagoda
