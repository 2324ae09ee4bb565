#include "kernels/cuda/library/library_products.h"

namespace pagoda {

Result<std::shared_ptr<LibraryProducts>> open_library_products(Stream&) {
  return Status(Exit::kUnavailable, "this was built without the header of cuBLAS 12.5 or later");
}
std::string library_products_name() { return ""; }

}  // namespace pagoda
