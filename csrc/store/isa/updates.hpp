// From gradients to rows: sums for equal ids, clipping, and the optimizers' steps.
#pragma once

#include <math.h>

#include "common.hpp"

namespace heterps::store::HETERPS_ISA {

namespace {

// Sums of the ids that occur again, in the order of their occurrence.
template <int kDim>
HETERPS_INLINE void sum_repeats(const Distinct& call, const Gradients& from, int width) {
  const int dim = kDim > 0 ? kDim : width;
  const auto scale = [&](std::uint32_t p) { return from.scale != nullptr ? from.scale[p] : 1.0f; };
  std::uint32_t ranks = 0;
  for (std::size_t r = 0; r < call.repeats; ++r) {
    if (r + kAhead < call.repeats) {
      prefetch_given(from.row(call.repeat_position[r + kAhead], dim), sizeof(float) * dim);
    }
    const std::uint32_t number = call.repeat_number[r], p = call.repeat_position[r];
    std::uint32_t rank = from.rank[number];
    const float* grad = from.row(p, dim);
    const float times = scale(p);
    if (rank == kNoSlot) {
      from.rank[number] = rank = ranks++;
      const std::uint32_t p0 = call.first[number];
      const float* first = from.row(p0, dim);
      const float times0 = scale(p0);
      float* sum = from.sums + static_cast<std::size_t>(rank) * dim;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) sum[j] = first[j] * times0 + grad[j] * times;
    } else {
      float* sum = from.sums + static_cast<std::size_t>(rank) * dim;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) sum[j] += grad[j] * times;
    }
  }
}

// Sum of squares in sixteen strands, so that the order does not depend on the width of vectors.
HETERPS_INLINE float squares(const float* x, int dim) {
  typedef float Sixteen __attribute__((vector_size(64)));
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Sixteen sum = {};
  int j = 0;
  for (; j + 16 <= dim; j += 16) {
    Sixteen some;
    memcpy(&some, x + j, sizeof some);
    sum += some * some;
  }
  if (j < dim) {
#if defined(__AVX512F__)   // what is stored in parts and then read as a whole makes the processor wait
    const Sixteen rest = reinterpret_cast<Sixteen>(
        _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << (dim - j)) - 1), x + j));
#else
    Sixteen rest = {};
    memcpy(&rest, x + j, sizeof(float) * (dim - j));
#endif
    sum += rest * rest;
  }
  const Eight eight = __builtin_shufflevector(sum, sum, 0, 1, 2, 3, 4, 5, 6, 7) +
                      __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15);
  const Four four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

struct Powers {   // of Adam's betas: rows that are updated together often have the same age
  float age = 0;
  double one = 1, two = 1;
};

HETERPS_INLINE float sign(float x) { return x > 0 ? 1.0f : -1.0f; }

template <Kind kKind>
HETERPS_INLINE void update(const Rule& rule, float* __restrict w, float* __restrict s, const float* __restrict g, int dim,
                           Powers& powers) {
  const float lr = rule.lr, eps = rule.eps;
  if constexpr (kKind == Kind::sgd) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) w[j] -= lr * g[j];
  } else if constexpr (kKind == Kind::momentum) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      s[j] = rule.momentum * s[j] + g[j];
      w[j] -= lr * s[j];
    }
  } else if constexpr (kKind == Kind::adagrad) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      s[j] += g[j] * g[j];
      w[j] -= lr * g[j] / (__builtin_sqrtf(s[j]) + eps);
    }
  } else if constexpr (kKind == Kind::rowwise_adagrad) {
    s[0] += squares(g, dim) / static_cast<float>(dim);
    const float step = lr / (__builtin_sqrtf(s[0]) + eps);
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) w[j] -= step * g[j];
  } else if constexpr (kKind == Kind::adam) {
    float *m = s + 1, *v = s + 1 + dim;
    s[0] += 1.0f;
    if (powers.age != s[0]) powers = {s[0], pow(rule.beta1, s[0]), pow(rule.beta2, s[0])};
    const float first = static_cast<float>(lr / (1.0 - powers.one));
    const float second = static_cast<float>(1.0 / sqrt(1.0 - powers.two));
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      m[j] = rule.beta1 * m[j] + (1.0f - rule.beta1) * g[j];
      v[j] = rule.beta2 * v[j] + (1.0f - rule.beta2) * (g[j] * g[j]);
      w[j] -= first * m[j] / (__builtin_sqrtf(v[j]) * second + eps);
    }
  } else {
    float *z = s, *n = s + dim;
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      const float next = n[j] + g[j] * g[j], root = __builtin_sqrtf(next);
      z[j] += g[j] - (root - __builtin_sqrtf(n[j])) / lr * w[j];
      n[j] = next;
      const float size = __builtin_fabsf(z[j]) - rule.l1;
      w[j] = size <= 0 ? 0.0f : -sign(z[j]) * size / ((rule.beta + root) / lr + rule.l2);
    }
  }
}

