// `kernels` is the widest set that this compilation may use.
#pragma once
#include "portable.hpp"
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#include "avx512.hpp"
namespace kernels = avx512;
#elif defined(__AVX2__) && defined(__FMA__)
#include "avx2.hpp"
namespace kernels = avx2;
#else
namespace kernels = portable;
#endif
