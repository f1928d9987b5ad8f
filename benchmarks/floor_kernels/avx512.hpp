// The floor's kernels with AVX-512 (F, BW, VL): avx2.hpp at twice the width. A store fills a whole line.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace avx512 {

inline __m512i load(const void* at) {
    return _mm512_loadu_si512(at);
}

template <bool kStream>
void store(void* at, __m512i value) {
    if constexpr (kStream) {
        _mm512_stream_si512(static_cast<__m512i*>(at), value);
    } else {
        _mm512_store_si512(at, value);
    }
}

inline void prefetch(const void* at) {
    _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0);
}

inline __m512i absolute(__m512i bf16) {
    return _mm512_and_si512(bf16, _mm512_set1_epi16(0x7fff));
}
inline __m512 even_floats(__m512i bf16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(bf16, 16));
}
inline __m512 odd_floats(__m512i bf16) {
    return _mm512_castsi512_ps(_mm512_and_si512(bf16, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

inline float group_amax(const uint16_t* x) {
    __m512i most = absolute(load(x));
    for (int i = 32; i < 128; i += 32) most = _mm512_max_epu16(most, absolute(load(x + i)));
    const __m256i low = _mm512_castsi512_si256(most), high = _mm512_extracti64x4_epi64(most, 1);
    const __m256i quarter = _mm256_max_epu16(low, high);
    const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(quarter), _mm256_extracti128_si256(quarter, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi16(-1)));
    const uint32_t bits = ~static_cast<uint32_t>(_mm_cvtsi128_si32(least)) & 0xffff;
    return std::max(std::bit_cast<float>(bits << 16), 1e-4f);
}

inline __m512i round_to_e4m3(__m512 magnitude) {
    const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(magnitude), _mm512_set1_epi32(0x7f800000));
    const __m512i power = _mm512_max_epi32(exponent, _mm512_set1_epi32(121 << 23));
    const __m512i magic = _mm512_add_epi32(power, _mm512_set1_epi32(20 << 23));
    const __m512 sum = _mm512_add_ps(magnitude, _mm512_castsi512_ps(magic));
    return _mm512_add_epi32(_mm512_castps_si512(sum), _mm512_srli_epi32(power, 20));
}

inline __m256i cast_32(const uint16_t* x, __m512 scale) {
    const __m512i bf16 = load(x), magnitude = absolute(bf16);
    const __m512i even = round_to_e4m3(_mm512_mul_ps(even_floats(magnitude), scale));
    const __m512i odd = round_to_e4m3(_mm512_mul_ps(odd_floats(magnitude), scale));
    const __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16));
    const __m512i codes =
        _mm512_and_si512(_mm512_add_epi16(both, _mm512_set1_epi16(56)), _mm512_set1_epi16(0x7f));
    const __m512i signs = _mm512_and_si512(_mm512_srli_epi16(bf16, 8), _mm512_set1_epi16(0x80));
    return _mm512_cvtepi16_epi8(_mm512_or_si512(codes, signs));
}

template <bool kStream>
void copy_row(void* target, const void* source, size_t bytes) {
    auto* to = static_cast<char*>(target);
    auto* from = static_cast<const char*>(source);
    for (size_t i = 0; i < bytes; i += 64) {
        prefetch(from + i + 512);
        store<kStream>(to + i, load(from + i));
    }
}

inline constexpr int kBlock = 512;

template <bool kStream>
void fan_row(void* const* targets, int num_targets, const void* source, size_t bytes) {
    auto* from = static_cast<const char*>(source);
    for (size_t first = 0; first < bytes; first += kBlock) {
        const size_t size = std::min<size_t>(kBlock, bytes - first);
        for (size_t i = 0; i < size; i += 64) prefetch(from + bytes + first + i);
        for (int k = 0; k < num_targets; ++k) {
            auto* to = static_cast<char*>(targets[k]) + first;
            for (size_t i = 0; i < size; i += 64) store<kStream>(to + i, load(from + first + i));
        }
    }
}

inline void row_scales(float* inverse, float* scale, const uint16_t* x, int num_groups) {
    const __m256 limit = _mm256_set1_ps(448.0f);
    for (int g = 0; g < num_groups; ++g) scale[g] = group_amax(x + 128 * g);
    for (int g = 0; g < num_groups; g += 8) {
        const __m256 amax = _mm256_loadu_ps(scale + g);
        _mm256_storeu_ps(inverse + g, _mm256_div_ps(amax, limit));
        _mm256_storeu_ps(scale + g, _mm256_div_ps(limit, amax));
    }
}

template <bool kStream>
void cast_fan(void* const* targets, int num_targets, float* scales, const uint16_t* x, int hidden) {
    alignas(64) float multiplier[64] = {};
    alignas(64) uint8_t block[kBlock];
    row_scales(scales, multiplier, x, hidden / 128);
    for (int first = 0; first < hidden; first += kBlock) {
        const int size = std::min(kBlock, hidden - first);
        for (int i = 0; i < 2 * size; i += 64)
            prefetch(reinterpret_cast<const char*>(x + hidden + first) + i);
        for (int i = 0; i < size; i += 32) {
            const __m512 scale = _mm512_set1_ps(multiplier[(first + i) / 128]);
            _mm256_store_si256(reinterpret_cast<__m256i*>(block + i), cast_32(x + first + i, scale));
        }
        for (int k = 0; k < num_targets; ++k) {
            auto* to = static_cast<uint8_t*>(targets[k]) + first;
            for (int i = 0; i < size; i += 64) store<kStream>(to + i, load(block + i));
        }
    }
}

inline __m512i rounded(__m512 sum) {
    const __m512i bits = _mm512_castps_si512(sum);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

template <bool kStream>
void reduce_rows(uint16_t* out, const uint16_t* const* rows, const float* weights, int num_rows, int hidden) {
    for (int i = 0; i < hidden; i += 32) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (int k = 0; k < num_rows; ++k) {
            const __m512 weight = _mm512_set1_ps(weights[k]);
            prefetch(rows[k] + i + 64);
            const __m512i row = load(rows[k] + i);
            even = _mm512_fmadd_ps(even_floats(row), weight, even);
            odd = _mm512_fmadd_ps(odd_floats(row), weight, odd);
        }
        const __m512i low = _mm512_srli_epi32(rounded(even), 16);
        store<kStream>(out + i, _mm512_mask_blend_epi16(0xaaaaaaaa, low, rounded(odd)));
    }
}

inline void store_fence() {
    _mm_sfence();
}
inline constexpr const char* kName = "avx512";

}  // namespace avx512
