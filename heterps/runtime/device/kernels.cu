// A sparse table in a GPU's memory: hash index, rows and optimizers. Compiled at run time for the GPU that is there, with
// these macros set: DIM and STATE (floats of a row and of its state), RULE (an optimizer, below), its numbers, and KEY
// and SCALE of first values. Each kernel is one step of a lookup or an update; steps are ordered by being separate
// launches on one stream.
//
// The index has so many places, and one more for the id that marks empty ones. A place holds an id and, apart from it,
// what is known of the id. Ids are never removed.

typedef unsigned long long u64;
typedef unsigned int u32;

#define SGD 0
#define MOMENTUM 1
#define ADAGRAD 2
#define ROWWISE_ADAGRAD 3
#define ADAM 4
#define FTRL 5

const u64 EMPTY = 0x8000000000000000ull;
const u64 GOLDEN = 0x9E3779B97F4A7C15ull;

struct Entry {
  int slot;     // of the row, from 1 on; 0: none yet
  int number;   // among the distinct ids of the call `stamp`
  int stamp;
  int unused;
};

// The finalizer of splitmix64, as in the host's store.
__device__ u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ float draw(u32 bits) { return ((float)(bits >> 8) * 0x1p-23f - 1.0f) * SCALE; }

// First values of a row and of its state: those of the host's store.
__device__ void first_values(u64 id, float* row, float* state) {
  const u64 h = mix(id ^ KEY);
  for (int j = 0; j < DIM; j += 2) {
    const u64 x = mix(h + (u64)(j / 2 + 1) * GOLDEN);
    row[j] = draw((u32)x);
    if (j + 1 < DIM) row[j + 1] = draw((u32)(x >> 32));
  }
  for (int j = 0; j < STATE; ++j) {
#if RULE == ADAGRAD || RULE == ROWWISE_ADAGRAD
    state[j] = ACCUMULATOR;
#elif RULE == FTRL
    state[j] = j < DIM ? 0.0f : ACCUMULATOR;
#else
    state[j] = 0.0f;
#endif
  }
}

// Where to look for an id first, and where next.
__device__ u64 home(u64 id, u64 places) { return __umul64hi(mix(id + GOLDEN), places); }
__device__ u64 after(u64 at, u64 places) { return at + 1 == places ? 0 : at + 1; }

// tally: [0] number of this call, [1] its distinct ids, [2] rows in use, slot 0 included.
extern "C" __global__ void begin(int* tally) {
  if (threadIdx.x > 0) return;
  tally[0] += 1;
  tally[1] = 0;
}

// The place of each id; ids that have none get one.
extern "C" __global__ void find(const u64* ids, int count, u64* keys, const u64* places_at, int* place) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const u64 id = ids[i], places = *places_at;
  if (id == EMPTY) {
    place[i] = (int)places;
    return;
  }
  u64 at = home(id, places);
  for (;;) {
    u64 there = *(volatile u64*)(keys + at);
    if (there == EMPTY) {
      there = atomicCAS(keys + at, EMPTY, id);
      if (there == EMPTY) break;
    }
    if (there == id) break;
    at = after(at, places);
  }
  place[i] = (int)at;
}

// One thread of those that have the same id claims it: numbers it, and makes its row if it has none.
extern "C" __global__ void claim(const u64* ids, const int* place, int count, Entry* entries, int* tally, u64* id_of,
                                 float* weights, float* state, int* slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Entry* entry = entries + place[i];
  const int call = tally[0];
  if (*(volatile int*)&entry->stamp == call || atomicExch(&entry->stamp, call) == call) return;
  const int number = atomicAdd(tally + 1, 1);
  int slot = entry->slot;
  if (slot == 0) {
    slot = atomicAdd(tally + 2, 1);
    entry->slot = slot;
    id_of[slot] = ids[i];
    first_values(ids[i], weights + (u64)slot * DIM, state + (u64)slot * STATE);
  }
  entry->number = number;
  slots[number] = slot;
}

// Copies the rows of a call's ids; a few threads for each.
extern "C" __global__ void gather(const int* place, int count, const Entry* entries, const float* weights, float* out,
                                  int* number) {
  const int kParts = DIM % 4 == 0 ? DIM / 4 : DIM;
  const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u64 i = t / kParts;
  const int part = (int)(t % kParts);
  if (i >= count) return;
  const Entry entry = entries[place[i]];
  if (part == 0) number[i] = entry.number;
#if DIM % 4 == 0
  ((float4*)out)[i * kParts + part] = ((const float4*)weights)[(u64)entry.slot * kParts + part];
#else
  out[i * DIM + part] = weights[(u64)entry.slot * DIM + part];
#endif
}

