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
  if (++tally[0] == 0) tally[0] = 1;   // 0 is the stamp of places that were never claimed
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

// So many threads update a row, each so many of its floats.
#if DIM % 4 == 0 && (DIM & (DIM - 1)) == 0 && DIM <= 128
#define LANES (DIM / 4)
#else
#define LANES 1
#endif
#define WIDTH (DIM / LANES)

// The sum over the threads of a row.
template <typename Number>
__device__ Number total(Number x) {
  for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFF, x, step);
  return x;
}

template <typename Number>
__device__ Number squares(const float* g) {
  Number sum = 0;
  for (int k = 0; k < WIDTH; ++k) sum += (Number)g[k] * g[k];
  return total(sum);
}

// Updates the rows of a call's distinct ids by their summed gradients, which are zeros again afterwards.
extern "C" __global__ void update(const int* slots, const int* tally, const float* lr_at, float* sums, float* weights,
                                  float* state, unsigned char* dirty) {
  const u64 u = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES, from = lane * WIDTH;
  const bool on = u < (u64)tally[1];
  if (!__any_sync(0xFFFFFFFF, on)) return;
  // Threads without a row go along with the others of their warp, on slot 0, and write nothing.
  const u64 slot = on ? slots[u] : 0;
  const float lr = *lr_at;
  float g[WIDTH], w[WIDTH];
  for (int k = 0; k < WIDTH; ++k) {
    g[k] = on ? sums[u * DIM + from + k] : 0.0f;
    w[k] = weights[slot * DIM + from + k];
  }
#ifdef CLIP_VALUE
  for (int k = 0; k < WIDTH; ++k) g[k] = fminf(fmaxf(g[k], -CLIP_VALUE), CLIP_VALUE);
#endif
#ifdef CLIP_NORM
  const double norm = sqrt(squares<double>(g));   // the squares of a large float are no float
  if (norm > CLIP_NORM) {
    for (int k = 0; k < WIDTH; ++k) g[k] = (float)(g[k] * (CLIP_NORM / norm));
  }
#endif
#ifdef DECAY
  for (int k = 0; k < WIDTH; ++k) g[k] += DECAY * w[k];
#endif
#if RULE == ROWWISE_ADAGRAD
  const float sum = state[slot] + squares<float>(g) / DIM;
  const float step = lr / (sqrtf(sum) + EPS);
  for (int k = 0; k < WIDTH; ++k) w[k] -= step * g[k];
#elif RULE == ADAM
  const float age = state[slot * STATE] + 1.0f;
  const float first = (float)(lr / (1.0 - pow((double)BETA1, (double)age)));
  const float second = (float)(1.0 / sqrt(1.0 - pow((double)BETA2, (double)age)));
#endif
  __syncwarp();   // every thread has read what one of them writes
  if (!on) return;
  if (lane == 0) {
    dirty[slot] = 1;
#if RULE == ROWWISE_ADAGRAD
    state[slot] = sum;
#elif RULE == ADAM
    state[slot * STATE] = age;
#endif
  }
  for (int k = 0; k < WIDTH; ++k) {
    const int j = from + k;
#if RULE == SGD
    w[k] -= lr * g[k];
#elif RULE == MOMENTUM
    float* v = state + slot * STATE + j;
    *v = MOMENTUM_FACTOR * *v + g[k];
    w[k] -= lr * *v;
#elif RULE == ADAGRAD
    float* h = state + slot * STATE + j;
    *h += g[k] * g[k];
    w[k] -= lr * g[k] / (sqrtf(*h) + EPS);
#elif RULE == ADAM
    float* m = state + slot * STATE + 1 + j;
    float* v = m + DIM;
    *m = BETA1 * *m + (1.0f - BETA1) * g[k];
    *v = BETA2 * *v + (1.0f - BETA2) * (g[k] * g[k]);
    w[k] -= first * *m / (sqrtf(*v) * second + EPS);
#elif RULE == FTRL
    float* z = state + slot * STATE + j;
    float* n = z + DIM;
    const float next = *n + g[k] * g[k], root = sqrtf(next);
    *z += g[k] - (root - sqrtf(*n)) / lr * w[k];
    *n = next;
    const float size = fabsf(*z) - L1;
    w[k] = size <= 0 ? 0.0f : (*z > 0 ? -1.0f : 1.0f) * size / ((BETA + root) / lr + L2);
#endif
    weights[slot * DIM + j] = w[k];
    sums[u * DIM + j] = 0.0f;
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
