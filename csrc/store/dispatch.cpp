// Chooses the kernels of this processor's instruction set.
#include "kernels.hpp"

namespace heterps::store {

namespace portable {
Kernels kernels(int dim, Kind kind);
}
#if defined(__x86_64__)
namespace avx2 {
Kernels kernels(int dim, Kind kind);
}
namespace avx512 {
Kernels kernels(int dim, Kind kind);
}
#endif

Kernels kernels(int dim, Kind kind) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return avx512::kernels(dim, kind);
  }
  if (__builtin_cpu_supports("avx2")) return avx2::kernels(dim, kind);
#endif
  return portable::kernels(dim, kind);
}

}  // namespace heterps::store
