// The softmax of every token over a large vocabulary, and what its gradients need, without all scores in memory at once.
//
//   logsum_n = log sum_v e^{h_n · w_v},   of_hidden_n = sum_v p_nv w_v,   of_weight_v += sum_n p_nv h_n
//
// Tokens come in chunks whose exponentials stay in the cache. For some words at a time, scores are made in registers with
// vectors running over tokens, raised, stored, and multiplied with the words while both are near; when the sums of the
// chunk are known, the exponentials are read once more for of_weight. Scores are in powers of two, which saves a product.
// Nothing here knows of torch or Python: pointers in, numbers out.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "vectors.h"

// As in vocabulary.py, field by field. The width is a multiple of LANES.
struct Problem {
    const float *hidden, *weight;  // [tokens, width], [words, width]
    float* logsum;                 // [tokens]
    float* of_hidden;              // like hidden, or null where no gradients are wanted
    float* of_weight;              // like weight, added to
    int64_t words, width;
};

namespace {

constexpr long W = LANES;      // floats of a vector
constexpr long PANEL = 2 * W;  // tokens whose scores are made together
constexpr long GROUP = 6;      // words whose scores are made together: twelve sums, which fit sixteen registers
constexpr long NEAR = 96;      // words whose exponentials are used while they are in the nearest cache
constexpr long SCORES = 1 << 21, MOST = 128;  // of a chunk: numbers in memory, tokens
constexpr float HIGH = 86;     // powers of two that scores may reach unshifted: sums over a vocabulary still fit
constexpr float LOW = 8.3e-25f;  // 2^-80: of a smaller sum, terms that count may have been lost
constexpr float LOG2E = 1.44269504f;

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef float unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline vf load(const float* p) { return *reinterpret_cast<const unaligned*>(p); }
inline void store(float* p, vf x) { *reinterpret_cast<unaligned*>(p) = x; }
inline vf all(float x) { return vf{} + x; }

// A vector that is used several times, in a register: compilers would rather load it every time.
inline vf held(vf x) {
#if defined(__SSE__)
    asm("" : "+x"(x));
#endif
    return x;
}
long up(long n, long step) { return (n + step - 1) / step * step; }

// The larger of a limit and x, and NaN where x is.
inline vf over(vf limit, vf x) {
#if defined(__AVX512F__)
    return _mm512_max_ps(limit, x);
#elif defined(__AVX__)
    return _mm256_max_ps(limit, x);
#elif defined(__SSE__)
    return _mm_max_ps(limit, x);
#else
    return x < limit ? limit : x;
#endif
}

// 2^x to about a unit in the last place, for x below 127; below -125 it stays at 2^-125, and NaN stays NaN.
inline vf power(vf x) {
    x = over(all(-125), x);
    const vf shifted = x + 12582912.0f;  // rounds to a whole number, which is in the last bits too
    const vf f = x - (shifted - 12582912.0f);
    vf e = f * 1.3276472028e-3f + 9.6755414798e-3f;
    e = e * f + 5.5507132747e-2f;
    e = e * f + 2.4022119721e-1f;
    e = e * f + 6.9314696706e-1f;
    e = e * f + 1.0000000717f;
    vi bits, exponent;
    std::memcpy(&bits, &e, sizeof bits);
    std::memcpy(&exponent, &shifted, sizeof exponent);
    bits += exponent << 23;
    std::memcpy(&e, &bits, sizeof e);
    return e;
}

float norm(const float* x, long n) {
    vf total = {};
    for (long i = 0; i < n; i += W) total += load(x + i) * load(x + i);
    float sum = 0;
    for (long i = 0; i < W; i++) sum += total[i];
    return std::sqrt(sum);
}

// out[r] += sum_i factors[r * row + i * term] * x[i], for R rows of N vectors; x and out are `width` apart.
template <int N, int R>
inline void add_rows(const float* factors, long row, long term, long terms, const float* x, long width, float* out) {
    vf sum[R][N];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) sum[r][j] = load(out + r * width + j * W);
    for (long i = 0; i < terms; i++, factors += term, x += width) {
        vf factor[R];
        for (int r = 0; r < R; r++) factor[r] = all(factors[r * row]);
        for (int j = 0; j < N; j++) {
            const vf one = held(load(x + j * W));
            for (int r = 0; r < R; r++) sum[r][j] += factor[r] * one;
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < N; j++) store(out + r * width + j * W, sum[r][j]);
}

// A product of matrices with few terms, added to out.
struct Product {
    const float* factors;
    long row, term, rows, terms;
    const float* x;
    long width;
    float* out;