// Clips a row whose sum of squares is no float. Doubles hold it, and the factor, which may be too small for a float.
[[gnu::noinline, gnu::cold]] inline void clip_huge(float clip_norm, float* g, int dim) {
  double sum = 0;
  for (int j = 0; j < dim; ++j) sum += static_cast<double>(g[j]) * g[j];
  const double scale = clip_norm / sqrt(sum);
  for (int j = 0; j < dim; ++j) g[j] = static_cast<float>(g[j] * scale);
}

HETERPS_INLINE void condition(const Rule& rule, const float* __restrict w, float* __restrict g, int dim) {
  if (rule.clip_value < __builtin_inff()) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) {
      g[j] = g[j] > rule.clip_value ? rule.clip_value : g[j] < -rule.clip_value ? -rule.clip_value : g[j];
    }
  }
  if (rule.clip_norm < __builtin_inff()) {
    const float norm = __builtin_sqrtf(squares(g, dim));
    if (norm == __builtin_inff()) [[unlikely]] {
      clip_huge(rule.clip_norm, g, dim);
    } else if (norm > rule.clip_norm) {
      const float scale = rule.clip_norm / norm;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) g[j] *= scale;
    }
  }
  if (rule.weight_decay > 0) {
    HETERPS_ROW
    for (int j = 0; j < dim; ++j) g[j] += rule.weight_decay * w[j];
  }
}

HETERPS_INLINE bool is_plain(const Rule& rule) {
  return !(rule.clip_value < __builtin_inff()) && !(rule.clip_norm < __builtin_inff()) && !(rule.weight_decay > 0);
}

// Rows follow their gradients, as they are (kPlain) or clipped, scaled and with decay. Where these lie in the order of the
// call (kDirect), which one is meant is chosen without a branch: whether an id occurred again is as good as random.
template <Kind kKind, int kDim, bool kPlain, bool kDirect>
HETERPS_INLINE void apply_some(const Rule& rule, const Distinct& call, const Gradients& from, const RowView& rows,
                               int width) {
  const int dim = kDim > 0 ? kDim : width;
  const std::size_t count = call.distinct, bytes = sizeof(float) * dim;
  const std::uint32_t *const slots = call.slot, *const first = call.first, *const ranks = from.rank;
  const auto grads = reinterpret_cast<std::uintptr_t>(from.grads), sums = reinterpret_cast<std::uintptr_t>(from.sums);
  float* copy = from.sums + (from.summed ? 0 : call.repeats) * static_cast<std::size_t>(dim);
  Powers powers;
  const auto gradient = [&](std::size_t u) -> const float* {
    if (from.summed) return from.at != nullptr ? from.at[u] : from.grads + u * dim;
    if constexpr (kDirect) {
      const std::uintptr_t own = grads + first[u] * bytes, sum = sums + ranks[u] * bytes;
      return reinterpret_cast<const float*>(ranks[u] == kNoSlot ? own : sum);
    }
    return ranks[u] == kNoSlot ? from.row(first[u], dim) : from.sums + static_cast<std::size_t>(ranks[u]) * dim;
  };
  // GCC takes a function that only fetches for one without effects, and drops calls of it unless they are inlined first.
  const auto fetch = [&](std::size_t u) __attribute__((always_inline)) {
    const std::uint32_t slot = slots[u];
    if (slot == kNoSlot) return;
    prefetch_given(gradient(u), bytes);
    prefetch(rows.weights(slot), bytes);
    if constexpr (kKind == Kind::rowwise_adagrad) {
      __builtin_prefetch(rows.state(slot), 1);
    } else if constexpr (kKind != Kind::sgd) {
      prefetch(rows.state(slot), rows.state_bytes);
    }
  };
  for (std::size_t u = 0; u < count && u < kRowsAhead; ++u) fetch(u);
  for (std::size_t u = 0; u < count; ++u) {
    if (u + kRowsAhead < count) fetch(u + kRowsAhead);
    const std::uint32_t slot = slots[u];
    if (slot == kNoSlot) continue;
    float* w = rows.weights(slot);
    const float* g = gradient(u);
    if constexpr (!kPlain) {
      const float scale = from.scale != nullptr && ranks[u] == kNoSlot ? from.scale[first[u]] : 1.0f;
      HETERPS_ROW
      for (int j = 0; j < dim; ++j) copy[j] = g[j] * scale;
      condition(rule, w, copy, dim);
      g = copy;
    }
    update<kKind>(rule, w, rows.state(slot), g, dim, powers);
  }
}

template <Kind kKind, int kDim>
void apply(const Rule& rule, const Distinct& call, const Gradients& from, const RowView& rows, int width) {
  if (!from.summed) sum_repeats<kDim>(call, from, width);
  if (!is_plain(rule) || from.scale != nullptr) {
    apply_some<kKind, kDim, false, false>(rule, call, from, rows, width);
  } else if (from.row_of != nullptr) {
    apply_some<kKind, kDim, true, false>(rule, call, from, rows, width);
  } else {
    apply_some<kKind, kDim, true, true>(rule, call, from, rows, width);
  }
}

}  // namespace

}  // namespace heterps::store::HETERPS_ISA
