// vec.hpp: the widest vectors of this CPU level, with the few operations that plain C++ has no word for.
// GCC's and Clang's vector types: arithmetic, shifts, comparisons and `mask ? a : b` work on whole vectors.
#pragma once

#include <cstring>

#include "core/numeric.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

DEEP_LL_TIER_BEGIN

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int kVecBytes = 64;
#elif defined(__AVX2__)
constexpr int kVecBytes = 32;
#else
constexpr int kVecBytes = 16;
#endif
constexpr int kLanes = kVecBytes / 4;

using VecU32 = std::uint32_t __attribute__((vector_size(kVecBytes)));
using VecF32 = float __attribute__((vector_size(kVecBytes)));
using VecU16 = std::uint16_t __attribute__((vector_size(kVecBytes)));
using VecU8 = std::uint8_t __attribute__((vector_size(kVecBytes)));
using HalfU8 = std::uint8_t __attribute__((vector_size(kVecBytes / 2)));

template <class V>
TEAM_FN V load(const void* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
template <class V>
TEAM_FN void store(void* to, V value) {
    std::memcpy(to, &value, sizeof value);
}

TEAM_FN VecF32 as_float(VecU32 bits) {
    return __builtin_bit_cast(VecF32, bits);
}
TEAM_FN VecU32 as_bits(VecF32 value) {
    return __builtin_bit_cast(VecU32, value);
}

// a * b + c with one rounding.
TEAM_FN float fma_once(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    // Without hardware: the product is exact in double; round the sum to odd there, so that narrowing rounds
    // once.
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double sum = product + static_cast<double>(c);
    const double part = sum - product;
    const double error = (product - (sum - part)) + (static_cast<double>(c) - part);
    std::uint64_t bits = __builtin_bit_cast(std::uint64_t, sum);
    const bool exact = !(error > 0 || error < 0) || (bits & 1) != 0;  // also when the sum is not finite
    if (!exact) bits += (error > 0) == (sum > 0) ? 1 : ~std::uint64_t{0};
    return static_cast<float>(__builtin_bit_cast(double, bits));
#endif
}

TEAM_FN VecF32 fma_once(VecF32 a, VecF32 b, VecF32 c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    VecF32 result;
    for (int i = 0; i < kLanes; ++i) result[i] = fma_once(a[i], b[i], c[i]);
    return result;
#endif
}

// The larger of each pair, and the largest of all.
TEAM_FN VecU16 max_of(VecU16 a, VecU16 b) {
    return a > b ? a : b;
}
TEAM_FN std::uint16_t largest(VecU16 v) {
    std::uint16_t lanes[kVecBytes / 2];
    store(lanes, v);
#if defined(__SSE4_1__)
    // phminposuw finds the smallest of eight.
    __m128i folded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
    for (int i = 1; i < kVecBytes / 16; ++i)
        folded = _mm_max_epu16(folded, _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes) + i));
    const __m128i flipped = _mm_minpos_epu16(_mm_xor_si128(folded, _mm_set1_epi16(-1)));
    return static_cast<std::uint16_t>(~_mm_extract_epi16(flipped, 0));
#else
    std::uint16_t top = 0;
    for (const std::uint16_t lane : lanes) top = lane > top ? lane : top;
    return top;
#endif
}

// The low bytes of the 16-bit lanes of two vectors, in order. Lanes must be below 2^8.
TEAM_FN VecU8 pack(VecU16 low, VecU16 high) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i packed =
        _mm256_packus_epi16(__builtin_bit_cast(__m256i, low), __builtin_bit_cast(__m256i, high));
    return __builtin_bit_cast(VecU8, _mm256_permute4x64_epi64(packed, 0xd8));  // packing works within halves
#else
    const HalfU8 halves[2] = {__builtin_convertvector(low, HalfU8), __builtin_convertvector(high, HalfU8)};
    return load<VecU8>(halves);
#endif
}

DEEP_LL_TIER_END