    template <int N, int R>
    void columns(long d) const {
        long r = 0;
        for (; r + R <= rows; r += R) add_rows<N, R>(factors + r * row, row, term, terms, x + d, width, out + r * width + d);
        for (; r < rows; r++) add_rows<N, 1>(factors + r * row, row, term, terms, x + d, width, out + r * width + d);
    }

    void add() const {
        for (long d = 0; d < width; d += 6 * W) switch (width - d < 6 * W ? (width - d) / W : 6) {
                case 6: columns<6, 2>(d); break;
                case 5: columns<5, 2>(d); break;
                case 4: columns<4, 2>(d); break;
                case 3: columns<3, 4>(d); break;
                case 2: columns<2, 4>(d); break;
                case 1: columns<1, 8>(d); break;
            }
    }
};

struct Chunks {
    const Problem& p;
    long size, pitch;  // tokens of a chunk, and numbers from word to word
    float *panels, *shift, *sums, *part, *scaled, *powers;
    float longest = 0;  // of the words' vectors
    char* memory;

    explicit Chunks(const Problem& problem) : p(problem) {
        size = SCORES / (p.words ? p.words : 1) / PANEL * PANEL;
        size = size < PANEL ? PANEL : size > MOST ? MOST : size;
        pitch = size / 16 % 2 ? size : size + 16;  // an odd number of cache lines, so that a column meets all of them
        const long stored = p.of_hidden ? p.words : NEAR;
        const long needed[] = {size * p.width, size, size, size, size * p.width, (stored + GROUP) * pitch};
        long total = 0;
        for (long one : needed) total += up(one, 16);
        memory = static_cast<char*>(std::malloc(total * sizeof(float) + 64));
        if (!memory) return;
        float* place = reinterpret_cast<float*>(memory + (64 - reinterpret_cast<uintptr_t>(memory) % 64));
        float** names[] = {&panels, &shift, &sums, &part, &scaled, &powers};
        for (int i = 0; i < 6; i++) *names[i] = place, place += up(needed[i], 16);
        for (long v = 0; v < p.words; v++) {
            const float one = norm(p.weight + v * p.width, p.width);
            longest = one <= longest ? longest : one;
        }
    }
    ~Chunks() { std::free(memory); }

    // The scores of K words and a panel of tokens.
    template <int K, bool RAISED>
    void scores(const float* words, const float* panel, long token, float* place) {
        vf x[2][K];
        for (int k = 0; k < K; k++) x[0][k] = x[1][k] = vf{};
        for (long d = 0; d < p.width; d++, panel += PANEL) {
            const vf one = held(load(panel)), two = held(load(panel + W));
            for (int k = 0; k < K; k++) {
                const vf word = all(words[k * p.width + d]);
                x[0][k] += word * one;
                x[1][k] += word * two;
            }
        }
        use<K, RAISED>(x[0], token, place);
        use<K, RAISED>(x[1], token + W, place + W);
    }

    // Scores are raised, stored and added to the sums, or only their maximum is kept. Inlined, they never leave registers.
    template <int K, bool RAISED>
    __attribute__((always_inline)) inline void use(const vf* x, long token, float* place) {
        float* kept = (RAISED ? part : shift) + token;
        const vf down = load(shift + token);
        vf found = load(kept);
        for (int k = 0; k < K; k++) {
            if (RAISED) {
                const vf e = power(x[k] - down);
                store(place + k * pitch, e);
                found += e;
            } else {
                found = over(found, x[k]);
            }
        }
        store(kept, found);
    }

    template <bool RAISED>
    void block(long begin, long end, long tokens, float* place) {
        for (long v = begin; v < end; v += GROUP, place += GROUP * pitch)
            for (long n = 0; n < tokens; n += PANEL) {
                const float *words = p.weight + v * p.width, *panel = panels + n * p.width;
                switch (end - v < GROUP ? end - v : GROUP) {
                    case 6: scores<6, RAISED>(words, panel, n, place + n); break;
                    case 5: scores<5, RAISED>(words, panel, n, place + n); break;
                    case 4: scores<4, RAISED>(words, panel, n, place + n); break;
                    case 3: scores<3, RAISED>(words, panel, n, place + n); break;
                    case 2: scores<2, RAISED>(words, panel, n, place + n); break;
                    case 1: scores<1, RAISED>(words, panel, n, place + n); break;
                }
            }
    }

    // Sums, and where gradients are wanted all powers and the words weighed by them; whether no sum is too small.
    bool raise(long first, long tokens) {
        std::memset(sums, 0, size * sizeof(float));
        if (p.of_hidden) std::memset(p.of_hidden + first * p.width, 0, tokens * p.width * sizeof(float));
        for (long v = 0; v < p.words; v += NEAR) {
            const long end = v + NEAR < p.words ? v + NEAR : p.words;
            float* place = p.of_hidden ? powers + v * pitch : powers;
            std::memset(part, 0, size * sizeof(float));
            block<true>(v, end, tokens, place);
            for (long n = 0; n < tokens; n++) sums[n] += part[n];  // in two steps, which rounds less
            if (p.of_hidden)
                Product{place, 1, pitch, tokens, end - v, p.weight + v * p.width, p.width, p.of_hidden + first * p.width}.add();
        }
        bool enough = true;
        for (long n = 0; n < tokens; n++) enough &= sums[n] >= LOW;
        return enough;
    }

