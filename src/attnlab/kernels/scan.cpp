// The recurrence of scan.py token by token, forward and backward, in memory linear in the length of the text.
//
//   S <- Diag(a) S,   u = v - Sᵀ e,   S <- S + k uᵀ,   output = Sᵀ q
//
// Columns of S never meet, so a block of W of them goes through a chunk of tokens at a time, while it is in the nearest
// cache. Vectors run over the keys; sums over the keys of W columns become one vector of W sums. The forward pass keeps every
// u and one state per chunk. The states within a chunk follow from them, and the backward pass computes them again.
// Nothing here knows of torch or Python: pointers in, numbers out.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "vectors.h"

// As in scan.py, field by field. Channels of a token are side by side; the steps to the next text, head and token are given.
struct Rows {
    void* data;  // null: not there
    int64_t text, head, token;
};

struct Problem {
    Rows q, k, v, decay, erase;  // [texts, heads, tokens, keys]; values for v; one or keys for the factors of the state
    Rows out, added;             // like v
    Rows d_out, d_q, d_k, d_v, d_decay, d_erase;
    void *state, *last, *d_last, *d_state;  // [texts, heads, keys, values]
    void* kept;                             // [texts, heads, chunks, states filled to whole vectors], or null
    int64_t heads, tokens, keys, values, decays, chunk;
};

