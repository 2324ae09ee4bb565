// The name of this host, for people.
#pragma once

#include <string>

namespace pagoda {

std::string host_name();  // printable(); "?" if there is none

}  // namespace pagoda