// Adds the gradients of equal ids up.
extern "C" __global__ void scatter(const float* grads, const int* number, int count, float* sums) {
  const int kParts = DIM % 4 == 0 ? DIM / 4 : DIM;
  const u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  const u64 i = t / kParts;
  const int part = (int)(t % kParts);
  if (i >= count) return;
#if DIM % 4 == 0
  const float4 grad = ((const float4*)grads)[i * kParts + part];
  float* sum = sums + (u64)number[i] * DIM + 4 * part;
#if __CUDA_ARCH__ >= 900
  atomicAdd((float4*)sum, grad);
#else
  atomicAdd(sum, grad.x);
  atomicAdd(sum + 1, grad.y);
  atomicAdd(sum + 2, grad.z);
  atomicAdd(sum + 3, grad.w);
#endif
#else
  atomicAdd(sums + (u64)number[i] * DIM + part, grads[i * DIM + part]);
#endif
}

// Updates the rows of a call's distinct ids by their summed gradients, which are zeros again afterwards.
extern "C" __global__ void update(const int* slots, const int* tally, const float* lr_at, float* sums, float* weights,
                                  float* state, unsigned char* dirty) {
  const int count = tally[1];
  const float lr = *lr_at;
  for (u64 u = (u64)blockIdx.x * blockDim.x + threadIdx.x; u < count; u += (u64)gridDim.x * blockDim.x) {
    const u64 slot = slots[u];
    float* w = weights + slot * DIM;
    float* s = state + slot * STATE;
    float* sum = sums + u * DIM;
    float g[DIM];
    for (int j = 0; j < DIM; ++j) {
      g[j] = sum[j];
      sum[j] = 0.0f;
    }
#ifdef CLIP_VALUE
    for (int j = 0; j < DIM; ++j) g[j] = fminf(fmaxf(g[j], -CLIP_VALUE), CLIP_VALUE);
#endif
#ifdef CLIP_NORM
    float squares = 0;
    for (int j = 0; j < DIM; ++j) squares += g[j] * g[j];
    const float norm = sqrtf(squares);
    if (norm > CLIP_NORM) {
      for (int j = 0; j < DIM; ++j) g[j] *= CLIP_NORM / norm;
    }
#endif
#ifdef DECAY
    for (int j = 0; j < DIM; ++j) g[j] += DECAY * w[j];
#endif
#if RULE == SGD
    for (int j = 0; j < DIM; ++j) w[j] -= lr * g[j];
#elif RULE == MOMENTUM
    for (int j = 0; j < DIM; ++j) {
      s[j] = MOMENTUM_FACTOR * s[j] + g[j];
      w[j] -= lr * s[j];
    }
#elif RULE == ADAGRAD
    for (int j = 0; j < DIM; ++j) {
      s[j] += g[j] * g[j];
      w[j] -= lr * g[j] / (sqrtf(s[j]) + EPS);
    }
#elif RULE == ROWWISE_ADAGRAD
    float mean = 0;
    for (int j = 0; j < DIM; ++j) mean += g[j] * g[j];
    s[0] += mean / DIM;
    const float step = lr / (sqrtf(s[0]) + EPS);
    for (int j = 0; j < DIM; ++j) w[j] -= step * g[j];
#elif RULE == ADAM
    s[0] += 1.0f;
    const float first = (float)(lr / (1.0 - pow((double)BETA1, (double)s[0])));
    const float second = (float)(1.0 / sqrt(1.0 - pow((double)BETA2, (double)s[0])));
    float *m = s + 1, *v = s + 1 + DIM;
    for (int j = 0; j < DIM; ++j) {
      m[j] = BETA1 * m[j] + (1.0f - BETA1) * g[j];
      v[j] = BETA2 * v[j] + (1.0f - BETA2) * (g[j] * g[j]);
      w[j] -= first * m[j] / (sqrtf(v[j]) * second + EPS);
    }
#else
    float *z = s, *n = s + DIM;
    for (int j = 0; j < DIM; ++j) {
      const float next = n[j] + g[j] * g[j], root = sqrtf(next);
      z[j] += g[j] - (root - sqrtf(n[j])) / lr * w[j];
      n[j] = next;
      const float size = fabsf(z[j]) - L1;
      w[j] = size <= 0 ? 0.0f : (z[j] > 0 ? -1.0f : 1.0f) * size / ((BETA + root) / lr + L2);
    }
#endif
    dirty[slot] = 1;
  }
}

// Puts the ids of all rows into an empty, larger index.
extern "C" __global__ void rehash(const u64* id_of, int rows, u64* keys, const u64* places_at, Entry* entries) {
  const int slot = blockIdx.x * blockDim.x + threadIdx.x;
  if (slot == 0 || slot >= rows) return;
  const u64 id = id_of[slot], places = *places_at;
  u64 at = places;
  if (id != EMPTY) {
    at = home(id, places);
    while (atomicCAS(keys + at, EMPTY, id) != EMPTY) at = after(at, places);
  }
  entries[at].slot = slot;
}