namespace {

long up(long n, long step) { return (n + step - 1) / step * step; }

template <typename T>
struct Scan {
    static constexpr long W = LANES * sizeof(float) / sizeof(T);  // numbers of a vector, and columns of a block
    typedef T V __attribute__((vector_size(LANES * sizeof(float))));
    typedef T Unaligned __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(T)), may_alias));
    using All = std::make_index_sequence<W>;

    static V load(const T* p) { return *reinterpret_cast<const Unaligned*>(p); }
    static void store(T* p, V x) { *reinterpret_cast<Unaligned*>(p) = x; }

    // A vector whose lanes are lanes of a, or of b where the index is W or more.
    template <size_t... index>
    static V pick(V a, V b) {
#if defined(__clang__)
        return __builtin_shufflevector(a, b, index...);
#else
        typedef decltype(a < b) Index;
        return __builtin_shuffle(a, b, Index{index...});
#endif
    }

    // Lane l: a[l] + a[l ^ D], or the same of b where l contains D.
    template <size_t D, size_t... l>
    static V halves(V a, V b, std::index_sequence<l...>) {
        return pick<(l & D ? W + l : l)...>(a, b) + pick<(l & D ? W + (l ^ D) : (l ^ D))...>(a, b);
    }

    template <size_t D>
    static void sum_pairs(V* x) {
        if constexpr (D > 0) {
#pragma GCC unroll 16
            for (size_t i = 0; i < D; i++) x[i] = halves<D>(x[i], x[i + D], All{});
            sum_pairs<D / 2>(x);
        }
    }

    // The sums of W vectors, as a vector.
    static V sums(V* x) {
        sum_pairs<W / 2>(x);
        return x[0];
    }

    const Problem& p;
    const long row, P, E;  // P keys and E values: filled with zeros to whole vectors
    T* memory = nullptr;
    T *s, *ds, *q, *k, *e, *a, *v, *u, *g, *dq, *dk, *de, *da, *before;

    Scan(const Problem& p, long row, bool backward)
        : p(p), row(row), P(up(p.keys, W)), E(up(p.values, W)) {
        const long C = p.chunk, keys = C * P, values = C * E;
        const long total = E * P + 4 * keys + 2 * values + (backward ? E * P + values + 4 * keys + C * W * P : 0);
        void* base = nullptr;
        if (posix_memalign(&base, 64, total * sizeof(T))) return;
        memory = static_cast<T*>(base);
        std::memset(memory, 0, total * sizeof(T));
        T* next = memory;
        auto take = [&](long count) { return (next += count) - count; };
        s = take(E * P);
        for (T** part : {&q, &k, &e, &a}) *part = take(keys);
        v = take(values), u = take(values);
        if (!backward) return;
        ds = take(E * P), g = take(values);
        for (T** part : {&dq, &dk, &de, &da}) *part = take(keys);
        before = take(C * W * P);
    }
    ~Scan() { std::free(memory); }

    T* place(const Rows& rows, long token) const {
        return static_cast<T*>(rows.data) + row / p.heads * rows.text + row % p.heads * rows.head + token * rows.token;
    }

    // Copy rows of a chunk into a buffer whose rows are `width` apart, or back.
    void read(T* buffer, const Rows& rows, long begin, long count, long channels, long width) const {
        for (long t = 0; t < count; t++) std::memcpy(buffer + t * width, place(rows, begin + t), channels * sizeof(T));
    }
    void write(const T* buffer, const Rows& rows, long begin, long count, long channels, long width) const {
        for (long t = 0; t < count; t++) std::memcpy(place(rows, begin + t), buffer + t * width, channels * sizeof(T));
    }

    void read_tokens(long begin, long count) {
        read(q, p.q, begin, count, p.keys, P);
        read(k, p.k, begin, count, p.keys, P);
        if (p.erase.data) read(e, p.erase, begin, count, p.keys, P);
        for (long t = 0; t < count; t++)
            for (long i = 0; i < p.keys; i++)
                a[t * P + i] = p.decays ? place(p.decay, begin + t)[p.decays == 1 ? 0 : i] : T(1);
    }

    // States lie in memory as [keys, values], and here as [block of columns][vector of keys][column of the block][key].
    long inside(long key, long column) const {
        return column / W * W * P + (key / W * W + column % W) * W + key % W;
    }
    void read_state(T* to, const void* from) const {
        if (!from) return;
        const T* state = static_cast<const T*>(from) + row * p.keys * p.values;
        for (long i = 0; i < p.keys; i++)
            for (long c = 0; c < p.values; c++) to[inside(i, c)] = state[i * p.values + c];
    }
    void write_state(const T* from, void* to) const {
        T* state = static_cast<T*>(to) + row * p.keys * p.values;
        for (long i = 0; i < p.keys; i++)
            for (long c = 0; c < p.values; c++) state[i * p.values + c] = from[inside(i, c)];
    }

    T* kept_state(long begin) const {
        const long chunks = (p.tokens + p.chunk - 1) / p.chunk;
        return static_cast<T*>(p.kept) + (row * chunks + begin / p.chunk) * E * P;
    }

    void forward() {
        read_state(s, p.state);
        for (long begin = 0; begin < p.tokens; begin += p.chunk) {
            const long count = p.tokens - begin < p.chunk ? p.tokens - begin : p.chunk;
            if (p.kept) std::memcpy(kept_state(begin), s, E * P * sizeof(T));
            read_tokens(begin, count);
            read(v, p.v, begin, count, p.values, E);
            for (long c = 0; c < E; c += W)
                for (long t = 0; t < count; t++)
                    p.erase.data ? forward_block<true>(s + c * P, c, t) : forward_block<false>(s + c * P, c, t);
            write(v, p.out, begin, count, p.values, E);
            if (p.added.data) write(u, p.added, begin, count, p.values, E);
        }
        write_state(s, p.last);
    }

    // One token and W columns; the output takes the place of the value.
    template <bool ERASE>
    void forward_block(T* block, long c, long t) {
        const long P = this->P;
        const T *q = this->q + t * P, *k = this->k + t * P, *e = this->e + t * P, *a = this->a + t * P;
        T *value = v + t * E + c, *added = u + t * E + c;
        V part[W];
        store(added, load(value));
        if constexpr (ERASE) {
#pragma GCC unroll 16
            for (long i = 0; i < W; i++) part[i] = V{};
            for (long j = 0; j < P; j += W) {
                const V decay = load(a + j), erase = load(e + j);
#pragma GCC unroll 16
                for (long i = 0; i < W; i++) {
                    const V x = decay * load(block + (j + i) * W);
                    store(block + (j + i) * W, x);
                    part[i] += erase * x;
                }
            }
            store(added, load(value) - sums(part));
        }
#pragma GCC unroll 16
        for (long i = 0; i < W; i++) part[i] = V{};
        for (long j = 0; j < P; j += W) {
            const V decay = load(a + j), key = load(k + j), query = load(q + j);
#pragma GCC unroll 16
            for (long i = 0; i < W; i++) {
                V x = load(block + (j + i) * W);
                if constexpr (!ERASE) x = decay * x;
                x += key * added[i];
                store(block + (j + i) * W, x);
                part[i] += query * x;
            }
        }
        store(value, sums(part));
    }

    void backward() {
        read_state(ds, p.d_last);
        for (long begin = (p.tokens + p.chunk - 1) / p.chunk * p.chunk - p.chunk; begin >= 0; begin -= p.chunk) {
            const long count = p.tokens - begin < p.chunk ? p.tokens - begin : p.chunk;
            std::memcpy(s, kept_state(begin), E * P * sizeof(T));
            read_tokens(begin, count);
            read(u, p.added, begin, count, p.values, E);
            read(g, p.d_out, begin, count, p.values, E);
            std::memset(dq, 0, 4 * p.chunk * P * sizeof(T));  // and the three after it
            for (long c = 0; c < E; c += W) {
                for (long t = 0; t < count; t++) state_block(s + c * P, c, t);
                for (long t = count - 1; t >= 0; t--)
                    p.erase.data ? backward_block<true>(ds + c * P, c, t) : backward_block<false>(ds + c * P, c, t);
            }
            write(dq, p.d_q, begin, count, p.keys, P);
            write(dk, p.d_k, begin, count, p.keys, P);
            write(v, p.d_v, begin, count, p.values, E);
            if (p.erase.data) write(de, p.d_erase, begin, count, p.keys, P);
            if (p.decays > 1) write(da, p.d_decay, begin, count, p.keys, P);
            if (p.decays == 1)
                for (long t = 0; t < count; t++) {
                    T sum = 0;
                    for (long i = 0; i < p.keys; i++) sum += da[t * P + i];
                    *place(p.d_decay, begin + t) = sum;
                }
        }
        write_state(ds, p.d_state);
    }

    // W columns of the states of a chunk, decayed and before anything is added.
    void state_block(T* block, long c, long t) {
        const long P = this->P;
        const T* added = u + t * E + c;
        for (long j = 0; j < P; j += W) {
            const V decay = load(a + t * P + j), key = load(k + t * P + j);
#pragma GCC unroll 16
            for (long i = 0; i < W; i++) {
                const V x = decay * load(block + (j + i) * W);
                store(before + (t * P + j + i) * W, x);
                store(block + (j + i) * W, x + key * added[i]);
            }
        }
    }

    // From the gradient of W columns of the state after a token to that of the state before it.
    template <bool ERASE>
    void backward_block(T* block, long c, long t) {
        const long P = this->P;
        const T *q = this->q + t * P, *k = this->k + t * P, *e = this->e + t * P, *a = this->a + t * P;
        const T* states = before + t * P * W;
        const T *out = g + t * E + c, *added = u + t * E + c;
        T through = 0;
        for (long i = 0; i < W; i++) through += out[i] * added[i];
        V part[W];
#pragma GCC unroll 16
        for (long i = 0; i < W; i++) part[i] = V{};
        for (long j = 0; j < P; j += W) {
            const V query = load(q + j), key = load(k + j), decay = load(a + j);
            V d_query = load(dq + t * P + j) + key * through, d_key = load(dk + t * P + j), d_decay = load(da + t * P + j);
#pragma GCC unroll 16
            for (long i = 0; i < W; i++) {
                const V x = load(states + (j + i) * W), d = load(block + (j + i) * W) + query * out[i];
                d_query += x * out[i];
                d_key += d * added[i];
                part[i] += d * key;
                if constexpr (!ERASE) d_decay += d * x;
                store(block + (j + i) * W, ERASE ? d : d * decay);
            }
            store(dq + t * P + j, d_query);
            store(dk + t * P + j, d_key);
            if constexpr (!ERASE) store(da + t * P + j, d_decay);
        }
        T* d_added = v + t * E + c;
        store(d_added, sums(part));
        if constexpr (ERASE)
            for (long j = 0; j < P; j += W) {
                const V erase = load(e + j), decay = load(a + j);
                V d_erase = load(de + t * P + j), d_decay = load(da + t * P + j);
#pragma GCC unroll 16
                for (long i = 0; i < W; i++) {
                    const V x = load(states + (j + i) * W), d = load(block + (j + i) * W) - erase * d_added[i];
                    d_erase -= x * d_added[i];
                    d_decay += d * x;
                    store(block + (j + i) * W, d * decay);
                }
                store(de + t * P + j, d_erase);
                store(da + t * P + j, d_decay);
            }
    }
};

