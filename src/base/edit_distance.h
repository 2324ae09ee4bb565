// Which known word was meant by a misspelt one.
#pragma once

#include <string>
#include <vector>

namespace pagoda {

// Levenshtein distance in bytes.
int edit_distance(const std::string& a, const std::string& b);

// The word nearest to `word`, or empty when even that is too far to be a slip of the finger.
std::string nearest_word(const std::string& word, const std::vector<std::string>& words);

}  // namespace pagoda
