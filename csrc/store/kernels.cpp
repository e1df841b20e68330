// Compiled once for each instruction set, with HETERPS_ISA as its name: see isa/common.hpp.
#include "kernels.hpp"

#include "isa/joins.hpp"
#include "isa/lookups.hpp"
#include "isa/updates.hpp"

namespace heterps::store::HETERPS_ISA {

namespace {

template <int kDim>
void pool(const float* const* rows, std::size_t count, bool mean, float* out, int width) {
  const int dim = kDim > 0 ? kDim : width;
  HETERPS_ROW
  for (int j = 0; j < dim; ++j) out[j] = 0.0f;
  for (std::size_t i = 0; i < count; ++i) {
    if (rows[i] == nullptr) continue;
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) out[j] += rows[i][j];
  }
  if (!mean || count == 0) return;
  const float scale = 1.0f / static_cast<float>(count);
  HETERPS_ROW
  for (int j = 0; j < dim; ++j) out[j] *= scale;
}

template <int kDim>
void flat_pull(const float* rows, const std::uint32_t* slot, std::size_t count, float* out, int width,
               std::size_t ahead) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead < count) prefetch(rows + slot[i + ahead] * dim, sizeof(float) * dim);
    memcpy(out + i * dim, rows + slot[i] * dim, sizeof(float) * dim);
  }
}

template <int kDim>
void flat_push(const Rule& rule, float* rows, float* state, const std::uint32_t* slot, std::size_t count,
               const float* grads, int width, std::size_t ahead) {
  const std::size_t dim = kDim > 0 ? kDim : width;
  Powers powers;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + ahead < count) {
      prefetch(rows + slot[i + ahead] * dim, sizeof(float) * dim);
      __builtin_prefetch(state + slot[i + ahead], 1);
    }
    update<Kind::rowwise_adagrad>(rule, rows + slot[i] * dim, state + slot[i], grads + i * dim, static_cast<int>(dim),
                                  powers);
  }
}

template <int kDim>
Kernels of_width(Kind kind) {
  Kernels out{share, choose, number<kDim>, fetch, probe, gather<kDim>, copy<kDim>, find<kDim>, copy_distinct<kDim>,
              join<kDim>, add_up<kDim>, nullptr, pool<kDim>, flat_pull<kDim>, flat_push<kDim>};
  switch (kind) {
    case Kind::sgd: out.update = apply<Kind::sgd, kDim>; break;
    case Kind::momentum: out.update = apply<Kind::momentum, kDim>; break;
    case Kind::adagrad: out.update = apply<Kind::adagrad, kDim>; break;
    case Kind::rowwise_adagrad: out.update = apply<Kind::rowwise_adagrad, kDim>; break;
    case Kind::adam: out.update = apply<Kind::adam, kDim>; break;
    case Kind::ftrl: out.update = apply<Kind::ftrl, kDim>; break;
  }
  return out;
}

}  // namespace

Kernels kernels(int dim, Kind kind) {
  switch (dim) {
    case 8: return of_width<8>(kind);
    case 16: return of_width<16>(kind);
    case 32: return of_width<32>(kind);
    case 64: return of_width<64>(kind);
    case 128: return of_width<128>(kind);
    default: return of_width<0>(kind);
  }
}

}  // namespace heterps::store::HETERPS_ISA
