// How many floats a vector of this processor holds, and its own operations where it has some.

#pragma once

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__SSE__)
#include <immintrin.h>
#endif