    void run(long first, long tokens) {
        const float* hidden = p.hidden + first * p.width;
        std::memset(panels, 0, size * p.width * sizeof(float));
        std::memset(shift, 0, size * sizeof(float));
        for (long n = 0; n < tokens; n++) {
            for (long d = 0; d < p.width; d++)
                panels[(n / PANEL * p.width + d) * PANEL + n % PANEL] = LOG2E * hidden[n * p.width + d];
            // No score is above the product of the lengths; mostly that is low enough to need no shift.
            const float bound = LOG2E * norm(hidden + n * p.width, p.width) * longest;
            shift[n] = bound > HIGH ? bound - HIGH : 0;
        }
        if (!raise(first, tokens)) {
            for (long n = 0; n < size; n++) shift[n] = -INFINITY;
            block<false>(0, p.words, tokens, powers);
            raise(first, tokens);
        }
        for (long n = 0; n < tokens; n++)
            p.logsum[first + n] = float((std::log2(double(sums[n])) + shift[n]) * 0.6931471805599453);
        if (p.of_hidden) finish(first, tokens);
    }

    // What is divided by the sums.
    void finish(long first, long tokens) {
        for (long n = 0; n < tokens; n++) {
            const vf inverse = all(1 / sums[n]);
            float* mean = p.of_hidden + (first + n) * p.width;
            for (long d = 0; d < p.width; d += W) {
                store(scaled + n * p.width + d, load(p.hidden + (first + n) * p.width + d) * inverse);
                store(mean + d, load(mean + d) * inverse);
            }
        }
        Product{powers, pitch, 1, p.words, tokens, scaled, p.width, p.of_weight}.add();
    }
};

// Some tokens by one thread; 1 where memory runs out.
int softmax(const Problem& p, long begin, long end) {
    Chunks chunks(p);
    if (!chunks.memory) return 1;
    for (long first = begin; first < end; first += chunks.size)
        chunks.run(first, first + chunks.size < end ? chunks.size : end - first);
    return 0;
}

// Whether sums and gradients are right, with scores of a given size.
bool right(float size) {
    constexpr long tokens = PANEL + 3, words = NEAR + GROUP + 1, width = 7 * W;
    static float hidden[tokens * width], weight[words * width], logsum[tokens], of_hidden[tokens * width];
    static float of_weight[words * width];
    static double expected[words * width], scores[words];
    uint64_t state = 1;
    const auto random = [&] { return float((state = state * 6364136223846793005u + 1442695040888963407u) >> 40) / (1 << 23) - 1; };
    for (float& x : hidden) x = size * random();
    for (float& x : weight) x = random();
    std::memset(of_weight, 0, sizeof of_weight);
    if (softmax({hidden, weight, logsum, of_hidden, of_weight, words, width}, 0, tokens)) return false;
    bool good = true;
    const auto near = [&](double one, double other) { good &= std::fabs(one - other) < 1e-4 * (1 + size) * (1 + std::fabs(other)); };
    for (double& x : expected) x = 0;
    for (long n = 0; n < tokens; n++) {
        double most = -INFINITY, sum = 0;
        for (long v = 0; v < words; v++) {
            scores[v] = 0;
            for (long d = 0; d < width; d++) scores[v] += double(hidden[n * width + d]) * weight[v * width + d];
            most = scores[v] > most ? scores[v] : most;
        }
        for (long v = 0; v < words; v++) sum += std::exp(scores[v] - most);
        near(logsum[n], most + std::log(sum));
        for (long d = 0; d < width; d++) {
            double mean = 0;
            for (long v = 0; v < words; v++) {
                const double share = std::exp(scores[v] - most) / sum;
                mean += share * weight[v * width + d];
                expected[v * width + d] += share * hidden[n * width + d];
            }
            near(of_hidden[n * width + d], mean);
        }
    }
    for (long i = 0; i < words * width; i++) near(of_weight[i], expected[i]);
    return good;
}

}  // namespace

extern "C" {

int vocabulary_softmax(const Problem* p, int64_t begin, int64_t end) { return softmax(*p, begin, end); }

// 0 where the numbers are right; tried once in a process of its own, which an illegal instruction may kill.
int probe() { return right(0.3f) && right(10) && right(100) ? 0 : 1; }

}
