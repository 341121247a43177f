// The recurrence of scan.py token by token, forward and backward, in memory linear in the length of the text.
//
//   S <- Diag(a) S,   u = w v - Sᵀ (b k),   S <- S + k uᵀ,   output = scale Sᵀ q
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
    Rows q, k, v;              // [texts, heads, tokens, keys], and values for v
    Rows decay, erase, write;  // a, b and w: one number or keys for each token, one for w
    Rows out, added;           // like v, and u
    Rows d_out, d_q, d_k, d_v, d_decay, d_erase, d_write;
    void *state, *last, *d_last, *d_state;  // [texts, heads, keys, values]
    void* kept;                             // [texts, heads, chunks, states filled to whole vectors], or null
    int64_t heads, tokens, keys, values, decays, erases, chunk;
    double scale;
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

    static void accumulate(T* to, const V (&parts)[2]) { store(to, load(to) + (parts[0] + parts[1])); }

    // One number for each column of a block, on the stack: the compiler then needs no register for its address.
    struct Columns {
        alignas(64) T numbers[W];
        explicit Columns(const T* from) { std::memcpy(numbers, from, sizeof numbers); }
        T operator[](long i) const { return numbers[i]; }
    };

    const Problem& p;
    const long row, text, head, P, E;  // P keys and E values: filled with zeros to whole vectors
    T* memory = nullptr;
    T *s, *q, *k, *a, *b, *e, *v, *u, *out, *w, *numbers;  // e is b k
    T *ds, *dq, *dk, *da, *de, *dv, *before;

    Scan(const Problem& p, long row, bool backward)
        : p(p), row(row), text(row / p.heads), head(row % p.heads), P(up(p.keys, W)), E(up(p.values, W)) {
        const long C = up(p.chunk, W), keys = C * P, values = C * E;
        const long total = E * P + 5 * keys + 3 * values + 2 * C + (backward ? E * P + 4 * keys + values + keys * W : 0);
        void* base = nullptr;
        if (posix_memalign(&base, 64, total * sizeof(T))) return;
        memory = static_cast<T*>(base);
        std::memset(memory, 0, total * sizeof(T));
        T* next = memory;
        auto take = [&](long count) { return (next += count) - count; };
        s = take(E * P);
        for (T** part : {&q, &k, &a, &b, &e}) *part = take(keys);
        for (T** part : {&v, &u, &out}) *part = take(values);
        w = take(C), numbers = take(C);
        if (!backward) return;
        ds = take(E * P), dv = take(values);
        for (T** part : {&dq, &dk, &da, &de}) *part = take(keys);
        before = take(keys * W);
    }
    ~Scan() { std::free(memory); }

    T* place(const Rows& rows, long token) const {
        return static_cast<T*>(rows.data) + text * rows.text + head * rows.head + token * rows.token;
    }

    static void copy(T* to, const T* from, long count) {
        long i = 0;
        for (; i + W <= count; i += W) store(to + i, load(from + i));
        for (; i < count; i++) to[i] = from[i];
    }

    // Copy rows of a chunk into a buffer whose rows are `width` apart, or back.
    void read(T* buffer, const Rows& rows, long begin, long count, long channels, long width) const {
        const T* from = place(rows, begin);
        for (long t = 0; t < count; t++) copy(buffer + t * width, from + t * rows.token, channels);
    }
    void write(const T* buffer, const Rows& rows, long begin, long count, long channels, long width) const {
        T* to = place(rows, begin);
        for (long t = 0; t < count; t++) copy(to + t * rows.token, buffer + t * width, channels);
    }

    // One number for each token, or `keys` of them, as `keys` numbers; ones where there are none.
    void read_factors(T* buffer, const Rows& rows, long begin, long count, long given) const {
        if (given > 1) return read(buffer, rows, begin, count, p.keys, P);
        const T* from = given ? place(rows, begin) : nullptr;
        for (long t = 0; t < count; t++)
            for (long i = t * P; i < (t + 1) * P; i += W) store(buffer + i, V{} + (from ? from[t * rows.token] : T(1)));
    }
    void write_factors(const T* buffer, const Rows& rows, long begin, long count, long given) {
        if (given > 1) return write(buffer, rows, begin, count, p.keys, P);
        if (given == 1) write_numbers(products(buffer, nullptr, count, P), rows, begin, count);
    }
    void write_numbers(const T* buffer, const Rows& rows, long begin, long count) const {
        T* to = place(rows, begin);
        for (long t = 0; t < count; t++) to[t * rows.token] = buffer[t];
    }

    // For each token, the sum of its row of x times that of y, or of its row of x.
    const T* products(const T* x, const T* y, long count, long width) {
        for (long t = 0; t < count; t += W) {
            V part[W];
#pragma GCC unroll 16
            for (long i = 0; i < W; i++) part[i] = V{};
            for (long j = 0; j < width; j += W)
#pragma GCC unroll 16
                for (long i = 0; i < W; i++) {
                    const long at = (t + i) * width + j;
                    part[i] += y ? load(x + at) * load(y + at) : load(x + at);
                }
            store(numbers + t, sums(part));
        }
        return numbers;
    }

    void read_tokens(long begin, long count) {
        read(q, p.q, begin, count, p.keys, P);
        read(k, p.k, begin, count, p.keys, P);
        read(v, p.v, begin, count, p.values, E);
        read_factors(a, p.decay, begin, count, p.decays);
        read_factors(b, p.erase, begin, count, p.erases);
        const T scale = T(p.scale), *from = p.write.data ? place(p.write, begin) : nullptr;
        for (long i = 0; i < count * P; i += W) {
            store(q + i, scale * load(q + i));
            store(e + i, load(b + i) * load(k + i));
        }
        for (long t = 0; t < count; t++) {
            w[t] = from ? from[t * p.write.token] : T(1);
            for (long c = t * E; c < (t + 1) * E; c += W) store(u + c, w[t] * load(v + c));
        }
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
            for (long c = 0; c < E; c += W)
                for (long t = 0; t < count; t++)
                    p.erases ? forward_block<true>(s + c * P, c, t) : forward_block<false>(s + c * P, c, t);
            write(out, p.out, begin, count, p.values, E);
            if (p.added.data) write(u, p.added, begin, count, p.values, E);
        }
        write_state(s, p.last);
    }

    // One token and W columns.
    template <bool ERASE>
    void forward_block(T* block, long c, long t) {
        const long P = this->P;
        const T *q = this->q + t * P, *k = this->k + t * P, *e = this->e + t * P, *a = this->a + t * P;
        V part[W];
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
            store(u + t * E + c, load(u + t * E + c) - sums(part));
        }
        const Columns added(u + t * E + c);
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
        store(out + t * E + c, sums(part));
    }

    void backward() {
        read_state(ds, p.d_last);
        for (long begin = (p.tokens + p.chunk - 1) / p.chunk * p.chunk - p.chunk; begin >= 0; begin -= p.chunk) {
            const long count = p.tokens - begin < p.chunk ? p.tokens - begin : p.chunk;
            std::memcpy(s, kept_state(begin), E * P * sizeof(T));
            read_tokens(begin, count);
            if (p.erases) read(u, p.added, begin, count, p.values, E);
            read(out, p.d_out, begin, count, p.values, E);
            std::memset(dq, 0, (before - dq) * sizeof(T));  // and the three after it
            for (long c = 0; c < E; c += W) {
                for (long t = 0; t < count; t++) state_block(s + c * P, c, t);
                for (long t = count - 1; t >= 0; t--)
                    p.erases ? backward_block<true>(ds + c * P, c, t) : backward_block<false>(ds + c * P, c, t);
            }
            if (p.write.data) write_numbers(products(v, dv, count, E), p.d_write, begin, count);
            products(u, out, count, E);  // the part of the queries' gradient that is not read from the states
            for (long t = 0; t < count; t++) {
                for (long c = t * E; c < (t + 1) * E; c += W) store(dv + c, w[t] * load(dv + c));
                for (long i = t * P; i < (t + 1) * P; i += W) {
                    const V key = load(k + i), d_erase = load(de + i);
                    store(dq + i, T(p.scale) * (load(dq + i) + numbers[t] * key));
                    store(dk + i, load(dk + i) + load(b + i) * d_erase);
                    store(de + i, d_erase * key);
                }
            }
            write(dq, p.d_q, begin, count, p.keys, P);
            write(dk, p.d_k, begin, count, p.keys, P);
            write(dv, p.d_v, begin, count, p.values, E);
            write_factors(da, p.d_decay, begin, count, p.decays);
            write_factors(de, p.d_erase, begin, count, p.erases);
        }
        write_state(ds, p.d_state);
    }

    // W columns of the states of a chunk, decayed and before anything is added.
    void state_block(T* block, long c, long t) {
        const long P = this->P;
        const Columns added(u + t * E + c);
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

    // From the gradient of W columns of the state after a token to that of the state before it; `out` holds the gradient of
    // the outputs. Sums over columns are made in two parts, since an addition waits for the one before it.
    template <bool ERASE>
    void backward_block(T* block, long c, long t) {
        const long P = this->P;
        const T *q = this->q + t * P, *k = this->k + t * P, *e = this->e + t * P, *a = this->a + t * P;
        const T* states = before + t * P * W;
        const Columns out(this->out + t * E + c), added(u + t * E + c);
        V part[W];
#pragma GCC unroll 16
        for (long i = 0; i < W; i++) part[i] = V{};
        for (long j = 0; j < P; j += W) {
            const V query = load(q + j), key = load(k + j), decay = load(a + j);
            V d_query[2] = {}, d_key[2] = {}, d_decay[2] = {};
#pragma GCC unroll 16
            for (long i = 0; i < W; i++) {
                const V x = load(states + (j + i) * W), d = load(block + (j + i) * W) + query * out[i];
                d_query[i % 2] += x * out[i];
                d_key[i % 2] += d * added[i];
                part[i] += d * key;
                if constexpr (!ERASE) d_decay[i % 2] += d * x;
                store(block + (j + i) * W, ERASE ? d : d * decay);
            }
            accumulate(dq + t * P + j, d_query);
            accumulate(dk + t * P + j, d_key);
            if constexpr (!ERASE) accumulate(da + t * P + j, d_decay);
        }
        store(dv + t * E + c, sums(part));
        if constexpr (ERASE) {
            const Columns d_added(dv + t * E + c);
            for (long j = 0; j < P; j += W) {
                const V erase = load(e + j), decay = load(a + j);
                V d_erase[2] = {}, d_decay[2] = {};
#pragma GCC unroll 16
                for (long i = 0; i < W; i++) {
                    const V x = load(states + (j + i) * W), d = load(block + (j + i) * W) - erase * d_added[i];
                    d_erase[i % 2] -= x * d_added[i];
                    d_decay[i % 2] += d * x;
                    store(block + (j + i) * W, d * decay);
                }
                accumulate(de + t * P + j, d_erase);
                accumulate(da + t * P + j, d_decay);
            }
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
    double q[] = {1, 1}, k[] = {1, 2}, v[] = {3, 5}, a[] = {1, 0.5}, b[] = {1, 1}, out[2], added[2], kept[256], last[1];
    double ones[] = {1, 1}, zero[] = {0}, d_q[2], d_k[2], d_v[2], d_a[2], d_b[2], d_state[1];
    auto rows = [](double* x) { return Rows{x, 2, 2, 1}; };
    Problem p{rows(q), rows(k), rows(v), rows(a), rows(b)};
    p.out = rows(out), p.added = rows(added), p.d_out = rows(ones), p.d_q = rows(d_q), p.d_k = rows(d_k);
    p.d_v = rows(d_v), p.d_decay = rows(d_a), p.d_erase = rows(d_b);
    p.state = zero, p.last = last, p.d_last = zero, p.d_state = d_state, p.kept = kept;
    p.heads = p.keys = p.values = p.decays = p.erases = 1, p.tokens = p.chunk = 2, p.scale = 1;
    if (forward_double(&p, 0, 1) || backward_double(&p, 0, 1)) return 1;
    // S = 3; then S' = 1.5, u = 5 - 2 S' = 2 and S = S' + 2 u = 5.5.
    if (out[0] != 3 || out[1] != 5.5 || last[0] != 5.5) return 1;
    // In the second token d u = 2, so d S' = 1 - 2 d u = -3 and d b = -2 S' d u; in the first d S = 1 - 3 a = d u.
    return d_v[1] != 2 || d_b[1] != -6 || d_a[1] != -4.5 || d_k[1] != -1 || d_v[0] != -0.5;
}
