// Names of what models need and Pagoda does not have, so that a refusal says what is missing.
#pragma once

#include <string>

#include "model/config_fields.h"
#include "model/family.h"

namespace pagoda {

// What a family that is not in the family table would need, as "gated DeltaNet layers"; "" of a
// name that is not known here.
std::string missing_for(const std::string& model_type);

// Refuses keys of a config.json by which other families compute otherwise, where this family does
// not read them: a model whose files have them is not what Transformers would make of this
// model_type. null, and a value that changes nothing, are accepted.
void refuse_foreign_keys(ConfigFields& f, const FamilySpec& family);

}  // namespace pagoda
