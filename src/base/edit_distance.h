// Guesses the known word that a misspelt one stands for.
#pragma once

#include <string>
#include <vector>

namespace pagoda {

// Levenshtein distance in bytes.
int edit_distance(const std::string& a, const std::string& b);

// The word nearest to `word`, or empty when even that one is too far for a typing error.
std::string nearest_word(const std::string& word, const std::vector<std::string>& words);

}  // namespace pagoda
