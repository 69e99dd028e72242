// SPDX-License-Identifier: Apache-2.0
//
// One token through a decoder of the llama shape (RMS norm, rotary grouped-query attention, gated
// SiLU), on a CPU, in one call.
//
// At batch 1 a token costs the bytes of the weights, read once from memory. So the weights are read
// where the model has them, each exactly once, by all threads in equal parts, and everything between
// two matrices is done by each thread for itself: that is cheaper than meeting. Threads meet four
// times a layer.
//
// A row's dot product and a chunk of attention are always summed in the same order, whatever the
// number of threads, so the result does not depend on it. Vectors are GCC's vector extension: the
// compiler makes AVX-512, AVX2 or NEON of them.

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 16;
constexpr int CHUNK = 128;  // rows of attention that one thread takes at a time
constexpr int MOST_GROUPS = 16;
constexpr int AHEAD = 1536;  // bytes that are asked for before they are needed

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t U __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t H __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline V load(const float* p) { return *reinterpret_cast<const V*>(p); }
inline V load(const bf16* p) {
  U wide = __builtin_convertvector(*reinterpret_cast<const H*>(p), U) << 16;
  return reinterpret_cast<V&>(wide);
}
inline void narrow(float x, float* p) { *p = x; }
inline void narrow(float x, bf16* p) {  // to nearest, ties to even; x is finite
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  p->bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float total(V v) {
  float sum = 0.0f;
  for (int i = 0; i < LANES / 2; i++) sum += v[i] + v[i + LANES / 2];
  return sum;
}

// e^x to 2 ulp for x <= 0 (Cephes' expf: Moshier, "Methods and Programs for Mathematical
// Functions", 1989); below -87 it gives a number next to 0.
inline V exponential(V x) {
  x = x < -87.0f ? V{} - 87.0f : x;
  x = x > 87.0f ? V{} + 87.0f : x;
  V scaled = x * 1.44269504088896341f;
  scaled = scaled + (scaled < 0.0f ? V{} - 0.5f : V{} + 0.5f);
  I n = __builtin_convertvector(scaled, I);
  V whole = __builtin_convertvector(n, V);
  V r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  I power = (n + 127) << 23;
  return p * reinterpret_cast<V&>(power);
}

// Where threads meet. One that waits for long gives its core away: on a machine that does other
// things the thread it waits for may have none. OpenMP's own barrier spins for milliseconds then.
class Meeting {
 public:
  void wait(int team) {
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++)
      if (spins > 4000) sched_yield();
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace

extern "C" {

struct Layer {
  const float *norm1, *norm2, *query_norm, *key_norm;  // the latter two may be null
  const void *query, *key, *value, *output, *gate, *up, *down;
  void *keys, *values;  // rows of the arena
};

struct Model {
  int32_t hidden, heads, key_heads, size, inner, layers, vocabulary, is_bf16;
  int64_t head_stride, row_stride;  // of keys and values, in elements
  int64_t capacity;                 // rows
  float epsilon, scale;
  const Layer* layer;
  const void *embedding, *head;
  const float *norm, *cosines, *sines;  // tables [position][size / 2]
  float* scratch;                       // see decode_scratch
};

// State buffers, all in the arena.
struct State {
  int64_t *position, *history, *pending, *draw;
  float* logits;
};
}

namespace {

struct Part {  // the share [first, last) of `count` things that one of `threads` has
  int first, last;
  Part(int count, int thread, int threads)
      : first(int(int64_t(count) * thread / threads)),
        last(int(int64_t(count) * (thread + 1) / threads)) {}
};

// out(row, dot) for a part of the rows of a matrix [rows][columns]. One row after the other, so that
// memory is read in its order: four rows side by side took 1.4 times as long.
template <class T, class Out>
inline void multiply(const void* matrix, const float* x, int columns, const Part& part, Out out) {
  const T* w = static_cast<const T*>(matrix) + int64_t(part.first) * columns;
  for (int row = part.first; row < part.last; row++, w += columns) {
    V a0{}, a1{}, a2{}, a3{};
    int j = 0;
    for (; j + 4 * LANES <= columns; j += 4 * LANES) {
      const char* ahead = reinterpret_cast<const char*>(w + j) + AHEAD;
      for (int i = 0; i < 4 * LANES * int(sizeof(T)); i += 64) __builtin_prefetch(ahead + i);
      a0 += load(x + j) * load(w + j);
      a1 += load(x + j + LANES) * load(w + j + LANES);
      a2 += load(x + j + 2 * LANES) * load(w + j + 2 * LANES);
      a3 += load(x + j + 3 * LANES) * load(w + j + 3 * LANES);
    }
    for (; j + LANES <= columns; j += LANES) a0 += load(x + j) * load(w + j);
    float sum = total((a0 + a1) + (a2 + a3));
    for (; j < columns; j++) sum += x[j] * widen(w[j]);
    out(row, sum);
  }
}

inline void normalise(const float* x, const float* weight, float* out, int count, float epsilon) {
  V squares{};
  int whole = count / LANES * LANES;
  for (int i = 0; i < whole; i += LANES) squares += load(x + i) * load(x + i);
  float sum = total(squares);
  for (int i = whole; i < count; i++) sum += x[i] * x[i];
  float factor = 1.0f / std::sqrt(sum / float(count) + epsilon);
  for (int i = 0; i < count; i++) out[i] = weight[i] * (x[i] * factor);
}

// Rotates the halves of one head; transformers' `rotate_half`.
inline void rotate(float* x, const float* cosine, const float* sine, int half) {
  for (int i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

// One key head's queries over rows first .. last. Writes for each query the largest score, the sum
// of the weights relative to it, and the weighted sum of the values.
template <class T>
void attend(const T* keys, const T* values, int64_t stride, const float* queries, int groups,
            int size, int first, int last, float* out) {
  alignas(64) float weights[MOST_GROUPS][CHUNK];
  const int count = last - first;
  for (int row = 0; row < count; row++) {
    const T* key = keys + (first + row) * stride;
    for (int g = 0; g < groups; g++) {
      const float* query = queries + g * size;
      V sum{};
      for (int i = 0; i < size; i += LANES) sum += load(query + i) * load(key + i);
      weights[g][row] = total(sum);
    }
  }
  for (int g = 0; g < groups; g++) {
    float most = weights[g][0];
    for (int row = 1; row < count; row++) most = std::fmax(most, weights[g][row]);
    for (int row = count; row % LANES; row++) weights[g][row] = -INFINITY;
    V sum{};
    for (int row = 0; row < count; row += LANES) {
      V* chunk = reinterpret_cast<V*>(&weights[g][row]);
      V raised = exponential(*chunk - most);
      raised = *chunk < -1e30f ? V{} : raised;
      *chunk = raised;
      sum += raised;
    }
    float* mine = out + g * (size + 2);
    mine[0] = most;
    mine[1] = total(sum);
    std::memset(mine + 2, 0, 4 * size);
  }
  for (int g = 0; g < groups; g++) {
    float* mine = out + g * (size + 2) + 2;
    for (int i = 0; i < size; i += LANES) {
      const T* value = values + first * stride + i;
      V a{}, b{};
      int row = 0;
      for (; row + 2 <= count; row += 2, value += 2 * stride) {
        a += load(value) * weights[g][row];
        b += load(value + stride) * weights[g][row + 1];
      }
      if (row < count) a += load(value) * weights[g][row];
      *reinterpret_cast<V*>(mine + i) = a + b;
    }
  }
}

template <class T>
void run(const Model& m, const State& state, int64_t token, int threads) {
  const int position = int(*state.position), rows = position + 1;
  const int groups = m.heads / m.key_heads, size = m.size, half = size / 2;
  const int chunks = (rows + CHUNK - 1) / CHUNK, partial = size + 2;
  const int widest = m.hidden > m.heads * size ? m.hidden : m.heads * size;
  const int queries = m.heads * size, keys = m.key_heads * size;
  float* shared = m.scratch;  // hidden | qkv | inner | partials | private of each thread
  float* hidden = shared;
  float* qkv = hidden + m.hidden;
  float* inner = qkv + queries + 2 * keys;
  float* partials = inner + m.inner;
  float* privates = partials + int64_t(m.heads) * chunks * partial;
  const float* cosine = m.cosines + int64_t(position) * half;
  const float* sine = m.sines + int64_t(position) * half;
  const T* embedded = static_cast<const T*>(m.embedding) + token * m.hidden;
  for (int i = 0; i < m.hidden; i++) hidden[i] = widen(embedded[i]);

  Meeting meeting;

#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num(), team = omp_get_num_threads();
    float* mine = privates + int64_t(thread) * (widest + queries);
    float* query = mine + widest;
    const Part q(queries, thread, team), k(keys, thread, team), h(m.hidden, thread, team);
    const Part n(m.inner, thread, team), units(m.key_heads * chunks, thread, team);
    const Part words(m.vocabulary, thread, team);

    for (int l = 0; l < m.layers; l++) {
      const Layer& layer = m.layer[l];
      T* key_rows = static_cast<T*>(layer.keys);
      T* value_rows = static_cast<T*>(layer.values);
      normalise(hidden, layer.norm1, mine, m.hidden, m.epsilon);
      auto put = [](float* to) { return [to](int row, float dot) { to[row] = dot; }; };
      multiply<T>(layer.query, mine, m.hidden, q, put(qkv));
      multiply<T>(layer.key, mine, m.hidden, k, put(qkv + queries));
      multiply<T>(layer.value, mine, m.hidden, k, put(qkv + queries + keys));
      meeting.wait(team);
      // each thread rotates the queries that it needs; the owner of the newest row writes it
      for (int unit = units.first; unit < units.last; unit++) {
        const int key_head = unit / chunks, first = unit % chunks * CHUNK;
        const int last = first + CHUNK < rows ? first + CHUNK : rows;
        if (unit == units.first || first == 0) {
          for (int g = 0; g < groups; g++) {
            float* one = query + g * size;
            std::memcpy(one, qkv + (key_head * groups + g) * size, 4 * size);
            if (layer.query_norm) normalise(one, layer.query_norm, one, size, m.epsilon);
            rotate(one, cosine, sine, half);
            for (int i = 0; i < size; i++) one[i] *= m.scale;
          }
        }
        const int64_t row = key_head * m.head_stride + position * m.row_stride;
        if (last == rows) {
          float* one = mine;  // the norm's result is not needed any more
          std::memcpy(one, qkv + queries + key_head * size, 4 * size);
          if (layer.key_norm) normalise(one, layer.key_norm, one, size, m.epsilon);
          rotate(one, cosine, sine, half);
          const float* value = qkv + queries + keys + key_head * size;
          for (int i = 0; i < size; i++) narrow(one[i], key_rows + row + i);
          for (int i = 0; i < size; i++) narrow(value[i], value_rows + row + i);
        }
        attend(key_rows + key_head * m.head_stride, value_rows + key_head * m.head_stride,
               m.row_stride, query, groups, size, first, last,
               partials + int64_t(unit) * groups * partial);
      }
      meeting.wait(team);
      for (int head = 0; head < m.heads; head++) {
        const float* part = partials + int64_t(head / groups * chunks) * groups * partial +
                            (head % groups) * partial;
        const int64_t step = int64_t(groups) * partial;
        float most = part[0];
        for (int c = 1; c < chunks; c++) most = std::fmax(most, part[c * step]);
        float sum = 0.0f;
        float* out = mine + head * size;
        std::memset(out, 0, 4 * size);
        for (int c = 0; c < chunks; c++) {
          const float weight = std::exp(part[c * step] - most);
          sum += weight * part[c * step + 1];
          for (int i = 0; i < size; i++) out[i] += weight * part[c * step + 2 + i];
        }
        for (int i = 0; i < size; i++) out[i] /= sum;
      }
      auto add = [hidden](int row, float dot) { hidden[row] += dot; };
      multiply<T>(layer.output, mine, queries, h, add);
      meeting.wait(team);
      normalise(hidden, layer.norm2, mine, m.hidden, m.epsilon);
      multiply<T>(layer.gate, mine, m.hidden, n, put(inner));
      multiply<T>(layer.up, mine, m.hidden, n, [inner](int row, float dot) {
        inner[row] = inner[row] / (1.0f + std::exp(-inner[row])) * dot;
      });
      meeting.wait(team);
      multiply<T>(layer.down, inner, m.inner, h, add);
      meeting.wait(team);
    }
    normalise(hidden, m.norm, mine, m.hidden, m.epsilon);
    float* logits = state.logits;
    multiply<T>(m.head, mine, m.hidden, words,
                [logits](int row, float dot) { logits[row] = dot; });
  }
}

}  // namespace

extern "C" {

// Floats of scratch that `threads` threads need.
int64_t decode_scratch(const Model* m, int threads) {
  const int64_t queries = int64_t(m->heads) * m->size, keys = int64_t(m->key_heads) * m->size;
  const int64_t widest = m->hidden > queries ? m->hidden : queries;
  const int64_t chunks = (m->capacity + CHUNK - 1) / CHUNK;
  return m->hidden + queries + 2 * keys + m->inner + m->heads * chunks * (m->size + 2) +
         threads * (widest + queries) + LANES;
}

// See the pending token: its keys and values, the history, the logits after it, the position.
// Returns 0; 1 when there is no such token or no room, and nothing was changed.
int decode_see(const Model* m, const State* state, int threads) {
  const int64_t token = *state->pending, position = *state->position;
  if (token < 0 || token >= m->vocabulary || position < 0 || position >= m->capacity) return 1;
  if (m->is_bf16)
    run<bf16>(*m, *state, token, threads);
  else
    run<float>(*m, *state, token, threads);
  state->history[position] = token;
  *state->position = position + 1;
  return 0;
}

// The same, then choose the first of the largest logits, and count the draw.
int decode_greedy(const Model* m, const State* state, int threads) {
  if (decode_see(m, state, threads) != 0) return 1;
  int64_t best = 0;
  for (int32_t i = 1; i < m->vocabulary; i++)
    if (state->logits[i] > state->logits[best]) best = i;
  *state->pending = best;
  ++*state->draw;
  return 0;
}
}
