// Calls of a library that is looked for at run time, so that the program starts where it is not.
#pragma once

#include <dlfcn.h>

namespace pagoda {

// Sets a pointer to a function to that of this name; false: the library, which dlopen() gave, has
// none.
template <typename Call>
bool find_call(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  return call != nullptr;
}

}  // namespace pagoda