template <typename T>
int run(const Problem* p, int64_t begin, int64_t end, bool backward) {
    for (int64_t row = begin; row < end; row++) {
        Scan<T> scan(*p, row, backward);
        if (!scan.memory) return 1;
        backward ? scan.backward() : scan.forward();
    }
    return 0;
}

}  // namespace

// Rows begin to end, a row being one head of one text; 1 if there is no memory.
extern "C" int forward_float(const Problem* p, int64_t begin, int64_t end) { return run<float>(p, begin, end, false); }
extern "C" int forward_double(const Problem* p, int64_t begin, int64_t end) { return run<double>(p, begin, end, false); }
extern "C" int backward_float(const Problem* p, int64_t begin, int64_t end) { return run<float>(p, begin, end, true); }
extern "C" int backward_double(const Problem* p, int64_t begin, int64_t end) { return run<double>(p, begin, end, true); }

// Two tokens with one channel: 0 if outputs and gradients are right, by hand.
extern "C" int probe() {
    double q[] = {1, 1}, k[] = {1, 2}, v[] = {3, 5}, a[] = {1, 0.5}, e[] = {1, 2}, out[2], added[2], kept[256], last[1];
    double ones[] = {1, 1}, zero[] = {0}, d_q[2], d_k[2], d_v[2], d_a[2], d_e[2], d_state[1];
    auto rows = [](double* x) { return Rows{x, 2, 2, 1}; };
    Problem p{rows(q), rows(k), rows(v), rows(a), rows(e), rows(out), rows(added), rows(ones)};
    p.d_q = rows(d_q), p.d_k = rows(d_k), p.d_v = rows(d_v), p.d_decay = rows(d_a), p.d_erase = rows(d_e);
    p.state = zero, p.last = last, p.d_last = zero, p.d_state = d_state, p.kept = kept;
    p.heads = p.keys = p.values = p.decays = 1, p.tokens = p.chunk = 2;
    if (forward_double(&p, 0, 1) || backward_double(&p, 0, 1)) return 1;
    // S = 3; then 1.5, u = 5 - 2·1.5 = 2, S = 1.5 + 2·2 = 5.5.
    if (out[0] != 3 || out[1] != 5.5 || last[0] != 5.5) return 1;
    // u₂ = 5 - 2·S' and S = S' + 2·u₂ = 10 - 3·S' with S' = 1.5: d S' = -3, and S' = 0.5·S₁ gives d S₁ = 1 - 1.5.
    return d_v[1] != 2 || d_k[1] != 2 || d_e[1] != -3 || d_a[1] != -4.5 || d_v[0] != -0.5;
}
