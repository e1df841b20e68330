// What all kernels use. The headers here are compiled once for each instruction set, as parts of kernels.cpp; only
// views.hpp and intrinsics may be used in them.
#pragma once

#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../kernels.hpp"

namespace heterps::store::HETERPS_ISA {

namespace {

// Rows, or buckets, that are fetched ahead of their use; more where little is done with each. Measured: at 16 a core still
// waits for memory, beyond these nothing more is gained.
constexpr std::size_t kAhead = 32, kRowsAhead = 48, kOutAhead = 16;
constexpr std::size_t kLine = 64;

// Before a loop over a row's floats. Without it GCC unrolls short rows to scalars before it looks for vectors.
#define HETERPS_ROW _Pragma("GCC ivdep") _Pragma("GCC unroll 1")

HETERPS_INLINE void prefetch(const void* at, std::size_t bytes) {
  const char* line = static_cast<const char*>(at);
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(line + offset, 1);
  if (bytes % kLine != 0) __builtin_prefetch(line + bytes - 1, 1);   // which may lie on one more line
}

// The same for what a caller gave, which may begin anywhere: NumPy's arrays lie 16 bytes behind a line's begin.
HETERPS_INLINE void prefetch_given(const void* at, std::size_t bytes) {
  const char* line = static_cast<const char*>(at);
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(line + offset);
  __builtin_prefetch(line + bytes - 1);
}

HETERPS_INLINE void prefetch_given_to_write(void* at, std::size_t bytes) {
  char* line = static_cast<char*>(at);
  for (std::size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(line + offset, 1);
  __builtin_prefetch(line + bytes - 1, 1);
}

}  // namespace

}  // namespace heterps::store::HETERPS_ISA
